package provider

import (
	"fmt"
	"math/big"
	"strings"
)

// Limits of a sum: it is a demo, not a computer algebra system.
const (
	maxSum      = 200 // bytes of an expression
	maxDepth    = 32  // parentheses
	maxPower    = 64
	maxBits     = 4096 // of a numerator or denominator
	sumDecimals = 6
)

// calculate finds the longest sum in the message and works it out.
func calculate(c conversation) string {
	expression := findSum(c.message)
	if expression == "" {
		return ""
	}
	p := sumParser{in: expression}
	value := p.sum()
	switch {
	case p.fault == "" && p.i < len(p.in):
		return ""
	case p.fault == divisionByZero:
		return fmt.Sprintf("%s has no result: nobody can divide by zero, not even the %s.", expression, demoLabel)
	case p.fault != "":
		return ""
	}
	return fmt.Sprintf("%s = %s (worked out by the %s)", expression, decimal(value), demoLabel)
}

// findSum returns the longest run of numbers and operators that has both, in
// plain notation; words for operators are understood.
func findSum(message string) string {
	if len(message) > maxDemoMessage {
		return ""
	}
	plain := strings.NewReplacer(
		"multiplied by", "*", "divided by", "/", "times", "*", "plus", "+", "minus", "-", "over", "/",
		"×", "*", "·", "*", "÷", "/", "−", "-", "% of", "/100*", "percent of", "/100*", "squared", "^2", "cubed", "^3",
	).Replace(strings.ToLower(message))
	best := ""
	for from := 0; from < len(plain); {
		to := from
		for to < len(plain) && strings.IndexByte("0123456789.+-*/^() ", plain[to]) >= 0 {
			to++
		}
		run := strings.TrimRight(strings.TrimSpace(plain[from:to]), ".+-*/^( ")
		if isSum(run) && len(run) > len(best) {
			best = run
		}
		from = max(to, from+1)
	}
	return best
}

// isSum tells sums from dates, phone numbers and plain numbers: it needs two
// numbers with an operator, and a minus or slash alone needs spaces around it
// or stands in parentheses.
func isSum(run string) bool {
	if len(run) > maxSum || strings.Count(run, "(") != strings.Count(run, ")") {
		return false
	}
	digits := strings.ContainsAny(run, "0123456789")
	sure := strings.ContainsAny(run, "+*^") || strings.Contains(run, " - ") || strings.Contains(run, " / ") ||
		strings.Count(run, "/") == 1 && !strings.Contains(run, "-") || strings.Count(run, "-") == 1 && !strings.HasPrefix(run, "-") && !strings.Contains(run, "/")
	return digits && sure
}

const divisionByZero = "division by zero"

// sumParser works out an expression by recursive descent, with exact fractions.
type sumParser struct {
	in    string
	i     int
	depth int
	fault string
}

func (p *sumParser) fail(fault string) *big.Rat {
	if p.fault == "" {
		p.fault = fault
	}
	p.i = len(p.in)
	return new(big.Rat)
}

func (p *sumParser) peek() byte {
	for p.i < len(p.in) && p.in[p.i] == ' ' {
		p.i++
	}
	if p.i == len(p.in) {
		return 0
	}
	return p.in[p.i]
}

func (p *sumParser) sum() *big.Rat {
	value := p.product()
	for {
		switch p.peek() {
		case '+':
			p.i++
			value = p.bounded(new(big.Rat).Add(value, p.product()))
		case '-':
			p.i++
			value = p.bounded(new(big.Rat).Sub(value, p.product()))
		default:
			return value
		}
	}
}

func (p *sumParser) product() *big.Rat {
	value := p.power()
	for {
		switch p.peek() {
		case '*':
			p.i++
			value = p.bounded(new(big.Rat).Mul(value, p.power()))
		case '/':
			p.i++
			divisor := p.power()
			if divisor.Sign() == 0 {
				return p.fail(divisionByZero)
			}
			value = p.bounded(new(big.Rat).Quo(value, divisor))
		default:
			return value
		}
	}
}

func (p *sumParser) power() *big.Rat {
	negative := false
	for p.peek() == '-' {
		p.i++
		negative = !negative
	}
	value := p.atom()
	if p.peek() == '^' {
		p.i++
		exponent := p.atom()
		if !exponent.IsInt() || !exponent.Num().IsInt64() || exponent.Num().Int64() > maxPower {
			return p.fail("exponent")
		}
		base := value
		value = big.NewRat(1, 1)
		for range exponent.Num().Int64() {
			value = p.bounded(value.Mul(value, base))
		}
	}
	if negative {
		value = new(big.Rat).Neg(value)
	}
	return value
}

func (p *sumParser) atom() *big.Rat {
	if p.peek() == '(' {
		if p.depth++; p.depth > maxDepth {
			return p.fail("too deep")
		}
		p.i++
		value := p.sum()
		if p.peek() != ')' {
			return p.fail("parenthesis")
		}
		p.i++
		p.depth--
		return value
	}
	from := p.i
	for p.i < len(p.in) && (p.in[p.i] == '.' || p.in[p.i] >= '0' && p.in[p.i] <= '9') {
		p.i++
	}
	value, ok := new(big.Rat).SetString(p.in[from:p.i])
	if !ok {
		return p.fail("number")
	}
	return value
}

// bounded refuses numbers that would take long to print.
func (p *sumParser) bounded(value *big.Rat) *big.Rat {
	if value.Num().BitLen() > maxBits || value.Denom().BitLen() > maxBits {
		return p.fail("too large")
	}
	return value
}

// decimal prints without trailing zeros, and marks what is rounded.
func decimal(value *big.Rat) string {
	if value.IsInt() {
		return value.Num().String()
	}
	text := strings.TrimRight(value.FloatString(sumDecimals), "0")
	if back, ok := new(big.Rat).SetString(text); ok && back.Cmp(value) != 0 {
		return "about " + strings.TrimSuffix(text, ".")
	}
	return text
}

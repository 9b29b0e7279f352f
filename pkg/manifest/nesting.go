package manifest

import "github.com/goccy/go-yaml/token"

// nesting follows how deep the tokens of a file nest, before the parser does.
// It may count deeper than the parser, never shallower by more than the keys
// of one line.
type nesting struct {
	levels []level
	bytes  int // of all levels' keys
	cost   int // bytes the parser will keep for paths
}

// level is an open block (opened by a key or a dash at col) or flow
// collection (opened by a bracket).
type level struct {
	col   int
	flow  bool
	bytes int
}

// add follows one token; isKey tells that a colon comes next.
func (n *nesting) add(t *token.Token, isKey bool) *Fault {
	switch t.Type {
	case token.MappingStartType, token.SequenceStartType:
		n.push(level{flow: true, bytes: 8})
	case token.MappingEndType, token.SequenceEndType:
		n.closeFlow()
	case token.SequenceEntryType, token.MappingKeyType:
		n.open(placeOf(t).col, 8)
	case token.DocumentHeaderType, token.DocumentEndType:
		*n = nesting{cost: n.cost}
	default:
		if isKey {
			if len(t.Value) > maxKeyChars {
				return &Fault{Rule: RuleYAMLSize, Message: "a key has more than 256 characters; is a quote or a line break missing?"}
			}
			n.open(placeOf(t).col, len(t.Value)+3)
		}
	}
	n.cost += n.bytes
	if len(n.levels) > maxDepth {
		return &Fault{Rule: RuleYAMLDepth, Message: "values nest more than 64 deep"}
	}
	if n.cost > maxPathBytes {
		return &Fault{Rule: RuleYAMLSize, Message: "the file nests too many values under long keys; split it with $include"}
	}
	return nil
}

// open starts a block entry at col, or the next key of a flow collection.
func (n *nesting) open(col, size int) {
	if last := len(n.levels) - 1; last >= 0 && n.levels[last].flow {
		n.bytes += size - n.levels[last].bytes
		n.levels[last].bytes = size
		return
	}
	for last := len(n.levels) - 1; last >= 0 && !n.levels[last].flow && n.levels[last].col >= col; last-- {
		n.pop()
	}
	n.push(level{col: col, bytes: size})
}

func (n *nesting) closeFlow() {
	for len(n.levels) > 0 {
		if n.pop().flow {
			return
		}
	}
}

func (n *nesting) push(l level) {
	n.levels = append(n.levels, l)
	n.bytes += l.bytes
}

func (n *nesting) pop() level {
	l := n.levels[len(n.levels)-1]
	n.levels = n.levels[:len(n.levels)-1]
	n.bytes -= l.bytes
	return l
}

package hub

import (
	"regexp"
	"sync"
)

// lazily returns what compiles a pattern when it is first needed. Every program
// begins with the variables of this package, and few need many of them.
func lazily(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

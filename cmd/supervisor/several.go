package main

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
)

// atOnce is how many formations a command works on at one time.
const atOnce = 8

// sideBySide does something for every id, atOnce at a time, and returns the
// errors in the order of the ids.
func sideBySide(ids []string, do func(i int, id string) error) []error {
	errs := make([]error, len(ids))
	slots := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i, id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i, id)
		})
	}
	wg.Wait()
	return errs
}

// severalErrors are the errors of a command on several formations. The exit
// code is that of the worst.
type severalErrors []error

// several returns nil for no error.
func several(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return severalErrors(errs)
}

// Error returns the texts, one a line.
func (s severalErrors) Error() string {
	texts := make([]string, len(s))
	for i, err := range s {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "\n")
}

// Unwrap returns the errors.
func (s severalErrors) Unwrap() []error { return s }

// badness orders exit codes: what no other try would change comes last.
var badness = []int{exitOK, exitNotFound, exitConflict, exitFailed, exitUnavailable, exitUnauthorised}

// worst returns the worst exit code of s.
func (s severalErrors) worst() int {
	codes := make([]int, len(s))
	for i, err := range s {
		codes[i] = exitCode(err)
	}
	return slices.MaxFunc(codes, func(a, b int) int {
		return cmp.Compare(slices.Index(badness, a), slices.Index(badness, b))
	})
}

// asSeveral finds the errors of several formations in err.
func asSeveral(err error) (severalErrors, bool) { return errors.AsType[severalErrors](err) }

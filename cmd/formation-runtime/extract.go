package main

import (
	"os"

	"github.com/agentformation/service/pkg/formation/media"
)

// extract works on one file in place of a formation, when it was started for
// that: a formation starts its own program so, confined, for a file of a
// stranger. It comes before a formation would touch anything.
func extract() (done bool, err error) {
	if len(os.Args) < 2 || os.Args[1] != media.Command {
		return false, nil
	}
	return true, media.Serve(os.Args[2:], os.Stdin, os.Stdout)
}

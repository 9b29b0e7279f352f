package main

import (
	"os"
	"strconv"

	"github.com/agentformation/service/pkg/confine"
)

// stage turns this process into the program of its arguments when a supervisor
// asked for a confinement first, and then does not return. It comes before
// everything else: nothing here may open what the program would inherit, or start
// a thread that the confinement would not reach.
func stage() error {
	if _, staged, err := confine.FromEnv(); !staged || err != nil {
		return err
	}
	return confine.Stage(os.Args[1:])
}

// heapLimit is how large the heap may grow before it costs to keep it small. The
// process' own limit leaves a quarter to what is not on the heap.
func heapLimit() int64 {
	limit, err := strconv.ParseInt(os.Getenv(confine.EnvMemory), 10, 64)
	_ = os.Unsetenv(confine.EnvMemory)
	if err != nil || limit <= 0 {
		return memoryLimit
	}
	return min(memoryLimit, limit/4*3)
}

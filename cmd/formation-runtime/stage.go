package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"

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

// settle takes on the limits that a supervisor left to this process, and lives
// within those that the kernel holds: the heap leaves a quarter of the memory to
// what is not on it, and Go learns the share of the processors here, because the
// process comes into its cgroup when it has begun. memory is the most that the
// heap should take in any case, in bytes.
func settle(memory int64) error {
	rest, err := confine.Settle()
	if err != nil {
		return err
	}
	if rest.Memory > 0 {
		memory = min(memory, rest.Memory/4*3)
	}
	debug.SetMemoryLimit(memory)
	if rest.CPU > 0 {
		// Go's own rule for a cgroup: at least two.
		runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), max(2, int(math.Ceil(rest.CPU)))))
	}
	return nil
}

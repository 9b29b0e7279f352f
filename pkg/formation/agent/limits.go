package agent

import (
	"time"

	"github.com/agentformation/service/pkg/manifest"
)

// Limits end a run that does not end by itself (reference runtime.md 7.3, mcp
// and input_limits). When one is reached the model is asked once more, without
// tools, for an answer with what it has.
type Limits struct {
	ToolIterations    int           // model steps that may ask for tools; 10
	ToolCalls         int           // calls in one run; 50
	RepeatedErrors    int           // the same error of the same tool in a row; 3
	ToolOutput        int           // bytes of one result, the rest is cut; 1 MiB
	ToolTimeout       time.Duration // of one call; 30 s. Tool servers may have limits of their own below
	ToolsTimeout      time.Duration // of all tool steps of a run together; 300 s
	ParallelToolCalls int           // calls of one step at once; 8
}

// DefaultLimits are the limits of a formation that sets none.
func DefaultLimits() Limits {
	return Limits{
		ToolIterations: 10, ToolCalls: 50, RepeatedErrors: 3, ToolOutput: 1 << 20,
		ToolTimeout: 30 * time.Second, ToolsTimeout: 5 * time.Minute, ParallelToolCalls: 8,
	}
}

// LimitsOf are the limits that a manifest sets, and the defaults.
func LimitsOf(f *manifest.Formation) Limits {
	return Limits{
		ToolIterations: f.MCP.MaxToolIterations, ToolCalls: f.MCP.MaxToolCalls, RepeatedErrors: f.MCP.MaxRepeatedErrors,
		ToolOutput: f.InputLimits.MaxToolOutputSize, ToolTimeout: f.MCP.CallLimit(), ToolsTimeout: f.MCP.MaxTimeout,
	}.over(DefaultLimits())
}

// over fills in from other what l leaves out.
func (l Limits) over(other Limits) Limits {
	l.ToolIterations = first(l.ToolIterations, other.ToolIterations)
	l.ToolCalls = first(l.ToolCalls, other.ToolCalls)
	l.RepeatedErrors = first(l.RepeatedErrors, other.RepeatedErrors)
	l.ToolOutput = first(l.ToolOutput, other.ToolOutput)
	l.ToolTimeout = first(l.ToolTimeout, other.ToolTimeout)
	l.ToolsTimeout = first(l.ToolsTimeout, other.ToolsTimeout)
	l.ParallelToolCalls = first(l.ParallelToolCalls, other.ParallelToolCalls)
	return l
}

// first returns a limit that is set.
func first[T int | time.Duration](own, other T) T {
	if own > 0 {
		return own
	}
	return other
}

package overlord

import "github.com/agentformation/service/pkg/formation/agent"

// Step is a finished step of a turn, as agents journal it.
type Step = agent.Step

package provider

import "github.com/agentformation/service/pkg/formation/llm"

func NewDemo(llm.Endpoint) (llm.Model, error) { return nil, nil }

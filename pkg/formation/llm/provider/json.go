package provider

import (
	"bytes"
	"encoding/json"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

func wantsJSON(req llm.Request) bool { return req.JSON || len(req.Schema) > 0 }

// jsonHint asks in words for the JSON that a protocol or a model has no
// parameter for.
func jsonHint(req llm.Request) string {
	hint := "Answer with one JSON object and nothing else."
	if len(req.Schema) > 0 {
		hint = "Answer with one JSON object that fits this JSON Schema, and nothing else:\n" + string(req.Schema)
	}
	return hint
}

// withHint adds a hint to the system message, or makes one in front: many
// servers want no other place for it.
func withHint(req llm.Request, hint string) []chat.Message {
	if hint == "" {
		return req.Messages
	}
	messages := append([]chat.Message(nil), req.Messages...)
	if len(messages) > 0 && messages[0].Role == chat.System {
		messages[0].Content += "\n\n" + hint
		return messages
	}
	return append([]chat.Message{{Role: chat.System, Content: hint}}, messages...)
}

// titled returns the schema with the request's name for it as its title, where
// a protocol has no other place for the name. What is no object stays itself.
func titled(req llm.Request) map[string]any {
	var schema map[string]any
	if err := json.Unmarshal(req.Schema, &schema); err != nil || schema == nil {
		return nil
	}
	if _, has := schema["title"]; !has && req.SchemaName != "" {
		schema["title"] = req.SchemaName
	}
	return schema
}

// object returns arguments as the object that some protocols want. What a model
// wrote wrongly is kept as text, so that it sees its mistake.
func object(args json.RawMessage) map[string]any {
	out := map[string]any{}
	if len(args) == 0 {
		return out
	}
	if err := json.Unmarshal(args, &out); err != nil || out == nil {
		return map[string]any{"invalid_arguments": string(args)}
	}
	return out
}

// unfenced returns the text inside a code block that is the whole text.
func unfenced(text []byte) []byte {
	inner := bytes.TrimSpace(text)
	if !bytes.HasPrefix(inner, []byte("```")) || !bytes.HasSuffix(inner, []byte("```")) {
		return text
	}
	_, inner, ok := bytes.Cut(inner, []byte("\n"))
	if !ok {
		return text
	}
	return bytes.TrimSpace(bytes.TrimSuffix(inner, []byte("```")))
}

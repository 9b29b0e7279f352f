package overlord_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/manifest"
)

// listener hears what a recording holds as its bytes.
type listener struct {
	model string
	calls int
}

func (l *listener) Transcribe(_ context.Context, modelID string, req llm.TranscribeRequest) (llm.Transcript, error) {
	l.model = modelID
	l.calls++
	return llm.Transcript{Text: string(req.Audio.Data), Usage: chat.Usage{TotalTokens: 7}}, nil
}

func speech(words ...string) []chat.File {
	var files []chat.File
	for _, w := range words {
		files = append(files, chat.File{Part: chat.Part{Kind: chat.Audio, MediaType: "audio/wav", Name: "a.wav", Data: []byte(w)}, Spoken: true})
	}
	return files
}

func handleSpeech(t *testing.T, f *manifest.Formation, ears *listener, script *llmtest.Script, in overlord.Input) (chat.Answer, error) {
	t.Helper()
	cfg := overlord.Config{Formation: f, Models: script.Router(), Now: time.Now, Log: zerolog.Nop()}
	if ears != nil {
		cfg.Speech = ears
	}
	if in.Journal == nil {
		in.Journal = journal{}
	}
	return overlord.New(cfg).Handle(t.Context(), in, func(chat.Event) error { return nil })
}

func listening() *manifest.Formation {
	f := team()
	f.LLM.Models = append(f.LLM.Models, manifest.Model{Capability: manifest.CapabilityAudio, ID: "test/ears"})
	return f
}

func TestHandle_WhatWasSaidIsTheMessage(t *testing.T) {
	t.Parallel()
	ears := &listener{}
	script := llmtest.NewScript(t,
		llmtest.Step{Purpose: "routing", Last: "will it\nrain?", Text: `{"agent_id":"coder","reason":"x"}`},
		llmtest.Step{Purpose: "agent", Last: "will it\nrain?", Text: "Yes.", Usage: chat.Usage{TotalTokens: 1}})
	j := journal{}
	answer, err := handleSpeech(t, listening(), ears, script, overlord.Input{Files: speech("will it", " ", "rain?"), Journal: j})
	if err != nil {
		t.Fatal(err)
	}
	if answer.Heard != "will it\nrain?" || answer.Usage.TotalTokens != 22 || ears.model != "test/ears" {
		t.Errorf("answer = %+v by %s", answer, ears.model)
	}
	if last := script.Asked()[1].Messages; len(last[len(last)-1].Parts) != 0 {
		t.Error("the recording went to the agent's model too")
	}
}

func TestHandle_ARecordingIsHeardOnce(t *testing.T) {
	t.Parallel()
	ears := &listener{}
	script := llmtest.NewScript(t, llmtest.Step{Purpose: "agent", Last: "from the journal", Text: "Yes."})
	j := journal{"heard": []byte(`{"text":"from the journal","usage":{"total_tokens":3}}`)}
	answer, err := handleSpeech(t, listening(), ears, script, overlord.Input{Files: speech("new"), AgentID: "coder", Journal: j})
	if err != nil || ears.calls != 0 || answer.Heard != "from the journal" || answer.Usage.TotalTokens != 3 {
		t.Errorf("answer = %+v, %v after %d calls", answer, err, ears.calls)
	}
}

func TestHandle_SaysWhyNothingWasHeard(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		formation *manifest.Formation
		files     []chat.File
		want      string
	}{
		"silence":  {listening(), speech(" ", ""), "no words were understood"},
		"no model": {team(), speech("hello"), "add one to llm.models"},
	} {
		_, err := handleSpeech(t, tt.formation, &listener{}, llmtest.NewScript(t), overlord.Input{Files: tt.files})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHandle_RoutesByTheNamesOfFilesToo(t *testing.T) {
	t.Parallel()
	script := llmtest.NewScript(t,
		llmtest.Step{Purpose: "routing", Last: "[files: main.go (document)]", Text: `{"agent_id":"coder","reason":"x"}`},
		llmtest.Step{Purpose: "agent", Last: "package main", Text: "Go."})
	files := []chat.File{{Part: chat.Part{Kind: chat.Document, MediaType: "text/plain", Name: "main.go"}, Text: "package main"}}
	answer, err := handleSpeech(t, team(), nil, script, overlord.Input{Files: files})
	if err != nil || answer.AgentID != "coder" || answer.Heard != "" {
		t.Errorf("answer = %+v, %v", answer, err)
	}
}

package provider_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/provider"
	"github.com/agentformation/service/test/fakellm"
)

const transcribeKey = "sk-transcribe-0123456789"

func transcriber(t *testing.T, make llm.Provider, base string) llm.Transcriber {
	t.Helper()
	m, err := make(llm.Endpoint{Name: "p", BaseURL: base, Key: transcribeKey, Transport: transport(t)})
	if err != nil {
		t.Fatal(err)
	}
	tr, ok := m.(llm.Transcriber)
	if !ok {
		t.Fatalf("%T is no Transcriber", m)
	}
	return tr
}

func recording(mediaType string) llm.TranscribeRequest {
	return llm.TranscribeRequest{Model: "whisper-1", Audio: chat.Part{Kind: chat.Audio, MediaType: mediaType, Data: []byte("sound")}}
}

func TestTranscribe_OpenAITakesAForm(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{Key: transcribeKey})
	fake.Add(fakellm.Rule{Purpose: "transcription", Model: "whisper-1", Reply: fakellm.Reply{Text: "hello there"}})
	tr := transcriber(t, provider.NewOpenAI, fake.URL())
	for mediaType, name := range map[string]string{"audio/mpeg": "mp3", "audio/mp4": "m4a", "audio/wav": "wav", "audio/webm": "webm", "audio/x-flac": "flac"} {
		req := recording(mediaType)
		req.Language = "de"
		got, err := tr.Transcribe(t.Context(), req)
		if err != nil {
			t.Fatalf("%s: %v", mediaType, err)
		}
		want := llm.Transcript{Text: "hello there", Model: "whisper-1", Usage: chat.Usage{PromptTokens: 5, CompletionTokens: 2, TotalTokens: 7}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: transcript (-want +got):\n%s", mediaType, diff)
		}
		calls := fake.Calls()
		last := calls[len(calls)-1]
		if last.User != "recording."+name+" 5" || !strings.Contains(last.Body, "name=\"language\"\r\n\r\nde\r\n") {
			t.Errorf("%s: asked %q with %q", mediaType, last.User, last.Body)
		}
	}
}

func TestTranscribe_GoogleIsAskedInWords(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{Key: transcribeKey})
	fake.Add(fakellm.Rule{User: "word for word.*The language is de", Reply: fakellm.Reply{Text: " hello there\n"}})
	req := recording("audio/wav")
	req.Model, req.Language = "gemini-x", "de"
	got, err := transcriber(t, provider.NewGoogle, fake.Root()).Transcribe(t.Context(), req)
	if err != nil || got.Text != "hello there" || got.Usage.TotalTokens == 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if parts := fake.Calls()[0].Parts; len(parts) != 1 || parts[0] != "audio audio/wav 5" {
		t.Errorf("the model was shown %q", parts)
	}
}

func TestTranscribe_FailuresAreClassed(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		reply fakellm.Reply
		want  llm.Reason
	}{
		"overload": {fakellm.Reply{Status: 429, Message: "slow down"}, llm.Throttled},
		"refusal":  {fakellm.Reply{Status: 400, Message: "not for " + transcribeKey}, llm.Refused},
		"garbage":  {fakellm.Reply{Body: `{"tex":`}, llm.Garbled},
		"no text":  {fakellm.Reply{Body: `{"usage":{}}`}, llm.Garbled},
		"reset":    {fakellm.Reply{Reset: true}, llm.Broken},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := fakellm.Start(t, fakellm.Options{})
			fake.Add(fakellm.Rule{Purpose: "transcription", Reply: tt.reply})
			_, err := transcriber(t, provider.NewOpenAI, fake.URL()).Transcribe(t.Context(), recording("audio/wav"))
			failed, ok := errors.AsType[*llm.CallError](err)
			if !ok || failed.Reason != tt.want || strings.Contains(err.Error(), transcribeKey) {
				t.Errorf("got %v, want reason %v", err, tt.want)
			}
		})
	}
	fake := fakellm.Start(t, fakellm.Options{})
	_, err := transcriber(t, provider.NewOllama, fake.URL()).Transcribe(t.Context(), recording("audio/wav"))
	if err == nil || !strings.Contains(err.Error(), "p turns no recordings into text") || fake.Count() != 0 {
		t.Errorf("Ollama: %v after %d calls", err, fake.Count())
	}
}

package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/test/fakellm"
)

// json checks each way of asking for JSON.
func (s Suite) json(t *testing.T) {
	t.Parallel()
	t.Run("of a schema", func(t *testing.T) {
		both(t, func(t *testing.T, deltas bool) {
			m, fake := s.start(t)
			req := ask("Message:\nHow long does a sourdough loaf bake?", deltas)
			req.Messages[0].Content = "Agents:\n\n- agent_id: baker\n  description: bread, loaves and ovens\n\n- agent_id: smith\n  description: iron and steel"
			req.Schema = json.RawMessage(`{"type":"object","properties":{"agent_id":{"type":"string","enum":["smith","baker"]}},"required":["agent_id"],"additionalProperties":false}`)
			req.SchemaName, req.Purpose = "route", "routing"
			texts, last, err := read(t, m, req)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(texts, ""); got != `{"agent_id":"baker"}` || last.Finish != "stop" || len(last.Calls) != 0 {
				t.Errorf("the reply to a schema is %q, finish %q, calls %v", got, last.Finish, last.Calls)
			}
			if calls := fake.Calls(); len(calls) != 1 || calls[0].Purpose != "route" {
				t.Errorf("the server saw %+v", calls)
			}
		})
	})
	t.Run("of an open schema", func(t *testing.T) {
		both(t, func(t *testing.T, deltas bool) {
			m, _ := s.start(t)
			req := ask("go", deltas)
			req.Schema, req.SchemaName = json.RawMessage(`{"type":"object","properties":{"sure":{"type":"boolean"}}}`), "verdict"
			if texts, _, err := read(t, m, req); err != nil || strings.Join(texts, "") != `{"sure":false}` {
				t.Errorf("the reply is %q, error %v", texts, err)
			}
		})
	})
	t.Run("of no shape", func(t *testing.T) {
		both(t, func(t *testing.T, deltas bool) {
			m, _ := s.start(t)
			req := ask("go", deltas)
			req.JSON = true
			texts, last, err := read(t, m, req)
			if err != nil || !json.Valid([]byte(strings.Join(texts, ""))) || last.Finish != "stop" {
				t.Errorf("the reply is %q, finish %q, error %v", texts, last.Finish, err)
			}
		})
	})
	t.Run("beside tools", func(t *testing.T) {
		t.Parallel()
		m, fake := s.start(t, fakellm.Rule{Reply: fakellm.Reply{Text: `{"a":1}`}})
		req := ask("go", false)
		req.JSON, req.Tools = true, []chat.ToolSpec{{Name: "noop"}}
		texts, last, err := read(t, m, req)
		if err != nil || strings.Join(texts, "") != `{"a":1}` || last.Finish != "stop" {
			t.Errorf("the reply is %q, finish %q, error %v", texts, last.Finish, err)
		}
		if calls := fake.Calls(); len(calls) != 1 || !strings.Contains(calls[0].Body, "JSON") && !strings.Contains(calls[0].Body, "json") {
			t.Errorf("nothing asked for JSON: %+v", calls)
		}
	})
}

// media checks that each kind of part arrives byte for byte, or is refused
// before anything is sent.
func (s Suite) media(t *testing.T) {
	t.Parallel()
	for _, p := range []chat.Part{
		{Kind: chat.Image, MediaType: "image/png", Name: "a.png", Data: []byte("\x89PNG\r\n\x1a\n\x00\xff")},
		{Kind: chat.Audio, MediaType: "audio/wav", Name: "a.wav", Data: []byte("RIFF\x00\x01")},
		{Kind: chat.Video, MediaType: "video/mp4", Name: "a.mp4", Data: []byte("\x00\x00ftyp")},
		{Kind: chat.Document, MediaType: "application/pdf", Name: "a.pdf", Data: []byte("%PDF-1.7\n\xe2")},
	} {
		t.Run(string(p.Kind), func(t *testing.T) {
			both(t, func(t *testing.T, deltas bool) {
				m, fake := s.start(t)
				req := ask("what is this?", deltas)
				req.Messages[1].Parts = []chat.Part{p}
				texts, _, err := read(t, m, req)
				if !slices.Contains(s.Media, p.Kind) {
					var failed *llm.CallError
					if !errors.As(err, &failed) || failed.Reason != llm.Refused || !strings.Contains(failed.Detail, string(p.Kind)) || fake.Count() != 0 {
						t.Errorf("error %v after %d calls, want a refusal before the first", err, fake.Count())
					}
					return
				}
				if got := strings.Join(texts, ""); err != nil || got != "Fake answer to: what is this?" {
					t.Fatalf("text %q, error %v", got, err)
				}
				want := []string{fmt.Sprintf("%s %s %d", p.Kind, p.MediaType, len(p.Data))}
				if diff := cmp.Diff(want, fake.Calls()[0].Parts); diff != "" {
					t.Errorf("parts (-want +got):\n%s", diff)
				}
			})
		})
	}
	t.Run("several without a text", func(t *testing.T) {
		t.Parallel()
		m, fake := s.start(t)
		req := ask("", false)
		image := chat.Part{Kind: chat.Image, MediaType: "image/jpeg", Data: []byte("a")}
		req.Messages[1].Parts = []chat.Part{image, image}
		if _, _, err := read(t, m, req); err != nil || len(fake.Calls()[0].Parts) != 2 {
			t.Errorf("parts %v, error %v", fake.Calls(), err)
		}
	})
}

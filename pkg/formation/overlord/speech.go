package overlord

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/agent"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/manifest"
)

// stepHeard is the journal entry of what was said in recordings.
const stepHeard = "heard"

// heard is a message that was spoken.
type heard struct {
	Text  string     `json:"text"`
	Usage chat.Usage `json:"usage"`
}

// hear turns the recordings that are the message into its text, before anybody
// decides who answers: that depends on the words.
func (o *Overlord) hear(ctx context.Context, in *Input, sink chat.Sink) (heard, error) {
	var recordings, others []chat.File
	for _, f := range in.Files {
		if f.Spoken {
			recordings = append(recordings, f)
		} else {
			others = append(others, f)
		}
	}
	if len(recordings) == 0 {
		return heard{}, nil
	}
	said, err := o.transcribe(ctx, *in, recordings, sink)
	if err != nil {
		return heard{}, err
	}
	in.Files = others
	in.Message = strings.TrimSpace(in.Message + "\n" + said.Text)
	said.Text = in.Message
	return said, nil
}

func (o *Overlord) transcribe(ctx context.Context, in Input, recordings []chat.File, sink chat.Sink) (said heard, err error) {
	if payload, ok := in.Journal.Done(stepHeard); ok {
		if err := json.Unmarshal(payload, &said); err != nil {
			return heard{}, fmt.Errorf("decode journalled transcript: %w", err)
		}
		return said, nil
	}
	if err := sink(chat.Event{Type: chat.Progress, Stage: chat.StageInit, Content: "Listening to the recording"}); err != nil {
		return heard{}, err
	}
	use, media, ok := SpeechModel(o.cfg.Formation, in.AgentID)
	if !ok || o.cfg.Speech == nil {
		return heard{}, fault.New(fault.Failed, "", "the formation has no audio model: add one to llm.models")
	}
	who := llm.Account{Agent: in.AgentID, User: in.UserID, Request: in.RequestID}
	var texts []string
	for i := range recordings {
		out, err := o.cfg.Speech.Transcribe(ctx, use.ID, agent.Hearing(recordings[i].Part, use, media.Audio, who))
		if cause := context.Cause(ctx); cause != nil {
			return heard{}, cause
		}
		if err != nil {
			return heard{}, err
		}
		if text := strings.TrimSpace(out.Text); text != "" {
			texts = append(texts, text)
		}
		said.Usage = said.Usage.Add(out.Usage)
	}
	if len(texts) == 0 {
		return heard{}, fault.New(fault.Failed, "", "no words were understood in the recording")
	}
	said.Text = strings.Join(texts, "\n")
	payload, err := json.Marshal(said)
	if err != nil {
		return heard{}, fmt.Errorf("encode transcript: %w", err)
	}
	return said, in.Journal.Save(ctx, stepHeard, payload)
}

// SpeechModel returns the model that turns spoken messages into text, with the
// limits of its recordings: that of the named agent, if it has one, or the
// formation's.
func SpeechModel(f *manifest.Formation, agentID string) (manifest.ModelUse, manifest.Media, bool) {
	var own []manifest.Model
	if a := f.Agent(agentID); a != nil {
		own = a.LLM.Models
	}
	return f.LLM.For(manifest.CapabilityAudio, own)
}

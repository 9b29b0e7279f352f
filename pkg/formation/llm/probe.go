package llm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
)

// Ability is what a model is asked to show by a probe.
type Ability string

// The abilities. Every model that is shown something beside text answers text,
// too, so that is what is asked of it.
const (
	AnswersText  Ability = "text"
	MakesVectors Ability = "embedding"
	HearsSpeech  Ability = "audio"
)

// What a probe asks. Reasoning models think before the shortest answer and some
// refuse a limit that they cannot think within; the others stop after a word.
const (
	probeText    = "Reply with the word ok."
	probeTokens  = 256
	probeTimeout = 10 * time.Second
)

// Probed is what a probe found out.
type Probed struct {
	Dimension int // of the vectors; 0 for a model that makes none
}

// Describer tells the dimension of local models without embedding anything.
// Config.Local may implement it.
type Describer interface {
	Dimension(ctx context.Context, model string) (int, error)
}

// errUnable is in the chain of faults of models that cannot do what they are
// declared for.
var errUnable = errors.New("the model is not able to do that")

func unable(message string) error { return fault.Wrap(fault.Failed, "", message, errUnable) }

// Unusable tells of an error of Probe that the model can't work as it is
// declared: the provider has no such model, or what answers is none. Any other
// error may pass without a change of the files.
func Unusable(err error) bool {
	failed, ok := errors.AsType[*CallError](err)
	return errors.Is(err, errUnable) || ok && (failed.Reason == Missing || failed.Reason == Garbled)
}

// Probe makes one small call to the model behind modelID, an id or an alias. It
// takes at most ten seconds, and a second call when the first reply could not be
// read. Local models only embed and are not waited for longer than that either.
func (r *Router) Probe(ctx context.Context, modelID string, ability Ability) (out Probed, err error) {
	limited, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	for range 2 {
		out, err = r.probe(limited, modelID, ability)
		if failed, ok := errors.AsType[*CallError](err); !ok || failed.Reason != Garbled {
			break
		}
	}
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = (&CallError{Reason: TimedOut, Detail: "silent for " + probeTimeout.String(), Cause: err}).asFault(modelID)
	}
	return out, err
}

func (r *Router) probe(ctx context.Context, modelID string, ability Ability) (Probed, error) {
	switch ability {
	case MakesVectors:
		return r.probeVectors(ctx, modelID)
	case HearsSpeech:
		_, err := r.Transcribe(ctx, modelID, TranscribeRequest{
			Audio: chat.Part{Kind: chat.Audio, MediaType: "audio/wav", Name: "probe.wav", Data: silentWAV()},
		})
		return Probed{}, err
	default:
		most := probeTokens
		_, err := Collect(r.Stream(ctx, modelID, Request{
			Messages: []chat.Message{{Role: chat.User, Content: probeText}},
			Settings: Settings{MaxTokens: &most}, Fresh: true, Purpose: "probe",
		}), nil)
		return Probed{}, err
	}
}

func (r *Router) probeVectors(ctx context.Context, modelID string) (Probed, error) {
	t, err := r.split(modelID)
	if err != nil {
		return Probed{}, err
	}
	if d, ok := r.cfg.Local.(Describer); ok && t.provider == localProvider {
		dimension, err := d.Dimension(ctx, t.model)
		if err != nil {
			return Probed{}, fault.Wrap(fault.KindOf(err), fault.NameOf(err), "model "+t.id+": "+fault.From(err).Message, err)
		}
		return Probed{Dimension: dimension}, nil
	}
	out, err := r.Embed(ctx, modelID, EmbedRequest{Texts: []string{probeText}})
	if err != nil {
		return Probed{}, err
	}
	return Probed{Dimension: len(out.Vectors[0])}, nil
}

// silentWAV is the shortest recording that providers take, and a little more:
// 0.2 s of silence, 16 bits at 8 kHz.
func silentWAV() []byte {
	const rate, width = 8000, 2
	size := uint32(rate * width / 5)
	var b bytes.Buffer
	for _, field := range []any{
		[4]byte{'R', 'I', 'F', 'F'},
		36 + size,
		[8]byte{'W', 'A', 'V', 'E', 'f', 'm', 't', ' '},
		uint32(16), uint16(1), uint16(1), uint32(rate), uint32(rate * width), uint16(width), uint16(8 * width),
		[4]byte{'d', 'a', 't', 'a'},
		size, make([]byte, size),
	} {
		_ = binary.Write(&b, binary.LittleEndian, field) // a buffer takes everything
	}
	return b.Bytes()
}

package llm

import (
	"iter"
	"strings"
)

// Reply is a completion read to its end.
type Reply struct {
	Text string
	// Last is the Done chunk: calls, usage, finish reason and model.
	Last Chunk
	// Restarted tells that the stream broke and began anew at least once.
	Restarted bool
}

// Collect reads a completion to its end. Each piece of text is passed to
// onText as it comes, when onText is not nil; its error ends the call and is
// returned. Text from before a restart is not part of the reply.
func Collect(chunks iter.Seq2[Chunk, error], onText func(string) error) (Reply, error) {
	var reply Reply
	var pieces []string
	for chunk, err := range chunks {
		if err != nil {
			return Reply{}, err
		}
		if chunk.Restarted {
			reply.Restarted = true
			pieces = pieces[:0]
		}
		if chunk.Text != "" {
			pieces = append(pieces, chunk.Text)
			if onText != nil {
				if err := onText(chunk.Text); err != nil {
					return Reply{}, err
				}
			}
		}
		if chunk.Done {
			reply.Last = chunk
		}
	}
	reply.Text = strings.Join(pieces, "")
	return reply, nil
}

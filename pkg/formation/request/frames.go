package request

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/agentformation/service/pkg/formation/store"
)

// Frame is one frame of a turn's stream. Ids count from 1 without gaps.
type Frame struct {
	ID    uint64
	Event string // "" for a token frame, else ui, error or done
	Data  []byte // JSON object; a token frame without its "token" wrapper
}

// AppendFrames stores consecutive frames as one row in the caller's commit: a
// row per batch costs a tenth of a row per frame.
func AppendFrames(tx *store.Tx, requestID string, frames []Frame) error {
	if len(frames) == 0 {
		return nil
	}
	size := 0
	for i := range frames {
		size += len(frames[i].Event) + len(frames[i].Data) + 2*binary.MaxVarintLen32
	}
	blob := make([]byte, 0, size)
	for i := range frames {
		blob = appendChunk(appendChunk(blob, frames[i].Event), frames[i].Data)
	}
	if _, err := tx.Exec(`INSERT INTO stream_events (request_id, first_id, last_id, frames) VALUES (?, ?, ?, ?)`,
		requestID, int64(frames[0].ID), int64(frames[len(frames)-1].ID), blob); err != nil {
		return fmt.Errorf("store frames of %s: %w", requestID, err)
	}
	return nil
}

// Frames returns the stored frames with ids above after, in order.
func Frames(ctx context.Context, db *store.DB, requestID string, after uint64) ([]Frame, error) {
	rows, err := db.Query(ctx, `SELECT first_id, frames FROM stream_events
		WHERE request_id = ? AND last_id > ? ORDER BY first_id`, requestID, int64(min(after, 1<<62)))
	if err != nil {
		return nil, fmt.Errorf("read frames of %s: %w", requestID, err)
	}
	defer rows.Close()
	var out []Frame
	for rows.Next() {
		var first uint64
		var blob []byte
		if err := rows.Scan(&first, &blob); err != nil {
			return nil, fmt.Errorf("read frames of %s: %w", requestID, err)
		}
		for id := first; len(blob) > 0; id++ {
			var f Frame
			if f, blob, err = cutFrame(blob); err != nil {
				return nil, fmt.Errorf("read frame %d of %s: %w", id, requestID, err)
			}
			if f.ID = id; id > after {
				out = append(out, f)
			}
		}
	}
	return out, rows.Err()
}

var errShortFrame = errors.New("frame is cut short")

func appendChunk[T string | []byte](dst []byte, chunk T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(chunk))), chunk...)
}

func cutChunk(blob []byte) (chunk, rest []byte, err error) {
	n, size := binary.Uvarint(blob)
	if size <= 0 || n > uint64(len(blob)-size) {
		return nil, nil, errShortFrame
	}
	end := size + int(n)
	return blob[size:end], blob[end:], nil
}

func cutFrame(blob []byte) (f Frame, rest []byte, err error) {
	event, rest, err := cutChunk(blob)
	if err != nil {
		return Frame{}, nil, err
	}
	data, rest, err := cutChunk(rest)
	if err != nil {
		return Frame{}, nil, err
	}
	return Frame{Event: string(event), Data: data}, rest, nil
}

package turn

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
)

// encoder writes the JSON objects of a turn's frames. A frame per model chunk
// is the most frequent thing this program makes, so they are appended by hand
// onto a beginning that is the same for the whole turn.
type encoder struct {
	rec  *request.Record
	now  func() time.Time
	head []byte // {"request_id":…,"user_id":…,"session_id":…
}

func (e *encoder) open(kind, content string, room int) []byte {
	if e.head == nil {
		h := appendString([]byte(`{"request_id":`), e.rec.ID)
		h = appendString(append(h, `,"user_id":`...), e.rec.UserID)
		e.head = appendString(append(h, `,"session_id":`...), e.rec.SessionID)
	}
	b := make([]byte, 0, len(e.head)+len(content)+room)
	b = append(b, e.head...)
	b = appendString(append(b, `,"type":`...), kind)
	b = appendString(append(b, `,"content":`...), content)
	b = append(b, `,"timestamp":`...)
	return strconv.AppendInt(b, e.now().UnixMilli(), 10)
}

// event is the object of a progress, planning or content frame.
func (e *encoder) event(ev chat.Event) []byte {
	b := e.open(string(ev.Type), ev.Content, 120+len(ev.Stage)+len(ev.ToolName))
	if ev.Stage != "" {
		b = appendString(append(b, `,"stage":`...), ev.Stage)
	}
	if ev.ToolName != "" {
		b = appendString(append(b, `,"tool_name":`...), ev.ToolName)
	}
	return append(b, '}')
}

// closing is what the last token frame says.
type closing struct {
	content, status string
	took            time.Duration
	discontinuous   bool // the deltas don't add up to content
	asks            bool // content is a question
}

// completed is the object of the last token frame.
func (e *encoder) completed(c closing) []byte {
	b := e.open(string(chat.Completed), c.content, 200)
	b = appendString(append(b, `,"status":`...), c.status)
	b = append(b, `,"processing_time_ms":`...)
	b = strconv.AppendInt(b, c.took.Milliseconds(), 10)
	if c.asks {
		b = append(b, `,"requires_user_response":true`...)
	}
	if c.discontinuous {
		b = append(b, `,"stream_discontinuity":true`...)
	}
	return append(b, '}')
}

// maxErrorChars bounds the text of an error frame (reference runtime.md 5.1).
const maxErrorChars = 200

// failed is the object of an error frame: one line of text, the class that the
// type of an error reply would be, and the code that it would have.
func (e *encoder) failed(message, class, code string) []byte {
	line := make([]rune, 0, maxErrorChars)
	for _, r := range message {
		if len(line) == maxErrorChars {
			break
		}
		if r == '\n' || r == '\r' {
			r = ' '
		}
		line = append(line, r)
	}
	b := appendString([]byte(`{"error":`), string(line))
	b = appendString(append(b, `,"type":`...), class)
	b = appendString(append(b, `,"code":`...), code)
	return append(b, '}')
}

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD, so
// that every reader can decode the frame.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	begin := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r != utf8.RuneError || size > 1 {
				i += size
				continue
			}
			dst = append(append(dst, s[begin:i]...), "\ufffd"...)
			i++
			begin = i
			continue
		}
		dst = append(dst, s[begin:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		begin = i
	}
	return append(append(dst, s[begin:]...), '"')
}

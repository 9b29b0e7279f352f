package provider

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/agentformation/service/pkg/formation/llm"
)

const (
	maxErrorBody = 64 << 10 // bytes read of an error's body
	maxDetail    = 300      // bytes shown of a provider's message
)

// failure classifies a call that did not begin to answer. The SDK's own error
// is not used beyond its cause: it loses the status when a body is not in
// OpenAI's shape, as those of proxies are not. The second result is what the
// provider said, whole and for no other eyes.
func (o *openAI) failure(res *http.Response, err error) (*llm.CallError, string) {
	if res == nil {
		return &llm.CallError{Reason: llm.Broken, Detail: connectionDetail(err), Cause: err}, ""
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	_ = res.Body.Close()
	said := readError(body)
	failed := &llm.CallError{
		Reason:     reasonOf(res.StatusCode, said),
		Status:     res.StatusCode,
		RetryAfter: retryAfter(res.Header, time.Now()),
		Detail:     said.message,
		Cause:      err,
	}
	if res.StatusCode == http.StatusUnauthorized {
		failed.Detail = "" // it often quotes a part of the key
	}
	if res.StatusCode < http.StatusBadRequest {
		failed.Detail = "the endpoint does not answer like a model; check llm.endpoints." + o.name
	}
	o.scrub(failed)
	return failed, said.code + " " + said.param + " " + said.message
}

// scrub shortens the provider's words to one line without the key.
func (o *openAI) scrub(failed *llm.CallError) {
	if o.key != "" {
		failed.Detail = strings.ReplaceAll(failed.Detail, o.key, "***")
	}
	failed.Detail = strings.Join(strings.Fields(strings.ToValidUTF8(failed.Detail, "\ufffd")), " ")
	if len(failed.Detail) > maxDetail {
		cut := maxDetail
		for !utf8.RuneStart(failed.Detail[cut]) {
			cut--
		}
		failed.Detail = failed.Detail[:cut] + "…"
	}
}

func (o *openAI) scrubbed(err error) error {
	if failed, ok := errors.AsType[*llm.CallError](err); ok {
		o.scrub(failed)
	}
	return err
}

// said is what an error body tells.
type said struct {
	message string
	code    string
	kind    string
	param   string
}

// readError reads the error objects of OpenAI and of the servers and proxies
// that have their own: {"error":{…}}, {"error":"…"}, {"message":"…"}, {"detail":…}.
func readError(body []byte) said {
	var e said
	s := scanner{b: body}
	s.object(func(key []byte) {
		switch string(key) {
		case "error":
			if s.peek() == '"' {
				e.message = s.text()
			} else {
				s.object(func(key []byte) { e.field(&s, key) })
			}
		case "detail":
			if s.peek() == '"' {
				e.message = s.text()
			} else {
				e.message = string(s.raw())
			}
		default:
			e.field(&s, key)
		}
	})
	return e
}

func (e *said) field(s *scanner, key []byte) {
	switch string(key) {
	case "message":
		e.message = s.text()
	case "code":
		e.code = s.text()
	case "type":
		e.kind = s.text()
	case "param":
		e.param = s.text()
	default:
		s.skip()
	}
}

func reasonOf(status int, e said) llm.Reason {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return llm.Rejected
	case status == http.StatusTooManyRequests && e.exhausted():
		return llm.Exhausted
	case status == http.StatusTooManyRequests:
		return llm.Throttled
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed,
		status == http.StatusNotImplemented, status < http.StatusBadRequest:
		return llm.Missing
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status >= http.StatusInternalServerError:
		return llm.Overloaded
	default:
		return llm.Refused
	}
}

func (e said) exhausted() bool {
	return e.code == "insufficient_quota" || e.kind == "insufficient_quota"
}

// inStream classifies an error object inside a stream, which has no status.
func (e said) inStream() *llm.CallError {
	reason := llm.Overloaded
	switch {
	case e.exhausted():
		reason = llm.Exhausted
	case strings.Contains(e.code+e.kind, "rate_limit"):
		reason = llm.Throttled
	case e.kind == "invalid_request_error":
		reason = llm.Refused
	}
	return &llm.CallError{Reason: reason, Detail: e.message}
}

// retryAfter reads how long the provider wants to be left alone; 0 when it
// does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		return seconds(ms / 1000)
	}
	value := h.Get("Retry-After")
	if s, err := strconv.ParseFloat(value, 64); err == nil {
		return seconds(s)
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// seconds converts within the range of a day, which is as good as never.
func seconds(s float64) time.Duration {
	if math.IsNaN(s) || s <= 0 {
		return 0
	}
	return time.Duration(math.Min(s, 24*3600) * float64(time.Second))
}

// streamFailure classifies an error in the middle of a reply.
func streamFailure(err error) error {
	if errors.Is(err, errReplyTooLong) || errors.Is(err, errEventTooLong) {
		return &llm.CallError{Reason: llm.Garbled, Detail: err.Error(), Cause: err}
	}
	return &llm.CallError{Reason: llm.Broken, Detail: connectionDetail(err), Cause: err}
}

// connectionDetail names the fault without the addresses in it.
func connectionDetail(err error) string {
	var dns *net.DNSError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "the call was ended"
	case errors.As(err, &dns):
		return "the host name is not known"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed early"
	}
	return ""
}

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

	refusedDetail = "connection refused"
)

// peer is the other side of an adapter: what its errors name and hide.
type peer struct {
	name string // in llm.endpoints and llm.api_keys
	key  string
	hide func(string) string // nil: nothing but the key
}

func newPeer(ep llm.Endpoint) peer { return peer{name: ep.Name, key: string(ep.Key), hide: ep.Hide} }

// failure classifies a call that did not begin to answer; a nil res is one that
// got no reply. The SDKs' own errors are not used beyond their cause: they lose
// the status when a body is not in their shape, as those of proxies are not.
// The second result is what the provider said, whole and for no other eyes.
func (p *peer) failure(res *http.Response, err error) (*llm.CallError, said) {
	if res == nil {
		return p.unreached(err), said{}
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxErrorBody))
	_ = res.Body.Close()
	e := readError(body)
	return p.refusal(refusal{status: res.StatusCode, header: res.Header, said: e, cause: err}), e
}

func (p *peer) unreached(err error) *llm.CallError {
	return &llm.CallError{Reason: llm.Broken, Detail: connectionDetail(err), Cause: err}
}

// refusal is a reply that is no completion.
type refusal struct {
	status int
	header http.Header
	said   said
	cause  error
}

func (p *peer) refusal(r refusal) *llm.CallError {
	failed := &llm.CallError{
		Reason:     reasonOf(r.status, r.said),
		Status:     r.status,
		RetryAfter: retryAfter(r.header, time.Now()),
		Detail:     r.said.message,
		Cause:      r.cause,
	}
	if r.status == http.StatusUnauthorized {
		failed.Detail = "" // it often quotes a part of the key
	}
	if r.status < http.StatusBadRequest {
		failed.Detail = "the endpoint does not answer like a model; check llm.endpoints." + p.name
	}
	p.scrub(failed)
	return failed
}

// scrub shortens the provider's words to one line without the key and other
// secrets, which it looks for first: one that is cut is not known any more.
func (p *peer) scrub(failed *llm.CallError) {
	if p.key != "" {
		failed.Detail = strings.ReplaceAll(failed.Detail, p.key, "***")
	}
	if p.hide != nil {
		failed.Detail = p.hide(failed.Detail)
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

func (p *peer) scrubbed(err error) error {
	if failed, ok := errors.AsType[*llm.CallError](err); ok {
		p.scrub(failed)
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

// all is everything that was said, to be searched for a field's name.
func (e said) all() string { return e.code + " " + e.param + " " + e.message }

// readError reads the error objects of the vendors and of the servers and
// proxies that have their own: {"error":{…}}, {"error":"…"}, {"message":"…"},
// {"detail":…}. What an inner object says wins.
func readError(body []byte) said {
	var outer, inner said
	s := scanner{b: body}
	s.object(func(key []byte) {
		switch string(key) {
		case "error":
			if s.peek() == '"' {
				inner.message = s.text()
			} else {
				s.object(func(key []byte) { inner.field(&s, key) })
			}
		case "detail":
			if s.peek() == '"' {
				outer.message = s.text()
			} else {
				outer.message = string(s.raw())
			}
		default:
			outer.field(&s, key)
		}
	})
	if inner != (said{}) {
		return inner
	}
	return outer
}

func (e *said) field(s *scanner, key []byte) {
	switch string(key) {
	case "message":
		e.message = s.text()
	case "code":
		e.code = s.text()
	case "type", "status": // of OpenAI and Anthropic, of Google
		e.kind = s.text()
	case "param":
		e.param = s.text()
	default:
		s.skip()
	}
}

func reasonOf(status int, e said) llm.Reason {
	switch {
	case e.exhausted(), status == http.StatusPaymentRequired:
		return llm.Exhausted
	case status == http.StatusUnauthorized, status == http.StatusForbidden, e.badKey():
		return llm.Rejected
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

// exhausted knows an empty account by the words of OpenAI and Anthropic.
func (e said) exhausted() bool {
	return e.code == "insufficient_quota" || e.kind == "insufficient_quota" || e.kind == "billing_error" ||
		strings.Contains(e.message, "credit balance is too low")
}

// badKey knows a wrong key that Google answers with status 400.
func (e said) badKey() bool {
	return e.kind == "INVALID_ARGUMENT" && strings.Contains(e.message, "API key not valid")
}

// inStream classifies an error object inside a stream, which has no status.
func (e said) inStream() *llm.CallError {
	reason := llm.Overloaded
	switch e.kind {
	case "invalid_request_error", "request_too_large", "INVALID_ARGUMENT", "FAILED_PRECONDITION":
		reason = llm.Refused
	case "authentication_error", "permission_error", "PERMISSION_DENIED", "UNAUTHENTICATED":
		reason = llm.Rejected
	case "not_found_error", "NOT_FOUND":
		reason = llm.Missing
	case "RESOURCE_EXHAUSTED":
		reason = llm.Throttled
	}
	switch {
	case e.exhausted():
		reason = llm.Exhausted
	case strings.Contains(e.code+e.kind, "rate_limit"):
		reason = llm.Throttled
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
		return refusedDetail
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed early"
	}
	return ""
}

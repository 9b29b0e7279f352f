package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/labstack/echo/v4"
	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/turn"
)

// turnOf is a turn whose frames come as a function says.
type turnOf func(ctx context.Context, emit func([]turn.Frame) error) error

func (f turnOf) Frames(ctx context.Context, _ uint64, emit func([]turn.Frame) error) error {
	return f(ctx, emit)
}
func (turnOf) Stopped() bool { return false }

func contextOf(w http.ResponseWriter, r *http.Request) echo.Context {
	return echo.New().NewContext(r, w)
}

func after(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestStream_FillsEverySecondOfSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rec := httptest.NewRecorder()
		a := &api{cfg: Config{Log: zerolog.Nop(), Redact: strings.TrimSpace}}
		err := a.streamChat(contextOf(rec, httptest.NewRequest(http.MethodPost, "/", nil)), turnOf(
			func(ctx context.Context, emit func([]turn.Frame) error) error {
				_ = after(ctx, 2500*time.Millisecond)
				_ = emit([]turn.Frame{{ID: 1, Data: []byte(`{"n":1}`)}, {ID: 2, Data: []byte(`{"n":2}`)}})
				_ = after(ctx, 999*time.Millisecond)
				_ = emit([]turn.Frame{{ID: 3, Data: []byte(`{"n":3}`)}})
				_ = after(ctx, 1001*time.Millisecond)
				return emit([]turn.Frame{{ID: 4, Event: "done", Data: doneFrame}})
			}), "r", 0)
		if err != nil {
			t.Fatal(err)
		}
		want := ": keepalive\n\n" + // at 20 ms
			": keepalive\n\n: keepalive\n\n" + // at 1.02 s and 2.02 s
			"id: 1\ndata: {\"token\":{\"n\":1}}\n\nid: 2\ndata: {\"token\":{\"n\":2}}\n\n" +
			"id: 3\ndata: {\"token\":{\"n\":3}}\n\n: keepalive\n\nid: 4\nevent: done\ndata: {\"finished\":true}\n\n"
		if diff := cmp.Diff(want, rec.Body.String()); diff != "" {
			t.Error(diff)
		}
		_ = after(t.Context(), time.Minute) // a timer that were left would write now
		if diff := cmp.Diff(want, rec.Body.String()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestStream_DoneComesLastWhateverHappens(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 300)
	for name, tt := range map[string]struct {
		frames func(context.Context, func([]turn.Frame) error) error
		want   string
	}{
		"no frames left": {
			func(context.Context, func([]turn.Frame) error) error { return nil },
			": keepalive\n\nevent: done\ndata: {\"finished\":true}\n\n",
		},
		"a fault": {
			func(context.Context, func([]turn.Frame) error) error {
				return fault.New(fault.Failed, "", "two\nlines "+long)
			},
			": keepalive\n\nevent: error\ndata: {\"error\":\"two lines " + long[:2*190] + "\",\"type\":\"error.processing\",\"code\":\"INTERNAL_ERROR\"}\n\n" +
				"event: done\ndata: {\"finished\":true}\n\n",
		},
		"an error": {
			func(context.Context, func([]turn.Frame) error) error { return errors.New("disk: secret") },
			": keepalive\n\nevent: error\ndata: {\"error\":\"internal error\",\"type\":\"error.internal\",\"code\":\"INTERNAL_ERROR\"}\n\n" +
				"event: done\ndata: {\"finished\":true}\n\n",
		},
	} {
		rec := httptest.NewRecorder()
		a := &api{cfg: Config{Log: zerolog.Nop(), Redact: strings.TrimSpace}}
		if err := a.streamChat(contextOf(rec, httptest.NewRequest(http.MethodPost, "/", nil)), turnOf(tt.frames), "r", 0); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, rec.Body.String()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// deafWriter fails every write after the first.
type deafWriter struct {
	*httptest.ResponseRecorder
	writes int
}

func (w *deafWriter) Write(p []byte) (int, error) {
	if w.writes++; w.writes > 1 {
		return 0, errors.New("connection reset")
	}
	return w.ResponseRecorder.Write(p)
}

func TestStream_ADeafClientEndsTheSubscriptionInSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rec := &deafWriter{ResponseRecorder: httptest.NewRecorder()}
		a := &api{cfg: Config{Log: zerolog.Nop(), Redact: strings.TrimSpace}}
		begin := time.Now()
		err := a.streamChat(contextOf(rec, httptest.NewRequest(http.MethodPost, "/", nil)), turnOf(
			func(ctx context.Context, _ func([]turn.Frame) error) error { return after(ctx, time.Hour) }), "r", 0)
		if took := time.Since(begin); err != nil || took != firstFlush+keepAlive {
			t.Errorf("got %v after %v", err, took)
		}
	})
}

func TestStream_ASubscriptionEndsAfterTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rec := httptest.NewRecorder()
		a := &api{cfg: Config{Log: zerolog.Nop(), Redact: strings.TrimSpace}}
		begin := time.Now()
		err := a.streamRequest(contextOf(rec, httptest.NewRequest(http.MethodGet, "/", nil)), turnOf(
			func(ctx context.Context, _ func([]turn.Frame) error) error { return after(ctx, time.Hour) }),
			0, streamMark{SessionID: "s", RequestID: "r"})
		if took := time.Since(begin); err != nil || took != 10*time.Minute || strings.Contains(rec.Body.String(), "stream_completed") {
			t.Errorf("got %v after %v", err, took)
		}
	})
}

func TestErrorWords_EveryKindHasItsRow(t *testing.T) {
	t.Parallel()
	want := map[int][2]string{
		400: {"INVALID_REQUEST", "error.validation"}, 401: {"UNAUTHORIZED", "error.authentication"},
		403: {"FORBIDDEN", "error.authorization"}, 404: {"RESOURCE_NOT_FOUND", "error.not_found"},
		405: {"METHOD_NOT_ALLOWED", "error.validation"}, 409: {"CONFLICT", "error.validation"},
		410: {"GONE", "error.validation"}, 413: {"PAYLOAD_TOO_LARGE", "error.validation"},
		422: {"INVALID_PARAMS", "error.validation"}, 429: {"RATE_LIMITED", "error.processing"},
		501: {"METHOD_NOT_FOUND", "error.validation"}, 503: {"SYSTEM_OVERLOAD", "error.processing"},
	}
	for kind := fault.Internal; kind <= fault.Canceled; kind++ {
		code, typ := errorWords(kind)
		if row, ok := want[kind.HTTPStatus()]; ok && row != [2]string{code, typ} {
			t.Errorf("%v: got %s %s, want %v", kind, code, typ, row)
		} else if !ok && code != "INTERNAL_ERROR" {
			t.Errorf("%v: got %s", kind, code)
		}
	}
	if _, typ := errorWords(fault.Internal); typ != "error.internal" {
		t.Errorf("internal: %s", typ)
	}
	if _, typ := errorWords(fault.Failed); typ != "error.processing" {
		t.Errorf("failed turn: %s", typ)
	}
}

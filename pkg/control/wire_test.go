package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/agentformation/service/pkg/fault"
	controlv1 "github.com/agentformation/service/proto/control/v1"
)

// fakeFormation answers with what the test set; a nil function is a plain success.
type fakeFormation struct {
	paused  bool
	load    func(context.Context, LoadRequest, func(string)) (Loaded, error)
	serve   func(context.Context) error
	drain   func(DrainRequest) (Drained, error)
	records func(context.Context, uint64, func(Record) error) error
	stops   int
}

func (f *fakeFormation) Hello(_ context.Context, req HelloRequest) (Hello, error) {
	return Hello{
		FormationID: req.FormationID, LaunchID: req.LaunchToken + "-launch", Build: "b1", PID: 42,
		StartedAt: time.UnixMilli(1234567), Serving: true, ControlVersion: Version,
	}, nil
}

func (f *fakeFormation) Load(ctx context.Context, req LoadRequest, progress func(string)) (Loaded, error) {
	return f.load(ctx, req, progress)
}

func (f *fakeFormation) Serve(ctx context.Context) error {
	if f.serve == nil {
		return nil
	}
	return f.serve(ctx)
}

func (f *fakeFormation) Health(context.Context) (Health, error) {
	return Health{Ready: true, Serving: true, Heartbeat: 7, Message: "fine"}, nil
}

func (f *fakeFormation) Status(context.Context) (Status, error) {
	return Status{FormationID: "a", Version: "1.2.0", Agents: 3, ActiveRequests: 4, TotalRequests: 5, Uptime: 6 * time.Second}, nil
}

func (f *fakeFormation) Pause(context.Context) error {
	f.paused = true
	return nil
}

func (f *fakeFormation) Fence(_ context.Context, ids []string) (int, error) {
	return len(ids), nil
}

func (f *fakeFormation) Drain(_ context.Context, req DrainRequest) (Drained, error) {
	return f.drain(req)
}

func (f *fakeFormation) Stop(context.Context) error {
	f.stops++
	return nil
}

func (f *fakeFormation) Records(ctx context.Context, after uint64, sink func(Record) error) error {
	return f.records(ctx, after, sink)
}

// dial puts f behind a real gRPC server and returns its client.
func dial(t *testing.T, f Formation) (client *Client, end context.CancelFunc) {
	t.Helper()
	life, end := context.WithCancel(t.Context())
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	controlv1.RegisterFormationServiceServer(s, newServer(life, f))
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		end()
		s.Stop()
		served.Wait()
	})
	return NewClient(conn), end
}

func TestClient_EveryFieldCrossesTheWire(t *testing.T) {
	t.Parallel()
	var gotLoad LoadRequest
	var gotDrain DrainRequest
	c, _ := dial(t, &fakeFormation{
		load: func(_ context.Context, req LoadRequest, _ func(string)) (Loaded, error) {
			gotLoad = req
			return Loaded{Warnings: []string{"w1", "w2"}, Agents: 9}, nil
		},
		drain: func(req DrainRequest) (Drained, error) {
			gotDrain = req
			return Drained{Unfinished: 3}, nil
		},
	})
	ctx := t.Context()
	load := LoadRequest{Dir: "/d", StateDir: "/s", Fence: []string{"x", "y"}, ServerID: "srv", HeaderPrefix: "ACME"}
	drain := DrainRequest{Timeout: 1500 * time.Millisecond, CloseSocket: true, LameDuck: 20 * time.Millisecond}
	for name, call := range map[string]func() (want, got any, err error){
		"hello": func() (any, any, error) {
			got, err := c.Hello(ctx, HelloRequest{FormationID: "a", LaunchToken: "t"})
			return Hello{
				FormationID: "a", LaunchID: "t-launch", Build: "b1", PID: 42, StartedAt: time.UnixMilli(1234567),
				Serving: true, ControlVersion: Version,
			}, got, err
		},
		"load": func() (any, any, error) {
			got, err := c.Load(ctx, load, func(string) {})
			return []any{Loaded{Warnings: []string{"w1", "w2"}, Agents: 9}, load}, []any{got, gotLoad}, err
		},
		"serve": func() (any, any, error) { return nil, nil, c.Serve(ctx) },
		"health": func() (any, any, error) {
			got, err := c.Health(ctx)
			return Health{Ready: true, Serving: true, Heartbeat: 7, Message: "fine"}, got, err
		},
		"status": func() (any, any, error) {
			got, err := c.Status(ctx)
			return Status{FormationID: "a", Version: "1.2.0", Agents: 3, ActiveRequests: 4, TotalRequests: 5, Uptime: 6 * time.Second}, got, err
		},
		"drain": func() (any, any, error) {
			got, err := c.Drain(ctx, drain)
			return []any{Drained{Unfinished: 3}, drain}, []any{got, gotDrain}, err
		},
	} {
		want, got, err := call()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestClient_StopStopsOnce(t *testing.T) {
	t.Parallel()
	f := &fakeFormation{}
	c, _ := dial(t, f)
	for range 2 {
		if err := c.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f.stops != 1 {
		t.Errorf("stopped %d times, want once", f.stops)
	}
}

func TestClient_FaultKeepsKindNameMessageDataAndCause(t *testing.T) {
	t.Parallel()
	secretCause := errors.New("open /secret/path: no such file")
	for name, sent := range map[string]error{
		"invalid":       fault.New(fault.Invalid, "SecretsError", "secret X is missing").With("missing", []any{"X"}),
		"conflict":      fault.Wrap(fault.Conflict, "IDMismatch", "another id", secretCause),
		"wrapped":       fmt.Errorf("load agent a: %w", fault.New(fault.NotFound, "", "no agent a")),
		"not one of us": secretCause,
		"empty":         fault.New(fault.Failed, "", ""),
		"long":          fault.Wrap(fault.Failed, "X", "m", errors.New(strings.Repeat("ä", maxCauseText))),
	} {
		c, _ := dial(t, &fakeFormation{serve: func(context.Context) error { return sent }})
		err := c.Serve(t.Context())
		want, got := fault.From(sent), fault.From(err)
		if got.Kind != want.Kind || got.Name != want.Name || got.Message != want.Message {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		if diff := cmp.Diff(want.Data, got.Data); diff != "" {
			t.Errorf("%s: data (-want +got):\n%s", name, diff)
		}
		if errors.Is(sent, secretCause) {
			if cause := got.Unwrap(); cause == nil || !strings.Contains(cause.Error(), "/secret/path") || strings.Contains(got.Message, "/secret") {
				t.Errorf("%s: cause %v, message %q; want the cause for the log only", name, cause, got.Message)
			}
		}
		if errors.Is(err, ErrNoAnswer) {
			t.Errorf("%s: a fault of the formation counts as no answer", name)
		}
	}
}

func TestClient_EveryKindComesBack(t *testing.T) {
	t.Parallel()
	for kind := fault.Internal; kind <= fault.Canceled; kind++ {
		c, _ := dial(t, &fakeFormation{serve: func(context.Context) error { return fault.New(kind, "Name", "text") }})
		if err := c.Serve(t.Context()); fault.KindOf(err) != kind || fault.NameOf(err) != "Name" {
			t.Errorf("%s: came back as %v", kind, err)
		}
	}
}

func TestClient_TellsItsOwnEndFromADeadPeer(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 1)
	c, _ := dial(t, &fakeFormation{serve: func(ctx context.Context) error {
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}})
	why := errors.New("the caller's own reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-entered
		cancel(why)
	}()
	if err := c.Serve(ctx); !errors.Is(err, why) {
		t.Errorf("canceled call: %v, want its cause", err)
	}
	dead := NewClient(deadConn(t))
	err := dead.Serve(t.Context())
	if !errors.Is(err, ErrNoAnswer) || fault.KindOf(err) != fault.Unavailable {
		t.Errorf("dead peer: %v, want ErrNoAnswer and unavailable", err)
	}
	if _, err := dead.Load(t.Context(), LoadRequest{}, func(string) {}); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("load from a dead peer: %v", err)
	}
	if err := dead.Records(t.Context(), 0, nil); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("records of a dead peer: %v", err)
	}
}

func deadConn(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(t.TempDir(), "nobody"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestLoad_ProgressComesInOrderAndFromManyGoroutines(t *testing.T) {
	t.Parallel()
	c, _ := dial(t, &fakeFormation{load: func(_ context.Context, _ LoadRequest, progress func(string)) (Loaded, error) {
		progress("first")
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { progress("some") })
		}
		all.Wait()
		progress("last")
		return Loaded{}, nil
	}})
	var news []string
	if _, err := c.Load(t.Context(), LoadRequest{}, func(m string) { news = append(news, m) }); err != nil {
		t.Fatal(err)
	}
	if len(news) != 12 || news[0] != "first" || news[11] != "last" {
		t.Errorf("news %q", news)
	}
}

func TestRecords_AcknowledgedOnlyAfterTheSinkTookIt(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	spool := []Record{
		{Seq: 1, Time: time.UnixMilli(10), Kind: RecordAudit, Action: "a", Actor: "b", Result: "c", Message: "d", Detail: []byte(`{"e":1}`)},
		{Seq: 2, Time: time.UnixMilli(20), Kind: RecordAlert},
		{Seq: 3, Time: time.UnixMilli(30)},
	}
	acked := uint64(0)
	c, _ := dial(t, &fakeFormation{records: func(ctx context.Context, after uint64, sink func(Record) error) error {
		for _, r := range spool {
			if r.Seq <= after {
				continue
			}
			if err := sink(r); err != nil {
				return err
			}
			mu.Lock()
			acked = r.Seq
			mu.Unlock()
		}
		<-ctx.Done()
		return ctx.Err()
	}})
	state := func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return acked
	}
	full := errors.New("disk full")
	var got []Record
	err := c.Records(t.Context(), 0, func(r Record) error {
		if r.Seq == 2 {
			return full
		}
		if state() != 0 {
			t.Errorf("record %d counts as taken before the sink returned", state())
		}
		got = append(got, r)
		return nil
	})
	if !errors.Is(err, full) {
		t.Errorf("records: %v, want the sink's error", err)
	}
	if diff := cmp.Diff(spool[:1], got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if state() > 1 {
		t.Error("a refused record was acknowledged")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	err = c.Records(ctx, 1, func(r Record) error {
		got = append(got, r)
		if r.Seq == 3 {
			cancel(enough)
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Errorf("records: %v, want the cause of the end", err)
	}
	if len(got) != 3 || got[1].Seq != 2 || got[2].Seq != 3 {
		t.Errorf("records after the second call: %+v, want 1, 2, 3", got)
	}
}

func TestRecords_EndWithTheChild(t *testing.T) {
	t.Parallel()
	waiting := make(chan struct{})
	c, end := dial(t, &fakeFormation{records: func(ctx context.Context, _ uint64, _ func(Record) error) error {
		close(waiting)
		<-ctx.Done()
		return ctx.Err()
	}})
	go func() {
		<-waiting
		end()
	}()
	if err := c.Records(t.Context(), 0, nil); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("records of a child that ends: %v, want ErrNoAnswer", err)
	}
}

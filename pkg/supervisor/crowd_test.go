package supervisor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// load asks all the time, in several ways, and counts.
type load struct {
	s      *served
	done   atomic.Int64
	faults chan string
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (s *served) load(port, pid int) *load {
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &load{s: s, faults: make(chan string, 1000), cancel: cancel}
	own := "http://127.0.0.1:" + strconv.Itoa(port)
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	number := func(text string) bool { return text == strconv.Itoa(pid) }
	ticked := func(text string) bool { return strings.HasSuffix(text, "data: 49\n\ndata: end\n\n") }
	for range 3 {
		l.worker(ctx, "kept", s.http, s.url+"/api/hello/", number)
		l.worker(ctx, "fresh", fresh, s.url+"/api/hello/", number)
		l.worker(ctx, "stream", s.http, s.url+"/api/hello/ticks?50", ticked)
	}
	l.worker(ctx, "own port", s.http, own+"/", number)
	l.worker(ctx, "own port, fresh", fresh, own+"/", number)
	l.wg.Go(func() { // management calls
		for ctx.Err() == nil {
			list, err := s.api().List(ctx, "")
			l.count(ctx, "list", err, err == nil && len(list) == 1 && list[0].PID == pid && list[0].Status == "running")
		}
	})
	return l
}

func (l *load) worker(ctx context.Context, name string, c *http.Client, url string, good func(string) bool) {
	l.wg.Go(func() {
		for ctx.Err() == nil {
			text, err := l.s.ask(ctx, c, url)
			l.count(ctx, name, err, err == nil && good(text))
		}
	})
}

func (l *load) count(ctx context.Context, name string, err error, good bool) {
	switch {
	case ctx.Err() != nil:
	case good:
		l.done.Add(1)
	default:
		select {
		case l.faults <- fmt.Sprintf("%s: %v", name, err):
		default:
		}
	}
}

// more waits until so many further requests are answered.
func (l *load) more(n int64) {
	l.s.t.Helper()
	from := l.done.Load()
	deploytest.Eventually(l.s.t, "the load goes on", func() bool { return l.done.Load() >= from+n || len(l.faults) > 0 })
}

func (l *load) end() {
	l.s.t.Helper()
	l.cancel()
	l.wg.Wait()
	close(l.faults)
	n := 0
	for f := range l.faults {
		if n++; n < 10 {
			l.s.t.Errorf("failed: %s", f)
		}
	}
	l.s.t.Logf("%d requests, %d failed", l.done.Load()+int64(n), n)
}

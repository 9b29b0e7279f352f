package supervisor

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/supervisor/auth"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

// syncBuffer is a bytes.Buffer for two goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestWatchKeys_AFaultyFileChangesNothingAndTheNextGoodOneCounts(t *testing.T) {
	t.Parallel()
	home, made := initHome(t)
	cfg, err := LoadConfig(home, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := &syncBuffer{}
	s := &Supervisor{cfg: cfg, log: zerolog.New(log)}
	sets := make(chan []auth.Key, 1)
	// Changed before the watch begins: that must be noticed too.
	writeFile(t, made.ConfigPath, "auth: {keys: [{id: a, secret: hunter2}, {id: a")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		s.watchKeys(ctx, func(keys []auth.Key) error {
			sets <- keys
			return nil
		})
	})
	defer wg.Wait()
	defer cancel()
	deploytest.Eventually(t, "the fault is logged", func() bool { return strings.Contains(log.String(), "the old keys stay") })
	if len(sets) != 0 {
		t.Error("keys of a faulty file were used")
	}
	writeFile(t, made.ConfigPath, "auth: {keys: [{id: b, secret: hunter2}]}\n")
	if keys := <-sets; len(keys) != 1 || keys[0] != (auth.Key{ID: "b", Secret: "hunter2"}) {
		t.Errorf("keys = %v", keys)
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("a secret is in the log: %s", log)
	}
}

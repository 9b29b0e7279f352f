package mcpclient

import (
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// run starts a script of the shell whose standard error nobody reads.
func run(t *testing.T, script string, grace time.Duration) *pipe {
	t.Helper()
	s := &spawner{}
	p, err := startProcess(s, &target{command: "/bin/sh", args: []string{"-c", script}, env: []string{"PATH=/bin:/usr/bin"}}, grace, func([]byte) {})
	if err != nil {
		t.Fatal(err)
	}
	c := newPipe(p, 1<<20, func([]byte) {})
	t.Cleanup(func() {
		c.Close()
		s.close()
	})
	return c
}

func TestPipe_SaysHowAProcessEndedHoweverLongThatTakes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		grace  time.Duration
		want   string
	}{
		"it ends after its output":     {"exec >&-; cat; sleep 1; exit 3", time.Minute, "its process ended with exit status 3"},
		"it has to be ended":           {"exec >&-; exec sleep 100", 100 * time.Millisecond, "it closed its standard output"},
		"it is killed by someone else": {"kill -9 $$", time.Minute, "its process was killed by SIGKILL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := run(t, tc.script, tc.grace).Read(t.Context()); err == nil || err.Error() != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

func TestPipe_AMessageToAProcessThatHasEndedFailsWithItsEnd(t *testing.T) {
	t.Parallel()
	c := run(t, "exit 3", time.Minute)
	<-c.p.ended
	err := c.Write(t.Context(), &jsonrpc.Request{Method: "ping"})
	if want := "its process ended with exit status 3"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

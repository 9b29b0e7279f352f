package deploy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func TestTailLog_ReadsTheRotatedPartsToo(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	path := filepath.Join(r.Home, "logs", "hello-out.log")
	for name, text := range map[string]string{path + ".1": "one\ntwo\n", path: "three\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := r.Service.TailLog(t.Context(), "hello", deploy.Stdout, 2)
	if diff := cmp.Diff(deploy.LogTail{Lines: []string{"two", "three"}, Total: 3}, got); diff != "" || err != nil {
		t.Errorf("%v, tail (-want +got):\n%s", err, diff)
	}
	if _, err := r.Service.TailLog(t.Context(), "nobody", deploy.Stdout, 2); fault.NameOf(err) != "FormationNotFound" {
		t.Errorf("an unknown formation: %v", err)
	}
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("the delete left %v", left)
	}
}

func TestFollowLog_SendsNewLinesOfBothFilesAndSurvivesTruncation(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	v := r.MustDeploy(t, "hello", nil)
	deploytest.Ask(t, v.Port, "/log?old")
	type line struct {
		stream deploy.Stream
		text   string
	}
	lines, done := make(chan line), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		done <- r.Service.FollowLog(ctx, "hello", []deploy.Stream{deploy.Stdout, deploy.Stderr}, func(s deploy.Stream, text string) error {
			select {
			case lines <- line{s, text}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	// A line that is written before the follower has seen the files' ends is
	// old to it, so the child is asked again now and then.
	want := func(query string) {
		t.Helper()
		seen := map[line]bool{}
		again := time.NewTicker(time.Second)
		defer again.Stop()
		deploytest.Ask(t, v.Port, "/log?"+query)
		for !seen[line{deploy.Stdout, "out " + query}] || !seen[line{deploy.Stderr, "err " + query}] {
			select {
			case <-again.C:
				deploytest.Ask(t, v.Port, "/log?"+query)
			case l := <-lines:
				if strings.HasSuffix(l.text, "old") {
					t.Errorf("an old line came: %+v", l)
				}
				seen[l] = true
			}
		}
	}
	want("one")
	if err := os.Truncate(filepath.Join(r.Home, "logs", "hello-out.log"), 0); err != nil {
		t.Fatal(err)
	}
	want("two")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("end: %v", err)
	}
}

func TestFollowLog_EndsWhenTheFormationIsDeleted(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	r.MustDeploy(t, "hello", nil)
	done := make(chan error, 1)
	go func() {
		done <- r.Service.FollowLog(t.Context(), "hello", []deploy.Stream{deploy.Stdout}, func(deploy.Stream, string) error { return nil })
	}()
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil && !strings.Contains(err.Error(), "No formation") {
		t.Errorf("end: %v", err)
	}
}

package deploy_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	follower, err := r.Service.FollowLog("hello", []deploy.Stream{deploy.Stdout, deploy.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		done <- follower.Run(ctx, func(s deploy.Stream, text string) error {
			select {
			case lines <- line{s, text}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	want := func(query string) {
		t.Helper()
		seen := map[line]bool{}
		deploytest.Ask(t, v.Port, "/log?"+query)
		for !seen[line{deploy.Stdout, "out " + query}] || !seen[line{deploy.Stderr, "err " + query}] {
			l := <-lines
			if strings.HasSuffix(l.text, "old") {
				t.Errorf("an old line came: %+v", l)
			}
			seen[l] = true
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
	follower, err := r.Service.FollowLog("hello", []deploy.Stream{deploy.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- follower.Run(t.Context(), func(deploy.Stream, string) error { return nil }) }()
	if err := r.Service.Delete(t.Context(), "hello"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("end: %v", err)
	}
	if _, err := r.Service.FollowLog("hello", nil); err == nil {
		t.Error("a deleted formation's log can be followed")
	}
}

func TestFollowLog_BeginsWhereTheLogEndedWhenItWasAskedFor(t *testing.T) {
	t.Parallel()
	r := deploytest.New(t, nil)
	v := r.MustDeploy(t, "hello", nil)
	deploytest.Ask(t, v.Port, "/log?old")
	follower, err := r.Service.FollowLog("hello", []deploy.Stream{deploy.Stdout})
	if err != nil {
		t.Fatal(err)
	}
	deploytest.Ask(t, v.Port, "/log?new") // before anybody reads
	seen := errors.New("seen")
	if err := follower.Run(t.Context(), func(_ deploy.Stream, line string) error {
		if line != "out new" {
			t.Errorf("the line %q came", line)
		}
		return seen
	}); !errors.Is(err, seen) {
		t.Errorf("end: %v", err)
	}
}

package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// wall is an import that must not exist, directly or through other rooms.
type wall struct {
	from   []string // rooms, each with everything below it
	to     []string // likewise
	reason string
}

// walls are the hard ones. Tests of a room obey them too. The third-party
// walls (echo, go-plugin, river, the databases, the model SDKs) are depguard
// rules in .golangci.yml.
var walls = []wall{
	{
		from:   []string{"pkg/supervisor"},
		to:     []string{"pkg/formation"},
		reason: "the supervisor never sees a conversation, a model key or a memory; it knows its children through pkg/control",
	},
	{
		from:   []string{"pkg/formation"},
		to:     []string{"pkg/supervisor"},
		reason: "a formation runs the same alone as under a supervisor",
	},
	{
		from:   []string{"pkg/control", "proto"},
		to:     []string{"pkg/supervisor", "pkg/formation"},
		reason: "a contract that imports one of its two sides drags that side into the other",
	},
	{
		from: []string{
			"pkg/version", "pkg/fault", "pkg/archive", "pkg/manifest", "pkg/secretfile",
			"pkg/httpx", "pkg/client", "pkg/sandbox", "pkg/embedder",
		},
		to:     []string{"pkg/supervisor", "pkg/formation"},
		reason: "what both sides share stands below both",
	},
	{
		from: []string{"pkg/formation/overlord", "pkg/formation/agent"},
		to: []string{
			"pkg/formation/memory", "pkg/formation/mcpclient", "pkg/formation/skills",
			"pkg/formation/a2a", "pkg/formation/knowledge",
		},
		reason: "thinking is given its context and its tools; it does not fetch them, so each can be tested and replaced alone",
	},
	{
		from:   []string{"pkg/formation/memory"},
		to:     []string{"pkg/formation/turn", "pkg/formation/overlord", "pkg/formation/agent"},
		reason: "memory records what a turn did; a memory that starts turns would be a loop",
	},
	{
		from:   []string{"pkg/formation/store"},
		to:     []string{"pkg/formation", "pkg/manifest"},
		reason: "the store knows rows and transactions, not what they mean",
	},
}

// checkWalls returns one text per violation: the rule's reason and the chain
// of imports that breaks it.
func checkWalls(h house, walls []wall) []string {
	var faults []string
	for _, w := range walls {
		for _, dir := range h.dirs() {
			base := slices.IndexFunc(w.from, func(from string) bool { return within(dir, from) })
			if base < 0 {
				continue
			}
			walk := h.path(dir, func(to string) bool {
				return !within(to, w.from[base]) &&
					slices.ContainsFunc(w.to, func(far string) bool { return within(to, far) })
			})
			if walk != nil {
				faults = append(faults, fmt.Sprintf("%s must not reach %s:\n%s\n  because %s",
					dir, walk[len(walk)-1].to, show(dir, walk), w.reason))
			}
		}
	}
	return faults
}

// dirs returns the rooms in a fixed order.
func (h house) dirs() []string {
	dirs := make([]string, 0, len(h))
	for dir := range h {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	return dirs
}

func TestWalls_NoRoomReachesWhatItMustNotKnow(t *testing.T) {
	t.Parallel()
	for _, fault := range checkWalls(readRepository(t), walls) {
		t.Error(fault)
	}
}

func TestWalls_EachHasAReason(t *testing.T) {
	t.Parallel()
	for _, w := range walls {
		if len(w.from) == 0 || len(w.to) == 0 || len(strings.Fields(w.reason)) < 5 {
			t.Errorf("wall %v -> %v: say in a sentence why it stands", w.from, w.to)
		}
	}
}

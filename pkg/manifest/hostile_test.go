package manifest_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentformation/service/pkg/manifest"
)

// TestParse_BoundsHostileFiles holds one mebibyte of each kind of nastiness
// against the parser. Each was slow, deep or fatal for a parser without bounds.
func TestParse_BoundsHostileFiles(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	fill := func(s string) string { return strings.Repeat(s, mib/len(s)) }
	wide := func(n int, f func(i int) string) string {
		var b strings.Builder
		for i := 0; i < n && b.Len() < mib-64; i++ {
			b.WriteString(f(i))
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"open brackets":      fill("["),
		"open braces":        fill("{"),
		"braces and keys":    fill("{a: "),
		"closed brackets":    fill("]"),
		"dashes in a line":   fill("- "),
		"dashes":             fill("-\n"),
		"question marks":     fill("? "),
		"question lines":     fill("?\n"),
		"colons":             fill(": "),
		"colon lines":        fill(":\n"),
		"keys":               wide(mib, func(i int) string { return "k" + itoa(i) + ":\n" }),
		"same keys":          fill("a:\n"),
		"anchors":            fill("&a "),
		"anchor lines":       fill("&a\n"),
		"aliases":            "a: &a x\nb: [" + fill("*a,") + "]",
		"tags":               fill("!a "),
		"tag lines":          fill("!!str\n"),
		"double quotes":      fill(`"`),
		"single quotes":      fill("'"),
		"open double quote":  `a: "` + fill("x"),
		"open single quote":  "a: '" + fill("x\n"),
		"escapes":            `a: "` + fill(`\x41`) + `"`,
		"comments":           fill("#\n"),
		"one comment":        "#" + fill("x"),
		"spaces":             fill(" "),
		"spaces and a key":   fill(" ") + "a: b",
		"tabs":               fill("\t"),
		"newlines":           fill("\n"),
		"carriage returns":   fill("\r"),
		"documents":          fill("---\n"),
		"document ends":      fill("...\n"),
		"directives":         fill("%a\n"),
		"literal":            "a: |\n" + fill("  x\n"),
		"literals":           fill("a: |\n x\n"),
		"literal headers":    fill("|\n"),
		"folded":             "a: >\n" + fill("  x\n\n"),
		"folded indents":     "a: >\n" + wide(mib, func(i int) string { return " " + strings.Repeat(" ", i%900) + "x\n" }),
		"plain lines":        "a:\n" + fill("  x\n"),
		"plain words":        fill("x "),
		"one word":           fill("x"),
		"deep indents":       wide(1400, func(i int) string { return strings.Repeat(" ", i) + "a:\n" }),
		"long keys":          wide(60, func(i int) string { return strings.Repeat(" ", i) + strings.Repeat("k", 250) + ":\n" }) + strings.Repeat(" ", 60) + "[" + strings.Repeat("1,", 14000) + "]",
		"a long key":         fill("k") + ": 1",
		"merge keys":         fill("<<: *a\n"),
		"merges":             "a: &a {x: 1}\nb:\n" + fill("  <<: *a\n"),
		"placeholders":       "a: " + fill("${{ env.A }}"),
		"placeholder list":   "a: [" + fill(`"${{env.A}}",`) + "]",
		"open placeholders":  "a: '" + fill("${{") + "'",
		"emoji":              "a: " + fill("😀"),
		"flow commas":        "[" + fill(","),
		"flow pairs":         "{" + fill("a: b,"),
		"flow lines":         "[" + fill("1,\n") + "]",
		"brackets per line":  fill("[]\n"),
		"numbers":            "a: " + fill("9"),
		"dash words":         fill("- a\n"),
		"nested dashes":      wide(500, func(i int) string { return strings.Repeat(" ", i) + "-\n" }),
		"quoted keys":        fill(`"a":`),
		"backslashes":        `a: "` + fill(`\\`),
		"quoted line breaks": `a: "` + fill("\\\n"),
	} {
		for _, size := range []int{40_000, 1 << 20} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				t.Parallel()
				var err error
				d := processorTime(t, func() {
					_, _, err = manifest.Parse("formation.afs", []byte(text[:min(size, len(text))]))
				})
				if err == nil {
					t.Error("accepted")
				}
				if d > 30*time.Second {
					t.Errorf("took %s", d)
				}
			})
		}
	}
}

func itoa(i int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	s := ""
	for ; i > 0; i /= 36 {
		s += string(digits[i%36])
	}
	return s
}

// TestParse_CountsTheTextBehindAliases holds a file against the parser that has
// few values and would be gigabytes when it is written out.
func TestParse_CountsTheTextBehindAliases(t *testing.T) {
	t.Parallel()
	long := func(aliases int) string {
		return head + "agents: [{id: a, name: a, description: &d \"" + strings.Repeat("x", 100_000) + "\", metadata: {tags: [" + strings.Repeat("*d, ", aliases) + "]}}]\n"
	}
	if _, _, err := manifest.Parse("formation.afs", []byte(long(100))); err != nil {
		t.Errorf("10 MB: %v", err)
	}
	_, _, err := manifest.Parse("formation.afs", []byte(long(2000)))
	faults, ok := errors.AsType[*manifest.Faults](err)
	if !ok || (*faults)[0].Rule != manifest.RuleYAMLSize || (*faults)[0].Line == 0 {
		t.Errorf("200 MB: %v, want %s with its place", err, manifest.RuleYAMLSize)
	}
}

// TestLoad_BoundsHostileBundles holds the largest files of each kind that is
// found, and long lists of names that lead nowhere, against Load.
func TestLoad_BoundsHostileBundles(t *testing.T) {
	t.Parallel()
	fill := func(s string) string { return strings.Repeat(s, (1<<20-200)/len(s)) }
	team := head + "agents:\n"
	for i := range 200 {
		team += fmt.Sprintf("- {id: agent-number-%d, name: a, description: b}\n", i)
	}
	chain := map[string]string{"formation.afs": head + "agents: [{id: a, name: a, description: b, metadata: {$include: f0.afs}}]\n", "f1900.afs": "a: [" + strings.Repeat("1,", 14_000) + "]\n"}
	for i := range 1900 {
		chain[fmt.Sprintf("f%d.afs", i)] = fmt.Sprintf("$include: f%d.afs\n", i+1)
	}
	nobody := head + "mcp: {servers: [" + strings.Repeat("nobody-knows-it,", 20_000) + "]}\nagents: [{id: a, name: a, description: b}]\n"
	for name, files := range map[string]map[string]string{
		"directives":         {"formation.afs": team, "sops/a.md": "---\ntype: sop\n---\n" + fill("[agent:agent-nomber-1]")},
		"skills' secrets":    {"formation.afs": team, "skills/aa/SKILL.md": "---\ndescription: x\n---\n" + fill("${{ secrets.A }}")},
		"trigger's data":     {"formation.afs": team, "triggers/a.md": fill("${{ data.a }}é")},
		"trigger's slips":    {"formation.afs": team, "triggers/a.md": fill("${{ dta.a }}")},
		"open variables":     {"formation.afs": team, "triggers/a.md": fill("${{")},
		"front matter":       {"formation.afs": team, "triggers/a.md": "---\n" + fill("a: b\n") + "---\n"},
		"front matter's end": {"formation.afs": team, "triggers/a.md": fill("---\n")},
		"variables":          {"formation.afs": team, "transformers/a.yaml": "body: \"" + fill("${{ response.cont }}") + "\""},
		"servers":            {"formation.afs": nobody, "mcp/nobody-knows.afs": "x"},
		"chain of includes":  chain,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range files {
				write(t, dir, file, []byte(text))
			}
			var warnings []manifest.Warning
			var err error
			d := processorTime(t, func() { _, warnings, err = manifest.Load(dir) })
			if d > 20*time.Second {
				t.Errorf("took %s", d)
			}
			if err == nil && len(warnings) == 0 {
				t.Error("nothing is told")
			}
		})
	}
}

// processorTime is what do takes of a processor. The time on the clock would say
// how much else the machine does.
func processorTime(t *testing.T, do func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	begin := now()
	do()
	return now() - begin
}

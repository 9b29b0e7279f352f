package httpapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the golden files in testdata")

// TestGolden sends the requests of each testdata file in order to one formation
// and compares the replies with the file. A section named "request" may begin
// with the line "WAIT <id>", for the request with that id to end first, or
// "STARTED", for a waiting turn to run first.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			golden(t, file, openDoor(t, doorOptions{}))
		})
	}
}

func golden(t *testing.T, file string, d *door) {
	t.Helper()
	want, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := normalizer{seen: make(map[string]string)}
	got := &txtar.Archive{Comment: want.Comment}
	for _, section := range want.Files {
		if section.Name != "request" {
			continue
		}
		got.Files = append(got.Files, section, txtar.File{Name: "reply", Data: n.normalize(d.exchange(t, section.Data))})
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(txtar.Format(want)), string(txtar.Format(got))); diff != "" {
		t.Errorf("%s (-want +got); go test -update rewrites it:\n%s", file, diff)
	}
}

// exchange sends the request that a section describes and writes the reply down.
func (d *door) exchange(t *testing.T, section []byte) []byte {
	t.Helper()
	if rest, ok := bytes.CutPrefix(section, []byte("WAIT ")); ok {
		id, rest, _ := bytes.Cut(rest, []byte("\n"))
		h, err := d.turns.Find(t.Context(), "", string(id), true)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = h.Wait(t.Context()) // how it ended shows in the replies
		section = rest
	}
	if rest, ok := bytes.CutPrefix(section, []byte("STARTED\n")); ok {
		select {
		case <-d.script.started:
		case <-t.Context().Done():
		}
		section = rest
	}
	head, body, _ := bytes.Cut(section, []byte("\n\n"))
	lines := strings.Split(strings.TrimSpace(string(head)), "\n")
	method, path, _ := strings.Cut(lines[0], " ")
	var header []string
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		header = append(header, name, value)
	}
	res := d.send(t, method, path, strings.TrimSuffix(string(body), "\n"), header...)
	var out bytes.Buffer
	fmt.Fprintln(&out, res.StatusCode)
	for _, name := range []string{"Content-Type", "WWW-Authenticate", "Allow", "Cache-Control"} {
		if v := res.Header.Get(name); v != "" {
			fmt.Fprintf(&out, "%s: %s\n", name, v)
		}
	}
	out.WriteByte('\n')
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	writeBody(&out, res.Header.Get("Content-Type"), data)
	return out.Bytes()
}

func writeBody(out *bytes.Buffer, contentType string, data []byte) {
	switch {
	case contentType == "application/json" && len(data) > 0:
		if err := json.Indent(out, bytes.TrimSpace(data), "", "  "); err != nil {
			fmt.Fprintf(out, "NOT JSON: %v: %s", err, data)
		}
	case contentType == "text/event-stream":
		// The comment must come first; later ones depend on the machine's speed.
		first, rest, _ := strings.Cut(string(data), "\n\n")
		out.WriteString(first + "\n\n" + strings.ReplaceAll(rest, ": keepalive\n\n", ""))
	default:
		out.Write(data)
	}
	if b := out.Bytes(); len(b) > 0 && b[len(b)-1] != '\n' {
		out.WriteByte('\n')
	}
}

// normalizer replaces what differs from run to run. Random ids become R1, R2…
// in the order they appear, so that the golden files still show which are the
// same.
type normalizer struct{ seen map[string]string }

var (
	randomID = regexp.MustCompile(`(req_[A-Za-z0-9_-]{21}|ui_[A-Z2-7]{21})`)
	measured = regexp.MustCompile(`"(working_memory_mb|memory_usage_mb|cpu_percent)": [0-9.]+`)
)

func (n *normalizer) normalize(b []byte) []byte {
	b = measured.ReplaceAll(b, []byte(`"$1": N`))
	return randomID.ReplaceAllFunc(b, func(id []byte) []byte {
		name, ok := n.seen[string(id)]
		if !ok {
			name = fmt.Sprintf("R%d", len(n.seen)+1)
			n.seen[string(id)] = name
		}
		return []byte(name)
	})
}

// frames reads a stream and returns the data lines of its frames by event name.
func frames(t *testing.T, res answer) (out []frame) {
	t.Helper()
	var f frame
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
		case "id":
			f.id = value
		case "event":
			f.event = value
		case "data":
			f.data = value
			out = append(out, f)
			f = frame{}
		}
	}
	return out
}

type frame struct{ id, event, data string }

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/test/e2e/harness"
)

const soloManifest = "schema: \"1.0.0\"\nid: solo\ndescription: Evil\nllm:\n  models:\n    - text: demo/solo\n" +
	"agents:\n  - id: only\n    name: Only\n    description: Answers\n"

// hostile is an archive with a good manifest before the entries given.
func hostile(t *testing.T, entries ...harness.Entry) []byte {
	t.Helper()
	return harness.Archive(t, append([]harness.Entry{{Name: "solo/formation.afs", Text: soloManifest}}, entries...)...)
}

func TestArchive_HostileOnesAreRefusedAndLeaveNothing(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Settings: "limits:\n  bundle:\n    max_entries: 5000\n"})
	target := filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(target, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := hostile(t)
	badSum := bytes.Clone(good)
	badSum[len(badSum)-8] ^= 0xff // the checksum is in front of the length
	for name, c := range map[string]struct {
		bundle      []byte
		error, says string
	}{
		"climbs":              {hostile(t, harness.Entry{Name: "solo/../../../evil", Text: "x"}), "ExtractError", "is not allowed"},
		"climbs at the start": {hostile(t, harness.Entry{Name: "../evil", Text: "x"}), "ExtractError", "is not allowed"},
		"absolute":            {hostile(t, harness.Entry{Name: target, Text: "x"}), "ExtractError", "absolute paths are not allowed"},
		"symbolic link, then a write through it": {hostile(t,
			harness.Entry{Name: "solo/out", Type: tar.TypeSymlink, Link: filepath.Dir(target)},
			harness.Entry{Name: "solo/out/target", Text: "overwritten"}), "ExtractError", "symbolic link"},
		"hard link":   {hostile(t, harness.Entry{Name: "solo/hard", Type: tar.TypeLink, Link: target}), "ExtractError", "hard link"},
		"device":      {hostile(t, harness.Entry{Name: "solo/null", Type: tar.TypeChar}), "ExtractError", "device"},
		"named pipe":  {hostile(t, harness.Entry{Name: "solo/pipe", Type: tar.TypeFifo}), "ExtractError", "pipe"},
		"twice":       {hostile(t, harness.Entry{Name: "solo/formation.afs", Text: "x"}), "ExtractError", "two entries"},
		"case":        {hostile(t, harness.Entry{Name: "solo/Formation.afs", Text: "x"}), "ExtractError", "differ only in case"},
		"two roots":   {harness.Archive(t, harness.Entry{Name: "a/x", Text: "x"}, harness.Entry{Name: "b/x", Text: "x"}), "ExtractError", "root"},
		"truncated":   {good[:len(good)/2], "ExtractError", "truncated"},
		"checksum":    {badSum, "ExtractError", "checksum"},
		"garbage":     {append(bytes.Clone(good), "garbage"...), "ExtractError", "after the end"},
		"two streams": {append(bytes.Clone(good), good...), "ExtractError", "after the end"},
		"no gzip":     {[]byte("PK\x03\x04 a zip"), "ExtractError", "gzip"},
		"empty body":  {nil, "ExtractError", "gzip"},
		"no entries":  {harness.Archive(t), "ExtractError", "empty"},
		"no manifest": {harness.Archive(t, harness.Entry{Name: "solo/readme", Text: "x"}), "ParseError", "formation.afs"},
		"ratio":       {zeros(t, 256<<20), "PayloadTooLarge", "limits.bundle.max_ratio"},
		"a million":   {million(t), "PayloadTooLarge", "limits.bundle.max_entries"},
	} {
		status := http.StatusBadRequest
		if c.error == "PayloadTooLarge" {
			status = http.StatusRequestEntityTooLarge
		}
		reply := s.HTTP.Must(s.DeployRequest("solo", c.bundle)).Want(t, status, "success", "false", "error", c.error)
		if says := reply.Text("message"); !strings.Contains(says, c.says) {
			t.Errorf("%s: the message %q does not hold %q", name, says, c.says)
		}
		if left := s.Files("formations", "tmp"); !onlyWorkrooms(left) {
			t.Errorf("%s: left behind: %v", name, left)
		}
		if t.Failed() {
			t.Fatalf("%s", name)
		}
	}
	s.RPC(http.MethodGet, "/rpc/formations").Want(t, http.StatusOK, "data.total", "0")
	if text, err := os.ReadFile(target); err != nil || string(text) != "untouched" {
		t.Errorf("a file outside is now %q (%v)", text, err)
	}
	s.HTTP.Must(s.DeployRequest("solo", good)).Want(t, http.StatusCreated, "data.status", "running")
}

// gzipped makes a gzip stream of parts, each repeated. Every part is compressed
// once and on its own, so that a long stream costs little to make.
func gzipped(t *testing.T, parts []part) []byte {
	t.Helper()
	out := bytes.NewBuffer([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff})
	sum, length := uint32(0), 0
	for i, p := range parts {
		var packed bytes.Buffer
		w, err := flate.NewWriter(&packed, flate.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(p.data)
		end := w.Flush // whole bytes, and more may follow
		if i == len(parts)-1 {
			end = w.Close
		}
		if err == nil {
			err = end()
		}
		if err != nil {
			t.Fatal(err)
		}
		for range p.times {
			out.Write(packed.Bytes())
			sum = crc32.Update(sum, crc32.IEEETable, p.data)
			length += len(p.data)
		}
	}
	out.Write(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, sum), uint32(length)))
	return out.Bytes()
}

type part struct {
	data  []byte
	times int
}

// tarEnd is the end marker of a tar archive.
var tarEnd = part{data: make([]byte, 1024), times: 1}

// zeros is an archive of one file of n zeros.
func zeros(t *testing.T, n int64) []byte {
	t.Helper()
	var head bytes.Buffer
	if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "solo/zeros", Mode: 0o644, Size: n}); err != nil {
		t.Fatal(err)
	}
	const block = 1 << 20
	return gzipped(t, []part{{head.Bytes(), 1}, {make([]byte, block), int(n / block)}, tarEnd})
}

// million is an archive of a million empty files. The names are distinct as
// far as the limit and some more; then they begin again.
func million(t *testing.T) []byte {
	t.Helper()
	const distinct, all = 10_000, 1_000_000
	var heads bytes.Buffer
	tw := tar.NewWriter(&heads)
	for i := range distinct {
		if err := tw.WriteHeader(&tar.Header{Name: fmt.Sprintf("solo/%d/%d", i%100, i), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	bundle := gzipped(t, []part{{heads.Bytes(), all / distinct}, tarEnd})
	r, err := gzip.NewReader(bytes.NewReader(bundle))
	if err != nil {
		t.Fatal(err)
	}
	if first, err := tar.NewReader(r).Next(); err != nil || first.Name != "solo/0/0" {
		t.Fatalf("the archive is no archive: %v, %v", first, err)
	}
	return bundle
}

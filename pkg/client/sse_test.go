package client_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

// readAll returns the events of r and the error that ended it.
func readAll(r io.Reader) ([]client.Event, error) {
	var out []client.Event
	er := client.NewEventReader(r)
	for {
		ev, err := er.Next()
		if err != nil {
			return out, err
		}
		out = append(out, ev)
	}
}

func data(s string) []byte { return []byte(s) }

func TestEventReader_ReadsWhatServersWrite(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in   string
		want []client.Event
		end  error
	}{
		"nothing":              {"", nil, io.EOF},
		"one":                  {"data: a\n\n", []client.Event{{Data: data("a")}}, io.EOF},
		"CRLF":                 {"event: x\r\ndata: a\r\n\r\n", []client.Event{{Name: "x", Data: data("a")}}, io.EOF},
		"CR":                   {"event: x\rdata: a\r\r", []client.Event{{Name: "x", Data: data("a")}}, io.EOF},
		"mixed ends":           {"data: a\r\ndata: b\rdata: c\n\n", []client.Event{{Data: data("a\nb\nc")}}, io.EOF},
		"comments":             {": keepalive\n\n:\n\ndata: a\n: in between\ndata: b\n\n", []client.Event{{Data: data("a\nb")}}, io.EOF},
		"only the first space": {"data:  a\n\ndata:b\n\n", []client.Event{{Data: data(" a")}, {Data: data("b")}}, io.EOF},
		"empty data":           {"data\n\ndata:\ndata:\n\n", []client.Event{{Data: data("")}, {Data: data("\n")}}, io.EOF},
		"name without data":    {"event: done\n\n", []client.Event{{Name: "done"}}, io.EOF},
		"ids last":             {"id: 1\ndata: a\n\ndata: b\n\nid\ndata: c\n\n", []client.Event{{ID: "1", Data: data("a")}, {ID: "1", Data: data("b")}, {Data: data("c")}}, io.EOF},
		"an id alone":          {"id: 7\n\ndata: a\n\n", []client.Event{{ID: "7", Data: data("a")}}, io.EOF},
		"an id with NUL":       {"id: 1\ndata: a\n\nid: 2\x00\ndata: b\n\n", []client.Event{{ID: "1", Data: data("a")}, {ID: "1", Data: data("b")}}, io.EOF},
		"unknown fields":       {"retry: 3\nfoo: bar\n\ndata: a\n\n", []client.Event{{Data: data("a")}}, io.EOF},
		"a byte order mark":    {"\xef\xbb\xbfdata: a\n\n", []client.Event{{Data: data("a")}}, io.EOF},
		"colons in data":       {"data: {\"a\":\"b:c\"}\n\n", []client.Event{{Data: data(`{"a":"b:c"}`)}}, io.EOF},
		"cut in a line":        {"data: a\n\ndata: b", []client.Event{{Data: data("a")}}, io.ErrUnexpectedEOF},
		"cut in an event":      {"data: a\n\nid: 3\n", []client.Event{{Data: data("a")}}, io.ErrUnexpectedEOF},
		"cut after a comment":  {"data: a\n\n: bye\n", []client.Event{{Data: data("a")}}, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := readAll(strings.NewReader(tc.in))
			if !errors.Is(err, tc.end) {
				t.Errorf("ended with %v, want %v", err, tc.end)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A reader that waited for the byte after a CR would hold an event back until
// the next one.
func TestEventReader_ReturnsAnEventAtOnce(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"\n", "\r\n", "\r"} {
		r, w := io.Pipe()
		go io.WriteString(w, "data: a"+end+end) //nolint:errcheck // the reader sees it
		ev, err := client.NewEventReader(r).Next()
		if err != nil || string(ev.Data) != "a" {
			t.Errorf("%q: event %v, error %v", end, ev, err)
		}
		r.Close()
	}
}

func TestEventReader_BoundsLinesAndEvents(t *testing.T) {
	t.Parallel()
	most := bytes.Repeat([]byte("x"), client.MaxLine-len("data: "))
	half := bytes.Repeat([]byte("x"), client.MaxLine/2+1)
	for name, tc := range map[string]struct {
		in   [][]byte
		want error
		n    int
	}{
		"the longest line": {[][]byte{data("data: "), most, data("\n\n")}, io.EOF, 1},
		"one byte more":    {[][]byte{data("data: x"), most, data("\n\n")}, client.ErrLineTooLong, 0},
		"a long event":     {[][]byte{data("data: "), half, data("\ndata: "), half, data("\n\n")}, client.ErrLineTooLong, 0},
		"a long comment":   {[][]byte{data(": xxxxx"), most, data("\n\n")}, client.ErrLineTooLong, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := readAll(bytes.NewReader(bytes.Join(tc.in, nil)))
			if !errors.Is(err, tc.want) || len(got) != tc.n {
				t.Errorf("%d events, then %v; want %d, then %v", len(got), err, tc.n, tc.want)
			}
		})
	}
	if _, err := readAll(zeros{}); !errors.Is(err, client.ErrLineTooLong) {
		t.Errorf("an endless line ended with %v", err)
	}
}

func TestEventReader_KeepsDataOfEarlierEvents(t *testing.T) {
	t.Parallel()
	er := client.NewEventReader(strings.NewReader("data: first\n\ndata: other\n\n"))
	first, err := er.Next()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := er.Next(); err != nil {
		t.Fatal(err)
	}
	if string(first.Data) != "first" {
		t.Errorf("the first event became %q", first.Data)
	}
}

// FuzzSSEReader compares the reader with a second one that needs the whole
// text, and with itself on a network that sends single bytes.
func FuzzSSEReader(f *testing.F) {
	for _, seed := range []string{
		"data: a\n\n", "event: done\r\ndata: {}\r\n\r\n", ": c\rdata\rid: 1\r\r", "\xef\xbb\xbfid\x00: 1\ndata:\n\n",
		"data: a\ndata: b\n\nretry: 1\n\nevent: x\n\ncut", "\r\n\r\n\n\r", "\xefdata: a\n\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		want, cut := parseWhole(string(in))
		for name, r := range map[string]io.Reader{
			"whole": bytes.NewReader(in), "bytes": iotest.OneByteReader(bytes.NewReader(in)),
		} {
			got, err := readAll(r)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
			if errors.Is(err, io.ErrUnexpectedEOF) != cut || !cut && !errors.Is(err, io.EOF) {
				t.Errorf("%s: ended with %v, cut off: %v", name, err, cut)
			}
		}
	})
}

// parseWhole reads the events of a finished stream, and whether one was cut off.
func parseWhole(text string) (out []client.Event, cut bool) {
	text = strings.TrimPrefix(text, "\xef\xbb\xbf")
	text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
	lines := strings.Split(text, "\n")
	rest := lines[len(lines)-1]
	var id, name string
	var parts []string
	fields := 0
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			if name != "" || parts != nil {
				ev := client.Event{ID: id, Name: name}
				if parts != nil {
					ev.Data = data(strings.Join(parts, "\n"))
				}
				out = append(out, ev)
			}
			name, parts, fields = "", nil, 0
			continue
		}
		if line[0] != ':' {
			fields++
		}
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case key == "event":
			name = value
		case key == "data":
			parts = append(parts, value)
		case key == "id" && !strings.Contains(value, "\x00"):
			id = value
		}
	}
	return out, fields > 0 || rest != ""
}

package provider

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func readEvents(in io.Reader) (events []string, err error) {
	return readBuffered(bufio.NewReaderSize(in, 16))
}

func readBuffered(in *bufio.Reader) (events []string, err error) {
	r := eventReader{in: in}
	for {
		data, err := r.next()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		events = append(events, string(data))
	}
}

func TestEventReader_ReadsEveryFormOfEvents(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"plain", "data: a\n\ndata: b\n\n", []string{"a", "b"}},
		{"carriage returns", "data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		{"no space", "data:a\n\n", []string{"a"}},
		{"only one space is dropped", "data:  a\n\n", []string{" a"}},
		{"comments, names and ids", ": ping\n\nevent: x\nid: 7\nretry: 5\ndata: a\n\n", []string{"a"}},
		{"two lines of data", "data: a\ndata: b\n\n", []string{"a\nb"}},
		{"empty data", "data:\n\n", []string{""}},
		{"no blank line at the end", "data: a\n\ndata: b", []string{"a", "b"}},
		{"line end but no blank line", "data: a\n", []string{"a"}},
		{"blank lines only", "\n\n\n", nil},
		{"longer than the buffer", "data: " + strings.Repeat("x", 100) + "\n\n", []string{strings.Repeat("x", 100)}},
		{"nothing", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, in := range []io.Reader{strings.NewReader(c.in), iotest.OneByteReader(strings.NewReader(c.in))} {
				got, err := readEvents(in)
				if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
					t.Errorf("error %v, events (-want +got):\n%s", err, diff)
				}
			}
		})
	}
}

// endless says the same forever.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

func TestEventReader_IsBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		want       error
	}{
		{"a line without end", strings.Repeat("x", 3000), errEventTooLong},
		{"an event without end", "data: " + strings.Repeat("x", 3000) + "\n", errEventTooLong},
		{"comments without end", ": " + strings.Repeat("still here ", 300) + "\n", errReplyTooLong},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if _, err := readBuffered(bufio.NewReader(&endless{text: c.text})); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
}

func TestEventReader_ReportsABrokenConnection(t *testing.T) {
	t.Parallel()
	in := io.MultiReader(strings.NewReader("data: a\n\ndata: b"), iotest.ErrReader(io.ErrUnexpectedEOF))
	events, err := readEvents(in)
	if len(events) != 1 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("events %q, error %v", events, err)
	}
}

func FuzzEventReader_DoesNotDependOnBorders(f *testing.F) {
	f.Add("data: a\n\nevent: b\r\ndata: c\n\n: d\ndata")
	f.Fuzz(func(t *testing.T, in string) {
		whole, err := readEvents(strings.NewReader(in))
		if err != nil {
			t.Fatal(err)
		}
		cut, err := readEvents(iotest.OneByteReader(strings.NewReader(in)))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(whole, cut); diff != "" {
			t.Errorf("%q (-whole +cut):\n%s", in, diff)
		}
	})
}

package media_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/agentformation/service/pkg/confine"
	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/formation/media/document"
	"github.com/agentformation/service/pkg/formation/media/document/documenttest"
)

func TestProcess_ReadsADocument(t *testing.T) {
	t.Parallel()
	got, err := newProcess(t).Text(t.Context(), document.PDF, documenttest.PDF("BT /F1 12 Tf (hello) Tj ET"), 1000)
	if err != nil || got.Content != "[page 1]\nhello" || got.Parts != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestProcess_ABadDocumentIsAProblemOfThatDocument(t *testing.T) {
	t.Parallel()
	tests := []struct {
		act, want string
		skip      bool
	}{
		{"hang", "it took longer than 2s", false},
		{"spin", "it took longer than 2s", false},
		{"crash", "it breaks its reader", false},
		{"grow", "needs more memory", memory < 0},
		{"flood", "it breaks its reader", false},
		{"garble", "it breaks its reader", false},
	}
	for _, tt := range tests {
		t.Run(tt.act, func(t *testing.T) {
			t.Parallel()
			if tt.skip {
				t.Skip("the race detector needs more memory than the limit")
			}
			cfg := media.ProcessConfig{Memory: memory, Timeout: patience, Log: zerolog.Nop()}
			if strings.Contains(tt.want, "2s") {
				cfg.Timeout = 2 * time.Second
			}
			_, err := media.NewProcess(cfg).Text(t.Context(), document.PDF, []byte(hostile+tt.act), 1000)
			if problem, ok := errors.AsType[*media.BadFileError](err); !ok || !strings.Contains(problem.Text, tt.want) {
				t.Errorf("got %v, want a problem with %q", err, tt.want)
			}
		})
	}
}

func TestProcess_SeesAndReachesNothing(t *testing.T) {
	t.Parallel()
	_, err := newProcess(t).Text(t.Context(), document.PDF, []byte(hostile+"look"), 1000)
	want := "env 0, dir /, read false, make false"
	if confine.LandlockVersion() < 1 {
		want = "env 0, dir /, read true, make false" // no file grows at least
	}
	if err == nil || err.Error() != want {
		t.Errorf("the process found %v, want %s", err, want)
	}
}

func TestProcess_EndsWithItsCaller(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	time.AfterFunc(200*time.Millisecond, func() { cancel(gone) })
	if _, err := newProcess(t).Text(ctx, document.PDF, []byte(hostile+"hang"), 1000); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

func TestProcess_WithoutAProgramNothingIsTheDocumentsFault(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"/nowhere/at/all", "/bin/false"} {
		p := media.NewProcess(media.ProcessConfig{Program: program, Memory: memory, Timeout: patience, Log: zerolog.Nop()})
		if _, err := p.Text(t.Context(), document.HTML, []byte("x"), 1000); fault.NameOf(err) != "SERVICE_UNAVAILABLE" {
			t.Errorf("%s: got %v", program, err)
		}
	}
}

// TestProcess_DiesWithTheFormation starts a process that starts a worker, kills
// the first and looks for the second.
func TestProcess_DiesWithTheFormation(t *testing.T) {
	t.Parallel()
	parent := exec.CommandContext(t.Context(), media.Self)
	parent.Env = []string{parentEnv + "=1"}
	var out bytes.Buffer
	parent.Stdout, parent.Stderr = &out, &out
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	child := awaitChild(t, parent.Process.Pid)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	await(t, func() bool { return errors.Is(syscall.Kill(child, 0), syscall.ESRCH) || zombie(child) })
}

func TestServe_WantsAJob(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"pdf"}, {"{}", "{}"}} {
		if err := media.Serve(args, strings.NewReader(""), new(bytes.Buffer)); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	var out bytes.Buffer
	if err := media.Serve([]string{`{"format":"` + strconv.Itoa(7) + `","max_text":1}`}, strings.NewReader("x"), &out); err != nil || !strings.Contains(out.String(), "not read") {
		t.Errorf("%s, %v", &out, err)
	}
}

// FuzzProcess_AnyFileIsATextOrAProblem gives whole files to the confined
// process, among them those on which the library runs on or takes all memory.
func FuzzProcess_AnyFileIsATextOrAProblem(f *testing.F) {
	f.Add("pdf", documenttest.PDF("BT /F1 12 Tf 50 700 Td (Hello) Tj ET"))
	f.Add("pdf", []byte("%PDF-1.4\nxref\n4000000000 1\n0000000000 00000 n \ntrailer<</Size 5>>\nstartxref\n9\n%%EOF\n"))
	f.Add("pdf", []byte("%PDF-1.4\nxref\n0 1\n0000000000 00000 f \ntrailer<</Size 5/Prev 9>>\nstartxref\n9\n%%EOF\n"))
	f.Add("office", documenttest.DOCX(documenttest.Paragraphs("x")))
	f.Add("html", []byte("<p>x"))
	f.Fuzz(func(t *testing.T, format string, data []byte) {
		p := media.NewProcess(media.ProcessConfig{Timeout: 3 * time.Second, Memory: memory, Log: zerolog.Nop()})
		_, err := p.Text(t.Context(), document.Format(format), data, 4096)
		if _, ok := errors.AsType[*media.BadFileError](err); err != nil && !ok {
			t.Error(err)
		}
	})
}

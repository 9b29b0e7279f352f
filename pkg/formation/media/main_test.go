package media_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/confine"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/formation/media/document"
)

// parentEnv makes this program the formation of TestProcess_DiesWithTheFormation.
const parentEnv = "MEDIA_TEST_PARENT"

// A process that is started with a confinement becomes a stage, and one that is
// started for a file works on it, as formation-runtime does.
func TestMain(m *testing.M) {
	if _, staged, err := confine.FromEnv(); staged || err != nil {
		if err == nil {
			err = confine.Stage(os.Args[1:])
		}
		fail("stage", err)
	}
	if len(os.Args) > 1 && os.Args[1] == media.Command {
		serve()
	}
	if os.Getenv(parentEnv) != "" {
		ctx := context.Background() // it is killed
		_, err := media.NewProcess(media.ProcessConfig{Memory: memory, Log: zerolog.Nop()}).Text(ctx, document.PDF, []byte(hostile+"hang"), 1000)
		fail("parent", err)
	}
	goleak.VerifyTestMain(m)
}

// hostile begins a file on which the worker does something else: no real file is
// known to hang or crash it on every build.
const hostile = "%PDF-hostile "

func serve() {
	head := make([]byte, 64)
	n, _ := os.Stdin.Read(head)
	act, found := strings.CutPrefix(string(head[:n]), hostile)
	if found {
		misbehave(act)
	}
	if err := media.Serve(os.Args[2:], io.MultiReader(bytes.NewReader(head[:n]), os.Stdin), os.Stdout); err != nil {
		fail(media.Command, err)
	}
	os.Exit(0)
}

func misbehave(act string) {
	switch act {
	case "hang":
		select {}
	case "spin":
		for n := uint(0); ; n++ {
			runtime.KeepAlive(n)
		}
	case "crash":
		panic("a bug")
	case "grow":
		for b := []byte{1}; ; {
			b = append(b, b...)
		}
	case "flood":
		for {
			if _, err := os.Stdout.Write(make([]byte, 1<<20)); err != nil {
				fail("flood", err)
			}
		}
	case "garble":
		fmt.Print("{")
	case "look":
		_, passwd := os.ReadFile("/etc/passwd")
		_, made := os.Create("/tmp/made-by-a-document")
		wd, _ := os.Getwd()
		fmt.Printf(`{"problem":"env %d, dir %s, read %v, make %v"}`, len(os.Environ()), wd, passwd == nil, made == nil)
	}
	os.Exit(0)
}

func fail(doing string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", doing, err)
	os.Exit(1)
}

func newProcess(t *testing.T) *media.Process {
	t.Helper()
	return media.NewProcess(media.ProcessConfig{Memory: memory, Timeout: patience, Log: zerolog.Nop()})
}

package doctor

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"time"
)

// runtimeTimeout bounds the question for the runtime's version.
const runtimeTimeout = 10 * time.Second

func supervisor(_ context.Context, h *host) Result {
	if h.Reach == nil {
		return nothing()
	}
	start := "supervisor serve --home " + h.Home
	switch {
	case h.reachErr != nil && h.PID != 0:
		return fail("look into its log", "process %d runs but does not answer: %s", h.PID, h.reachErr)
	case h.reachErr != nil:
		return warn(start, "none runs on this home")
	case h.reached.Version != "" && !strings.HasPrefix(h.Build, h.reached.Version):
		return warn("supervisor reload --home "+h.Home,
			"version %s answers at %s, and this program is %s", h.reached.Version, h.reached.URL, h.Build)
	}
	return ok("version %s answers at %s, formations: %d", h.reached.Version, h.reached.URL, h.reached.Formations)
}

// runtimeProgram asks the children's program for its build.
func runtimeProgram(ctx context.Context, h *host) Result {
	const fix = "put the formation-runtime of the same release beside the supervisor, or into PATH"
	if h.Runtime == "" {
		return fail(fix, "formation-runtime is neither beside %s nor in PATH", h.Program)
	}
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, h.Runtime, "--version")
	cmd.Env = []string{}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return fail(fix, "%s --version: %s", h.Runtime, err)
	}
	said := string(bytes.TrimSpace(out))
	if !strings.HasSuffix(said, h.Build) {
		return warn(fix, "%s says %q, and this program is %s", h.Runtime, said, h.Build)
	}
	return ok("%s is of the same build, %s", h.Runtime, h.Build)
}

func bubblewrap(context.Context, *host) Result {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return warn("apt install bubblewrap, or the like, when formations are to run scripts",
			"there is no bwrap: scripts have no sandbox")
	}
	return ok("%s", path)
}

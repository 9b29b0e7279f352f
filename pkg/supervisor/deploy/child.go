package deploy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/secretfile"
	"github.com/agentformation/service/pkg/supervisor/ports"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// envSecretsKey is where a child looks for the key of secrets.enc first.
const envSecretsKey = "SVC_SECRETS_KEY"

// setSocket remembers the formation's socket; it stays the same to the end.
func (f *formation) setSocket(s *ports.Socket) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.socket = s
}

// spec says how to run the version in dir, relative to the formation's own
// directory.
func (s *Service) spec(f *formation, dir string) (process.Spec, error) {
	d, c := s.cfg.Dirs, s.cfg.Child
	env, err := s.environment(f.id)
	if err != nil {
		return process.Spec{}, err
	}
	f.mu.Lock()
	socket := f.socket
	f.mu.Unlock()
	spec := process.Spec{
		ID: f.id, Binary: c.Binary, Args: c.Args, Env: env,
		Dir: filepath.Join(d.formation(f.id), dir), StateDir: d.state(f.id), RunDir: d.run(f.id),
		OutLog: d.outLog(f.id), ErrLog: d.errLog(f.id),
		ServerID: c.ServerID, HeaderPrefix: c.HeaderPrefix, Socket: socket,
		ReadyTimeout: c.ReadyTimeout, DrainTimeout: c.DrainTimeout, KillTimeout: c.KillTimeout,
		OrphanTimeout: c.OrphanTimeout, LameDuck: s.cfg.LameDuck,
	}
	if c.Budgets != nil {
		spec.Budgets = c.Budgets(f.id)
	}
	spec.Guard, err = s.guard(f.id, spec)
	return spec, err
}

// environment is the whole environment of a child: a fixed base and what the
// operator allows. Nothing of the supervisor's own comes in by itself.
func (s *Service) environment(id string) ([]string, error) {
	d, c := s.cfg.Dirs, s.cfg.Child
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + d.state(id),
		"LANG=C.UTF-8",
		"HF_HOME=" + d.Cache,
		"SVC_ENV=production",
		"SVC_SERVER_URL=" + c.ServerURL,
	}
	env = append(env, c.Env...)
	keys, err := secretfile.ReadKeys(filepath.Join(d.Keys, id+".key"))
	if errors.Is(err, os.ErrNotExist) {
		return env, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Failed, "SecretsError",
			fmt.Sprintf("the secrets key that the server keeps for %s cannot be read", id), err)
	}
	return append(env, envSecretsKey+"="+keys.Encode()), nil
}

// resolveRuntime checks that the program of the children can be run.
func (s *Service) resolveRuntime() error {
	info, err := os.Stat(s.cfg.Child.Binary)
	if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
		return fault.Wrap(fault.Invalid, "ResolveError",
			fmt.Sprintf("the server has no formation-runtime at %s", s.cfg.Child.Binary), err)
	}
	return nil
}

var runtimeShape = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$`)

// checkRuntime refuses a malformed svc_runtime ("<version>[:<variant>]", or an
// object with a variant). A well-formed one is accepted and unused: there is
// one runtime.
func checkRuntime(raw any) error {
	var variant string
	switch v := raw.(type) {
	case nil:
		return nil
	case string:
		version, rest, _ := strings.Cut(v, ":")
		if !runtimeShape.MatchString(version) {
			return errRuntime()
		}
		variant = rest
	case map[string]any:
		variant, _ = v["variant"].(string)
		if variant == "" {
			return errRuntime()
		}
	default:
		return errRuntime()
	}
	if variant != "" && !slices.Contains([]string{"cpu", "gpu", "cuda"}, variant) {
		return errRuntime()
	}
	return nil
}

func errRuntime() error {
	return fault.New(fault.Invalid, "InvalidRuntime",
		`svc_runtime is "<version>" or "<version>:<variant>", or an object with a variant; a variant is cpu, gpu or cuda`)
}

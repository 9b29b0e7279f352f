package mcpclient

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agentformation/service/pkg/manifest"
)

// target is what a server's file means for one user: its texts with all
// placeholders resolved. It holds credentials and is never printed.
type target struct {
	key string // of the connections that may be shared: a hash, or ""

	command string
	args    []string
	env     []string
	dir     string

	endpoint string
	headers  http.Header
	health   string
}

// texts calls use with every text of a file that a connection needs.
func texts(m *manifest.MCPServer, use func(text string)) {
	for _, text := range []string{m.Command, m.Cwd, m.Endpoint, m.HealthCheck.Endpoint} {
		use(text)
	}
	for _, text := range m.Args {
		use(text)
	}
	for _, values := range []map[string]string{m.Env, m.Headers, m.Auth.Values} {
		for _, name := range slices.Sorted(maps.Keys(values)) {
			use(values[name])
		}
	}
}

// parameterTexts calls use with every text that is given to calls.
func parameterTexts(m *manifest.MCPServer, use func(text string)) {
	for _, value := range m.Parameters {
		if text, ok := value.(string); ok {
			use(text)
		}
	}
}

// namesUser tells whether a text holds a placeholder of a user's credentials.
func namesUser(text string) bool {
	found := false
	_, _ = manifest.Expand(text, func(kind, _ string) (string, bool) {
		found = found || kind == manifest.KindUser
		return "", true
	})
	return found
}

// resolver resolves many texts for one user and keeps the first fault.
type resolver struct {
	s    *server
	ctx  context.Context //nolint:containedctx // of one use
	user string
	err  error
}

func (r *resolver) text(text string) string {
	if r.err != nil || !manifest.HasPlaceholder(text) {
		return text
	}
	value, err := r.s.c.cfg.Resolve(r.ctx, text, r.user)
	if err == nil && value == text {
		err = errors.New("the placeholder has no value")
	}
	r.err = err
	return value
}

func (r *resolver) texts(m map[string]string) map[string]string {
	out := make(map[string]string, len(m))
	for name, text := range m {
		out[name] = r.text(text)
	}
	return out
}

// target resolves the file for a user. Only one that refers to credentials of
// users gives different users different ones.
func (s *server) target(ctx context.Context, user string) (*target, error) {
	if t := s.fixed.Load(); t != nil {
		return t, nil
	}
	r := &resolver{s: s, ctx: ctx, user: user}
	m := s.file
	t := &target{dir: s.c.cfg.Dir}
	auth := r.texts(m.Auth.Values)
	switch m.Type {
	case manifest.MCPCommand:
		t.command = r.text(m.Command)
		for _, arg := range m.Args {
			t.args = append(t.args, r.text(arg))
		}
		if cwd := r.text(m.Cwd); filepath.IsAbs(cwd) {
			t.dir = cwd
		} else {
			t.dir = filepath.Join(s.c.cfg.Dir, cwd)
		}
		t.env = s.environ(r.texts(m.Env), auth)
	default:
		t.endpoint, t.health = r.text(m.Endpoint), r.text(m.HealthCheck.Endpoint)
		t.headers = headers(r.texts(m.Headers), m.Auth.Type, auth)
	}
	if r.err != nil {
		return nil, notBegun(s.file.ID, r.err, "The tool server %q can't be used: %v.", s.file.ID, r.err).permanent()
	}
	if !s.templated && !s.perUser {
		s.fixed.Store(t)
		return t, nil
	}
	t.key = t.hash(s.perUser, user)
	return t, nil
}

// hash tells targets apart without showing what they hold.
func (t *target) hash(perUser bool, user string) string {
	h := sha256.New()
	if !perUser {
		user = ""
	}
	// Encoding strings can't fail.
	_ = json.NewEncoder(h).Encode([]any{perUser, user, t.command, t.args, t.env, t.dir, t.endpoint, t.headers})
	return hex.EncodeToString(h.Sum(nil))
}

// environ is the environment of a process: the basics, what the file says, and
// the mark of this launch.
func (s *server) environ(file, auth map[string]string) []string {
	values := map[string]string{}
	for _, entry := range s.c.cfg.Environ {
		if name, value, ok := strings.Cut(entry, "="); ok {
			values[name] = value
		}
	}
	maps.Copy(values, file)
	if s.file.Auth.Type == manifest.AuthEnv {
		maps.Copy(values, auth)
	}
	values[EnvLaunch] = s.c.cfg.Launch
	out := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		out = append(out, name+"="+values[name])
	}
	return out
}

// headers are those that every request carries.
func headers(custom map[string]string, kind string, auth map[string]string) http.Header {
	h := http.Header{}
	for name, value := range custom {
		h.Set(name, value)
	}
	switch kind {
	case manifest.AuthBearer:
		h.Set("Authorization", "Bearer "+auth["token"])
	case manifest.AuthBasic:
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(auth["username"]+":"+auth["password"])))
	case manifest.AuthAPIKey:
		h.Set(auth["header"], auth["key"])
	}
	return h
}

// parameters are given to every call; their texts are resolved for its user.
func (s *server) parameters(ctx context.Context, user string) (map[string]any, error) {
	if len(s.file.Parameters) == 0 {
		return nil, nil
	}
	r := &resolver{s: s, ctx: ctx, user: user}
	out := make(map[string]any, len(s.file.Parameters))
	for name, value := range s.file.Parameters {
		if text, ok := value.(string); ok {
			value = r.text(text)
		}
		out[name] = value
	}
	if r.err != nil {
		return nil, notBegun(s.file.ID, r.err, "The tool server %q can't be called: parameters: %v.", s.file.ID, r.err).permanent()
	}
	return out, nil
}

package httpapi_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agentformation/service/pkg/supervisor/deploy"
)

// documentedErrors are those of the reference, section 1.2.
const documentedErrors = `
400 ValidationError, InvalidContentType, MissingHeader, InvalidFormationID, ExtractError, ParseError, SecretsError, IDMismatch, VersionMismatch, InvalidRuntime, ResolveError, NoPreviousVersion, NoUpdateInProgress, HealthCheckFailed, InvalidMode, InvalidPath, InvalidAction, InvalidJSON, DecodeError
401 Unauthorized
404 NotFound, FormationNotFound, VersionNotFound, RuntimeNotFound, DraftNotFound, LiveNotFound, FileNotFound
409 ValidationError, UpdateInProgress, NoChange, AlreadyRunning, AlreadyStopped, DraftAlreadyExists, DeployConflict, DraftRunning
413 PayloadTooLarge
429 RateLimited
500 PortAllocationError, DirectoryError, CleanupError, MoveError, SpawnError, RegisterError, SwitchError, SwapError, StopError, CreateError, WriteError, CopyError, HealthCheckFailed
502 BadGateway
503 FormationUnavailable
507 PortAllocationError`

// neverSeen are documented errors that no call meets, each with the reason: by
// name, or by name on one route that documents it.
func neverSeen() map[string]string {
	return map[string]string{
		"404 RuntimeNotFound":     "there is one runtime, beside the supervisor; a missing one is 400 ResolveError, and 500 SpawnError at a start",
		"500 SwitchError":         "a switch that cannot be recorded is 500 RegisterError, one that does not work 400 HealthCheckFailed",
		"500 SwapError":           "update and rollback share the listening socket; the reference keeps the name reserved",
		"507 PortAllocationError": "update and rollback need no port; the reference keeps the name reserved",
		"POST /rpc/formations/:id/stop 500 StopError": "a stop ends with SIGKILL and waits for it; the drafts' stop, " +
			"which also removes files, shows the name",
		"POST /rpc/dev/run 500 ParseError": "the supervisor reads the manifest itself, which is 400; a real runtime reads more",
	}
}

// elsewhere are documented errors with a test of their own, over all routes.
func elsewhere() map[string]string {
	return map[string]string{
		"401 Unauthorized":    "TestErrors_StrangersAreRefusedOnEveryManagementRoute",
		"413 PayloadTooLarge": "TestErrors_TooLargeBodiesAreRefusedOnEveryManagementRoute",
		"429 RateLimited":     "TestRateLimit_CountsEveryManagementAndProxiedRoute",
		"500 WriteError":      "TestErrors_AFullDiskIsNamedAndLeavesWhatServesAlone",
	}
}

// scene is a server in one state and the calls that it refuses there, in turn.
type scene struct {
	rig  func(*deploy.Config)
	play func(*actor)
}

// actor calls within a scene.
type actor struct {
	*testing.T
	*door
	seen *sightings
}

// sightings are the errors that were met, "<method> <route> <status> <name>".
type sightings struct {
	mu  sync.Mutex
	all map[string]bool
}

func (s *sightings) add(route, failure string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[route+" "+failure] = true
}

// refused sends c to each of routes, as they stand in the API's table, where :id
// is "hello" unless c.path, which is added, begins with ":<id>".
func (a *actor) refused(want, text string, c call, routes ...string) {
	a.Helper()
	for _, route := range routes {
		a.await(want, text, route, a.begin(a.T, aimed(c, route)))
	}
}

// aimed is c for a route.
func aimed(c call, route string) call {
	id, rest := "hello", c.path
	if named, ok := strings.CutPrefix(c.path, ":"); ok {
		id, rest = named, ""
		if i := strings.IndexAny(named, "/?"); i >= 0 {
			id, rest = named[:i], named[i:]
		}
	}
	method, path, _ := strings.Cut(route, " ")
	c.method, c.path = method, strings.NewReplacer(":id", id, "/*", "/any").Replace(path)+rest
	return c
}

// await expects that a call which was begun is refused.
func (a *actor) await(want, text, route string, end func() answer) {
	a.Helper()
	got := end()
	var env struct {
		Success *bool
		Message string
		Code    int
	}
	_ = json.Unmarshal([]byte(got.body), &env)
	retry := got.status != 429 && got.status != 503 || got.header.Get("Retry-After") != ""
	told := retry && env.Success != nil && !*env.Success && env.Code == got.status && env.Message != ""
	if got.String() != want || !told || !strings.Contains(env.Message, text) {
		a.Errorf("%s: %s\n%s\nwant %s %q", route, got, got.body, want, text)
		return
	}
	method, _, _ := strings.Cut(route, " ")
	if !isProxied(route) {
		a.checkDocumented(a.T, call{method: method, path: got.path}, got.res, got.body)
	}
	a.seen.add(route, want)
}

func isProxied(route string) bool {
	_, path, _ := strings.Cut(route, " ")
	return strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/draft/") || strings.HasPrefix(path, "/mcp/")
}

// alike returns the route whose handler an older route or another method shares.
func alike(route string) string {
	method, path, _ := strings.Cut(route, " ")
	switch {
	case strings.HasPrefix(path, "/draft/"):
		return "POST /draft/:id"
	case isProxied(route):
		return "POST /api/:id"
	case strings.HasSuffix(path, "/deploy"):
		return "POST /rpc/formations"
	case strings.HasSuffix(path, "/update"):
		return "PUT /rpc/formations/:id"
	case strings.HasSuffix(path, "/stream"):
		return alike(method + " " + strings.TrimSuffix(path, "/stream"))
	}
	return route
}

func TestErrors_EachDocumentedOneIsMetOrItsAbsenceExplained(t *testing.T) {
	t.Parallel()
	seen := &sightings{all: make(map[string]bool)}
	scenes := map[string]scene{}
	for _, some := range []map[string]scene{bundleScenes(), operationScenes(), placeScenes(), draftScenes(), otherScenes()} {
		for name, s := range some {
			if _, twice := scenes[name]; twice {
				t.Errorf("two scenes are called %q", name)
			}
			scenes[name] = s
		}
	}
	t.Run("scenes", func(t *testing.T) {
		for name, s := range scenes {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s.play(&actor{T: t, door: setup(t, s.rig), seen: seen})
			})
		}
	})
	documented := setup(t, nil).api.Documented()
	never, other := neverSeen(), elsewhere()
	names := make(map[string]bool)
	for route, failures := range documented {
		for _, f := range failures {
			names[f] = true
			switch {
			case never[f] != "":
				t.Errorf("%s documents %s, which nobody meets", route, f)
			case never[route+" "+f] != "" && seen.all[route+" "+f]:
				t.Errorf("%s %s was met, although it is listed as impossible", route, f)
			case never[route+" "+f] == "" && other[f] == "" && !seen.all[route+" "+f] && !seen.all[alike(route)+" "+f]:
				t.Errorf("%s: nobody has met %s", route, f)
			}
		}
		if !isProxied(route) && len(failures) > 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(seen.all)), func(s string) bool {
			return strings.HasPrefix(s, route+" ")
		}) && !onlyGeneral(failures, other) {
			t.Errorf("%s: no call of it was refused", route)
		}
	}
	compareNames(t, names, never)
}

func onlyGeneral(failures []string, other map[string]string) bool {
	return !slices.ContainsFunc(failures, func(f string) bool { return other[f] == "" })
}

// compareNames holds what the routes document against the reference.
func compareNames(t *testing.T, names map[string]bool, never map[string]string) {
	t.Helper()
	reference := make(map[string]bool)
	for line := range strings.Lines(documentedErrors) {
		status, list, _ := strings.Cut(strings.TrimSpace(line), " ")
		for name := range strings.SplitSeq(list, ", ") {
			if name != "" {
				reference[status+" "+name] = true
			}
		}
	}
	for name := range reference {
		// Unknown routes have no line in the table.
		if !names[name] && never[name] == "" && name != "404 NotFound" {
			t.Errorf("the reference has %s, which no route documents", name)
		}
	}
	// Ours beyond that list: an unexpected error, whose text is not told, what the
	// reference's rows of start and restart have, and a reason of dev run's 500.
	extra := []string{"500 InternalError", "500 ParseError", "500 SecretsError"}
	for name := range names {
		if !reference[name] && !slices.Contains(extra, name) {
			t.Errorf("%s is documented by a route, but not by the reference", name)
		}
	}
}

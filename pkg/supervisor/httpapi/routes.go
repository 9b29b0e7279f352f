package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/openapi"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

// route is one line of the table from which the router and the document of
// /docs are made.
type route struct {
	method, path string
	action       string // in the audit; "" outside /rpc
	bundle       bool   // the body is streamed, not read by the guard
	head         bool   // answers HEAD as well, by which load balancers ask
	handler      echo.HandlerFunc
	tag, about   string
	params       []openapi.Param
	body         *openapi.Body
	replies      []openapi.Reply
	fails        []string // each "<status> <name>"
}

const (
	jsonType  = "application/json"
	eventType = "text/event-stream"
	plainType = "text/plain"
)

// ending is what an operation meets when the supervisor is about to end.
const ending = "503 FormationUnavailable"

// answers is a reply whose data is a T.
func answers[T any](status int) openapi.Reply {
	return openapi.Reply{Status: status, Type: jsonType, Value: envelope[T]{}}
}

// streams is the reply in events of an operation.
func streams() openapi.Reply {
	return openapi.Reply{
		Status: http.StatusOK, Type: eventType,
		About: "with Accept: text/event-stream, events: progress, then one of complete and error",
	}
}

func query(name, about string, value any) openapi.Param {
	return openapi.Param{Name: name, In: "query", About: about, Value: value}
}

func jsonBody(value any) *openapi.Body {
	return &openapi.Body{Types: []string{jsonType}, Value: value}
}

func noBody() *openapi.Body {
	return &openapi.Body{Types: []string{jsonType}, Value: struct{}{}, Optional: true}
}

// routes is the whole table.
func (a *API) routes() []route {
	return slices.Concat(a.publicRoutes(), a.formationRoutes(), a.operationRoutes(), a.bundleRoutes(), a.draftRoutes(),
		a.serverRoutes(), proxiedRoutes())
}

func (a *API) publicRoutes() []route {
	all := []route{
		{
			method: "GET", path: "/ping", head: true, handler: a.ping, tag: "server", about: "Tells that the supervisor answers.",
			replies: []openapi.Reply{{Status: 200, Type: plainType}},
		},
		{
			method: "GET", path: "/health", head: true, handler: a.health, tag: "server", about: "Tells how the supervisor is.",
			replies: []openapi.Reply{{Status: 200, Type: jsonType, Value: healthReply{}}},
		},
		{
			method: "GET", path: "/docs", handler: a.docs, tag: "server", about: "A page with all routes.",
			replies: []openapi.Reply{{Status: 200, Type: "text/html"}, {Status: 200, Type: jsonType, Value: map[string]any{}}},
		},
		{
			method: "GET", path: "/docs/openapi.json", handler: a.openAPI, tag: "server", about: "This document.",
			replies: []openapi.Reply{{Status: 200, Type: jsonType, Value: map[string]any{}}},
		},
	}
	if a.cfg.Metrics != nil {
		all = append(all, route{
			method: "GET", path: "/metrics", handler: a.metrics, tag: "server",
			about:   "Numbers for Prometheus; needs the token of metrics.token when there is one.",
			replies: []openapi.Reply{{Status: 200, Type: plainType}}, fails: []string{"401 Unauthorized"},
		})
	}
	return all
}

func (a *API) formationRoutes() []route {
	const one = "/rpc/formations/:id"
	logQuery := []openapi.Param{
		query("lines", "how many, 1 to 10000; 100 when absent", 0), query("limit", "the same as lines", 0),
		{Name: "stream", In: "query", About: "stdout, stderr or all"},
	}
	logEvents := openapi.Reply{Status: 200, Type: eventType, About: "events: connected, then one log for each new line"}
	return []route{
		{
			method: "GET", path: "/rpc/formations", action: "formations.list", handler: a.list, tag: "formations",
			about: "Lists formations.", params: []openapi.Param{query("status", "only those with this status", nil)},
			replies: []openapi.Reply{answers[listReply](200)},
		},
		{
			method: "GET", path: one, action: "formations.get", handler: a.get, tag: "formations",
			about: "Tells all about one formation.", replies: []openapi.Reply{answers[detail](200)}, fails: []string{"404 FormationNotFound"},
		},
		{
			method: "DELETE", path: one, action: "formations.delete", handler: a.remove, tag: "formations",
			about:   "Stops a formation and removes it with its data.",
			replies: []openapi.Reply{answers[removed](200)}, fails: []string{"404 FormationNotFound", "500 RegisterError", "500 CleanupError", ending},
		},
		{
			method: "GET", path: one + "/logs", action: "formations.logs", handler: a.logs, tag: "formations",
			about:   "The last lines of a formation's logs or, with follow, its new ones as they come.",
			params:  append(slices.Clip(logQuery), query("follow", "true or 1: new lines as events", nil)),
			replies: []openapi.Reply{answers[logReply](200), logEvents}, fails: []string{"400 ValidationError", "404 FormationNotFound"},
		},
		{
			method: "GET", path: one + "/logs/stream", action: "formations.logs", handler: a.followedLogs, tag: "aliases",
			about: "The same as …/logs?follow=true.", params: logQuery[2:],
			replies: []openapi.Reply{logEvents}, fails: []string{"400 ValidationError", "404 FormationNotFound"},
		},
		{
			method: "GET", path: one + "/download", action: "formations.download", handler: a.download, tag: "formations",
			about:   "The current version as a zip file.",
			params:  []openapi.Param{query("db", "true adds the SQLite files of the formation's state", nil)},
			replies: []openapi.Reply{{Status: 200, Type: "application/zip"}}, fails: []string{"404 FormationNotFound", "500 DirectoryError"},
		},
	}
}

// operationRoutes are those with a stream of progress and no bundle.
func (a *API) operationRoutes() []route {
	const one = "/rpc/formations/:id"
	start := route{
		method: "POST", path: one + "/start", action: "formations.start", handler: a.start, tag: "operations",
		about: "Starts a formation.", body: noBody(), replies: []openapi.Reply{answers[started](200), streams()},
		fails: []string{
			"400 ValidationError", "404 FormationNotFound", "409 AlreadyRunning", "409 UpdateInProgress", "500 ParseError", "500 SpawnError",
			"500 HealthCheckFailed", "500 RegisterError", ending,
		},
	}
	restart := route{
		method: "POST", path: one + "/restart", action: "formations.restart", handler: a.restart, tag: "operations",
		about: "Stops and starts a formation.", body: noBody(), replies: []openapi.Reply{answers[restarted](200), streams()},
		fails: []string{
			"400 ValidationError", "404 FormationNotFound", "409 UpdateInProgress", "500 ParseError", "500 SpawnError",
			"500 HealthCheckFailed", "500 RegisterError", ending,
		},
	}
	rollback := route{
		method: "POST", path: one + "/rollback", action: "formations.rollback", handler: a.rollback, tag: "operations",
		about:   "Lets a kept version take over; the previous one unless version names another.",
		body:    &openapi.Body{Types: []string{jsonType}, Value: rollbackRequest{}, Optional: true},
		replies: []openapi.Reply{answers[rolledBack](200), streams()},
		fails: []string{
			"400 ValidationError", "400 NoPreviousVersion", "404 FormationNotFound", "404 VersionNotFound",
			"409 UpdateInProgress", "409 NoChange", "409 DeployConflict", "500 ParseError", "500 SpawnError", "500 HealthCheckFailed",
			"500 RegisterError", ending,
		},
	}
	return []route{
		start, restart, rollback, streamed(start, "400 ValidationError"), streamed(restart, "400 ValidationError"),
		streamed(rollback, "400 ValidationError"),
		{
			method: "POST", path: one + "/stop", action: "formations.stop", handler: a.stop, tag: "operations",
			about: "Drains and stops a formation.", body: noBody(), replies: []openapi.Reply{answers[stopped](200)},
			fails: []string{"400 ValidationError", "404 FormationNotFound", "409 AlreadyStopped", "500 StopError", "500 RegisterError", ending},
		},
		{
			method: "POST", path: one + "/cancel-update", action: "formations.cancel-update", handler: a.cancelUpdate, tag: "operations",
			about: "Gives up the update in progress.", body: noBody(), replies: []openapi.Reply{answers[cancelled](200)},
			fails: []string{"400 ValidationError", "400 NoUpdateInProgress", "404 FormationNotFound"},
		},
	}
}

// streamed is the alias of r whose answer is always a stream. Its failures are
// events under 200, but for the early ones and what the guard refuses.
func streamed(r route, early ...string) route {
	handler := r.handler
	r.handler = func(c echo.Context) error {
		callOf(c).events = true
		return handler(c)
	}
	r.path += "/stream"
	r.tag, r.about = "aliases", r.about+" The answer is a stream."
	r.replies = []openapi.Reply{streams()}
	r.fails = early
	return r
}

func (a *API) draftRoutes() []route {
	return []route{
		{
			method: "POST", path: "/rpc/formations/:id/draft/files", action: "drafts.files", handler: a.draftFiles, tag: "drafts",
			about: "Makes, reads, changes, deploys or discards a formation's draft.", body: jsonBody(draftRequest{}),
			replies: []openapi.Reply{{Status: 200, Type: jsonType, Value: draftReply{}}, streams()},
			fails: slices.Concat([]string{
				"400 InvalidJSON", "400 InvalidAction", "400 InvalidMode", "400 InvalidPath", "400 DecodeError", "400 InvalidFormationID",
				"404 DraftNotFound", "404 LiveNotFound", "404 FileNotFound", "409 DraftAlreadyExists", "409 UpdateInProgress", "409 NoChange",
				"500 CreateError", "500 WriteError", "500 CopyError", "500 StopError", "500 CleanupError", "500 DirectoryError",
				"500 PortAllocationError",
			}, slices.DeleteFunc(laterFailures(), func(f string) bool { return f == "400 VersionMismatch" })), // it comes from a header
		},
		{
			method: "POST", path: "/rpc/dev/run", action: "dev.run", handler: a.devRun, tag: "drafts",
			about: "Runs a directory, or a formation's draft, under /draft/{id}/.", body: jsonBody(devRunRequest{}),
			replies: []openapi.Reply{{Status: 200, Type: jsonType, Value: devReply{}}},
			fails: []string{
				"400 ValidationError", "400 ParseError", "400 InvalidFormationID", "400 IDMismatch", "404 DraftNotFound", "409 DraftRunning",
				"500 PortAllocationError", "500 DirectoryError", "500 ParseError", "500 SecretsError", "500 SpawnError",
				"500 HealthCheckFailed", ending,
			},
		},
		{
			method: "POST", path: "/rpc/dev/stop", action: "dev.stop", handler: a.devStop, tag: "drafts",
			about: "Stops what dev/run started.", body: jsonBody(devStopRequest{}),
			replies: []openapi.Reply{{Status: 200, Type: jsonType, Value: devReply{}}},
			fails:   []string{"400 ValidationError", "404 DraftNotFound", "500 StopError"},
		},
	}
}

func (a *API) serverRoutes() []route {
	return []route{
		{
			method: "GET", path: "/rpc/server/status", action: "server.status", handler: a.status, tag: "server",
			about: "The supervisor, its fleet and its ports in numbers.", replies: []openapi.Reply{answers[statusReply](200)},
		},
		{
			method: "GET", path: "/rpc/server/logs", action: "server.logs", handler: a.serverLogs, tag: "server",
			about: "The last lines of the audit log file.",
			params: []openapi.Param{
				query("lines", "how many, 1 to 10000; 100 when absent", 0), query("limit", "the same as lines", 0),
			},
			replies: []openapi.Reply{{Status: 200, Type: plainType}}, fails: []string{"400 ValidationError", "500 InternalError"},
		},
		{
			method: "GET", path: "/rpc/audit", action: "audit.query", handler: a.audit, tag: "audit",
			about: "Records of the audit chain, the newest first.",
			params: []openapi.Param{
				query("since", "RFC 3339, inclusive", nil), query("until", "RFC 3339, inclusive", nil), query("actor", "id of a key", nil),
				query("action", "for example formations.deploy", nil), query("id", "formation", nil),
				query("limit", "how many, 1 to 1000; 100 when absent", 0),
			},
			replies: []openapi.Reply{answers[auditReply](200)}, fails: []string{"400 ValidationError"},
		},
		{
			method: "GET", path: "/rpc/audit/verify", action: "audit.verify", handler: a.verifyAudit, tag: "audit",
			about: "Walks the whole audit chain.", replies: []openapi.Reply{answers[registry.AuditCheck](200)},
		},
	}
}

// proxiedMethods are those that the document lists for the proxied paths; the
// proxy takes any.
var proxiedMethods = [...]string{"GET", "POST", "PUT", "PATCH", "DELETE"}

// proxiedRoutes are served by the proxy, hence without a handler.
func proxiedRoutes() []route {
	var all []route
	for _, p := range []struct{ prefix, about string }{
		{"/api", "Goes to the formation, without /api/{id}."},
		{"/draft", "Goes to the draft that dev/run started, without /draft/{id}."},
		{"/mcp", "Goes to /mcp of the formation."},
	} {
		for _, path := range []string{p.prefix + "/:id", p.prefix + "/:id/*"} {
			for _, method := range proxiedMethods {
				all = append(all, route{
					method: method, path: path, tag: "formations' own", about: p.about,
					replies: []openapi.Reply{{Status: 200, About: "whatever the formation answers"}},
					fails:   []string{"404 FormationNotFound", "502 BadGateway", "503 FormationUnavailable"},
				})
			}
		}
	}
	return all
}

// operation is the route for the document: the names of failures of a status
// share one reply.
func (a *API) operation(r route) openapi.Operation {
	op := openapi.Operation{Summary: r.about, Tag: r.tag, Params: r.params, Body: r.body, Replies: slices.Clone(r.replies)}
	for _, f := range a.failures(r) {
		status, name, _ := strings.Cut(f, " ")
		code, _ := strconv.Atoi(status)
		value := any(failure{})
		switch r.action {
		case "drafts.files":
			value = draftReply{}
		case "dev.run", "dev.stop":
			value = devFailure{}
		}
		if name == "Unauthorized" || name == "RateLimited" || name == "PayloadTooLarge" {
			value = failure{} // the guard's, before the route
		}
		op.Replies = append(op.Replies, openapi.Reply{Status: code, Type: jsonType, Value: value, About: name})
	}
	if r.action != "" {
		op.Security = []string{"hmac", "hmacHeaders"}
	}
	if r.path == "/metrics" && a.cfg.MetricsToken != "" {
		op.Security = []string{"metricsToken"}
	}
	return op
}

// failures are all of a route's, those included that every call can meet.
func (a *API) failures(r route) []string {
	all := slices.Clone(r.fails)
	if r.action != "" {
		all = append(all, "401 Unauthorized")
	}
	if r.action != "" && !slices.Contains(all, "413 PayloadTooLarge") {
		all = append(all, "413 PayloadTooLarge")
	}
	if r.action != "" || r.handler == nil {
		all = append(all, "429 RateLimited")
	}
	return all
}

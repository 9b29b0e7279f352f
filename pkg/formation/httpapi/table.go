package httpapi

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/openapi"
)

// route is one line of the table that the router, the tools of /mcp and the
// document of /v1/openapi.json are made of.
type route struct {
	method, path string // the path as the router reads it
	head         bool   // answers HEAD as well
	key          access
	user         userRule
	userInBody   bool // the body may name it too
	do           handler
	open         echo.HandlerFunc                        // instead of do: for anybody
	via          func(echo.HandlerFunc) echo.HandlerFunc // around the key's check
	about        string                                  // one sentence
	params       []openapi.Param                         // in the query and headers, but for the user id
	body         any                                     // of the type that is read
	data         any                                     // what the envelope holds, of the type that is written
	status       int                                     // of success; 0 is 200
	plain        string                                  // the media type of an answer without envelope

	// tool is its name as a tool of /mcp, "" when it is none (reference
	// runtime.md 13). turn tells that it begins a turn.
	tool string
	turn bool
}

const (
	jsonType  = "application/json"
	eventType = "text/event-stream"
	tagOpen   = "public"
	tagAdmin  = "administration"
	tagClient = "formation"
)

func query(name, about string, value any) openapi.Param {
	return openapi.Param{Name: name, In: "query", About: about, Value: value}
}

// lastEvent is the header with which a stream is continued.
func lastEvent() openapi.Param {
	return openapi.Param{Name: "Last-Event-ID", In: "header", About: "the id of the last frame that was received: the stream goes on after it"}
}

// register adds the routes of the table to the router.
func (a *api) register(e *echo.Echo) {
	for _, r := range a.table() {
		h := r.open
		if h == nil {
			h = a.guard(&r)
		}
		if r.via != nil {
			h = r.via(h)
		}
		e.Add(r.method, r.path, h)
		if r.head {
			e.HEAD(r.path, h)
		}
	}
}

// describe is the route for the document and the tools.
func (a *api) describe(r *route) openapi.Route {
	op := openapi.Operation{Summary: r.about, Tag: tagClient, Params: r.params}
	switch {
	case r.open != nil:
		op.Tag = tagOpen
	case r.key == adminOnly:
		op.Tag, op.Security = tagAdmin, []string{"adminKey"}
	default:
		op.Security = []string{"clientKey", "adminKey"}
	}
	if r.user != userNone && r.open == nil {
		op.Params = append(slices.Clip(op.Params), openapi.Param{
			Name: httpx.HeaderName(a.cfg.HeaderPrefix, "User-ID"), In: "header", Required: r.user == userRequired, About: userAbout(r.user),
		})
	}
	if r.body != nil {
		op.Body = &openapi.Body{Types: []string{jsonType}, Schema: openapi.Input(r.body)}
	}
	op.Replies = repliesOf(r)
	if a.limits != nil && r.open == nil {
		op.Replies = append(op.Replies, openapi.Reply{Status: http.StatusTooManyRequests, Type: jsonType, Value: enveloped(struct{}{})})
	}
	return openapi.Route{Method: r.method, Path: r.path, Operation: op}
}

func userAbout(rule userRule) string {
	switch rule {
	case userByClient:
		return "whose it is; required with the client key, the admin key sees all without it"
	case userOptional:
		return "whose it is; " + defaultUser + " when it is left out"
	default:
		return "whose it is"
	}
}

func repliesOf(r *route) []openapi.Reply {
	good := openapi.Reply{Status: r.status, Type: jsonType, Value: enveloped(r.data)}
	if good.Status == 0 {
		good.Status = http.StatusOK
	}
	if r.plain != "" {
		good.Type, good.Value = r.plain, r.data
	}
	all := []openapi.Reply{good}
	if r.turn {
		all = append(all, openapi.Reply{Status: http.StatusOK, Type: eventType, About: "with stream or Accept: text/event-stream"},
			openapi.Reply{Status: http.StatusAccepted, Type: jsonType, Value: enveloped(acceptedData{}), About: "it goes on in the background"})
	}
	if r.open != nil {
		return all
	}
	faults := []int{http.StatusUnauthorized, http.StatusInternalServerError, http.StatusServiceUnavailable}
	if len(openapi.PathParams(r.path)) > 0 {
		faults = append(faults, http.StatusNotFound)
	}
	if len(r.params) > 0 || r.user != userNone {
		faults = append(faults, http.StatusBadRequest)
	}
	if r.body != nil {
		faults = append(faults, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge)
	}
	for _, status := range faults {
		all = append(all, openapi.Reply{Status: status, Type: jsonType, Value: enveloped(struct{}{})})
	}
	return all
}

// enveloped is an envelope whose data has the type of data.
func enveloped(data any) any {
	var fields []reflect.StructField
	for f := range reflect.TypeFor[envelope]().Fields() {
		if f.Name == "Data" && data != nil {
			f.Type = reflect.TypeOf(data)
		}
		fields = append(fields, f)
	}
	return reflect.Zero(reflect.StructOf(fields)).Interface()
}

// openAPI answers with the document of all routes. It is made at each request:
// few are made.
func (a *api) openAPI(c echo.Context) error {
	api := openapi.API{
		Info: openapi.Info{
			Title: a.cfg.Formation.ID, Version: a.cfg.Version,
			Description: "The API of a formation. Every reply of JSON is an envelope; times are RFC 3339, UTC.",
		},
		Security: []openapi.Security{
			{Name: "clientKey", Scheme: map[string]any{"type": "apiKey", "in": "header", "name": a.head.client}},
			{Name: "adminKey", Scheme: map[string]any{"type": "apiKey", "in": "header", "name": a.head.admin}},
		},
	}
	table := a.table()
	for i := range table {
		api.Routes = append(api.Routes, a.describe(&table[i]))
	}
	document, err := openapi.Document(api)
	if err != nil {
		return err
	}
	return c.Blob(http.StatusOK, jsonType, document)
}

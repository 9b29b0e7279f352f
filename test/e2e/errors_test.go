package e2e

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentformation/service/test/e2e/harness"
	"github.com/agentformation/service/test/fakellm"
)

func TestChat_FaultsOfTheBodyNameTheField(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("bodies", suite.Pair(t, "bodies", model.URL()).With("\ninput_limits:\n  max_message_length: 10\n"))
	for _, c := range []struct {
		body, code, field, fault string
	}{
		{`{}`, "VALIDATION_ERROR", "message", "missing"},
		{`{"agent_id":"poet"}`, "VALIDATION_ERROR", "message", "missing"},
		{`{"message":"  "}`, "VALIDATION_ERROR", "message", "too_short"},
		{`{"message":7}`, "VALIDATION_ERROR", "message", "wrong_type"},
		{`{"message":"12345678901"}`, "VALIDATION_ERROR", "message", "too_long"},
		{`{"message":"hi","agent_id":7}`, "INVALID_PARAMS", "agent_id", "wrong_type"},
		{`{"message":"hi","use_async":"yes"}`, "INVALID_PARAMS", "use_async", "wrong_type"},
		{`{"message":"hi","mode":"later"}`, "INVALID_PARAMS", "mode", "invalid_format"},
		{`{"message":"hi","webhook_url":"http://127.0.0.1/"}`, "INVALID_PARAMS", "webhook_url", "extra_field"},
		{`{"message":"hi",`, "INVALID_PARAMS", "", "invalid_json"},
		{`not json`, "INVALID_PARAMS", "", "invalid_json"},
		{`["hi"]`, "INVALID_PARAMS", "", "wrong_type"},
	} {
		for _, base := range []string{f.Own(), f.Through()} {
			r := f.Request(c.body)
			r.URL = base + "/v1/chat"
			reply := s.HTTP.Must(r).Want(t, http.StatusUnprocessableEntity, "object", "error", "type", "error.validation",
				"success", "false", "error.code", c.code, "code", c.code, "data", "{}",
				"error.data.validation_errors.0.field", c.field, "error.data.validation_errors.0.error", c.fault)
			if t.Failed() {
				t.Fatalf("for the body %s: %s", c.body, reply.Body)
			}
		}
	}
	if n := model.Count(); n != 0 {
		t.Errorf("the model was asked %d times", n)
	}
}

func TestKeys_MissingWrongAndTooWeakOnesAreChallenged(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	model := fakellm.Start(t, fakellm.Options{})
	f := s.Deploy("locks", suite.Pair(t, "locks", model.URL()))
	const admin, client = `ApiKey realm="admin", header="X-SVC-Admin-Key"`, `ApiKey realm="client", header="X-SVC-Client-Key"`
	for name, c := range map[string]struct {
		method, path, header, key, challenge, says string
	}{
		"no key on chat":          {http.MethodPost, "/v1/chat", "", "", client, "Missing client key"},
		"wrong key on chat":       {http.MethodPost, "/v1/chat", "X-SVC-Client-Key", "fmc_wrong", client, "Invalid client key"},
		"wrong admin key on chat": {http.MethodPost, "/v1/chat", "X-SVC-Admin-Key", "fma_wrong", client, "Invalid admin key"},
		"no key on agents":        {http.MethodGet, "/v1/agents", "", "", admin, "Missing admin key"},
		"wrong key on agents":     {http.MethodGet, "/v1/agents", "X-SVC-Admin-Key", "fma_wrong", admin, "Invalid admin key"},
		"client key on agents":    {http.MethodGet, "/v1/agents", "X-SVC-Client-Key", f.ClientKey, admin, "client key does not open"},
		"no key on a dual route":  {http.MethodGet, "/v1/requests/x", "", "", "ApiKey", "Missing client key"},
	} {
		for _, base := range []string{f.Own(), f.Through()} {
			r := harness.Request{Method: c.method, URL: base + c.path, Header: map[string]string{c.header: c.key}}
			if c.header == "" {
				r.Header = nil
			}
			reply := s.HTTP.Must(r).Want(t, http.StatusUnauthorized, "object", "error", "type", "error.authentication",
				"error.code", "UNAUTHORIZED", "success", "false")
			if got := reply.Header.Get("WWW-Authenticate"); got != c.challenge {
				t.Errorf("%s: challenge %q, want %q", name, got, c.challenge)
			}
			if got := reply.Text("error.message"); !strings.Contains(got, c.says) {
				t.Errorf("%s: message %q, want %q in it", name, got, c.says)
			}
		}
	}
	agents := harness.Request{Method: http.MethodGet, URL: f.Own() + "/v1/agents", Header: map[string]string{"x-svc-admin-key": f.AdminKey}}
	s.HTTP.Must(agents).Want(t, http.StatusOK, "object", "agent_list", "data.count", "2", "data.agents.0.id", "poet")
	chat := harness.Request{
		Method: http.MethodPost, URL: f.Own() + "/v1/chat", Body: `{"message":"hi","agent_id":"poet"}`,
		Header: map[string]string{"X-SVC-Admin-Key": f.AdminKey},
	}
	s.HTTP.Must(chat).Want(t, http.StatusOK, "data.user_id", "0") // the admin key opens client routes; nobody named is user 0
}

func TestManagement_RefusesWhatIsNotSignedRightly(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	const path = "/rpc/formations"
	good := s.Signing(http.MethodGet, path, nil)
	change := func(f func(*harness.Signing)) harness.Signing {
		c := good
		f(&c)
		return c
	}
	for says, c := range map[string]harness.Signing{
		"Invalid key":       change(func(c *harness.Signing) { c.KeyID = "svc_pk_nobody" }),
		"Invalid signature": change(func(c *harness.Signing) { c.Secret += "x" }),
		"Request expired (timestamp too old or in future)": change(func(c *harness.Signing) { c.Time = c.Time.Add(-6 * time.Minute) }),
	} {
		for _, header := range []map[string]string{c.ThreeHeaders(), c.Authorization()} {
			refused(t, s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + path, Header: header}), says)
		}
	}
	for name, c := range map[string]harness.Signing{
		"a clock that is fast":    change(func(c *harness.Signing) { c.Time = c.Time.Add(6 * time.Minute) }),
		"the method in lowercase": change(func(c *harness.Signing) { c.Method = "get" }),
		"another path":            change(func(c *harness.Signing) { c.Path = "/rpc/formations/" }),
		"another body":            change(func(c *harness.Signing) { c.Body = []byte("x") }),
	} {
		reply := s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + path, Header: c.ThreeHeaders()})
		if reply.Status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, reply.Status, reply.Body)
		}
	}
	refused(t, s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + path}), "Missing authorization header")
	refused(t, s.HTTP.Must(harness.Request{
		Method: http.MethodGet, URL: s.URL + path, Header: map[string]string{"Authorization": "Bearer x"},
	}), "Invalid authorization header format")
	// Four minutes are within the window, and the same signature may come twice.
	late := change(func(c *harness.Signing) { c.Time = c.Time.Add(-4 * time.Minute) }).ThreeHeaders()
	for range 2 {
		s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + path, Header: late}).Want(t, http.StatusOK)
	}
}

func refused(t *testing.T, reply harness.Reply, says string) {
	t.Helper()
	reply.Want(t, http.StatusUnauthorized, "success", "false", "error", "Unauthorized", "code", "401", "message", says)
}

func TestManagement_NamesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	for _, call := range [][2]string{
		{http.MethodGet, ""},
		{http.MethodDelete, ""},
		{http.MethodPost, "/start"},
		{http.MethodPost, "/stop"},
		{http.MethodPost, "/restart"},
		{http.MethodGet, "/logs"},
	} {
		s.RPC(call[0], "/rpc/formations/nobody"+call[1]).Want(t, http.StatusNotFound, "success", "false",
			"error", "FormationNotFound", "code", "404", "message", "No formation with id 'nobody'")
	}
	for _, call := range [][2]string{{http.MethodGet, "/rpc/nowhere"}, {http.MethodPatch, "/rpc/formations"}} {
		s.RPC(call[0], call[1]).Want(t, http.StatusNotFound, "error", "NotFound", "message", "Endpoint not found", "code", "404")
	}
	s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + "/nowhere"}).
		Want(t, http.StatusNotFound, "error", "NotFound", "message", "Endpoint not found")
	s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: s.URL + "/rpc/nowhere"}).Want(t, http.StatusUnauthorized)
}

func TestManagement_OperationsOnTheWrongStateAreConflicts(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	f := s.Deploy("solo", suite.Read(t, "test/formations/valid/solo"))
	s.RPC(http.MethodPost, "/rpc/formations/solo/start").Want(t, http.StatusConflict, "error", "AlreadyRunning")
	s.RPC(http.MethodPost, "/rpc/formations/solo/stop").Want(t, http.StatusOK, "data.status", "stopped")
	s.RPC(http.MethodPost, "/rpc/formations/solo/stop").Want(t, http.StatusConflict, "error", "AlreadyStopped")
	reply := s.HTTP.Must(harness.Request{Method: http.MethodGet, URL: f.Through() + "/v1/health"}).
		Want(t, http.StatusServiceUnavailable, "error", "FormationUnavailable", "code", "503")
	if reply.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
}

func TestDeploy_RefusesWhatTheHeadersShow(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	bundle := suite.Read(t, "test/formations/valid/solo").Bundle(t, "solo")
	for name, c := range map[string]struct {
		change map[string]string
		error  string
	}{
		"another content type": {map[string]string{"Content-Type": "application/zip"}, "InvalidContentType"},
		"no id":                {map[string]string{"X-Formation-ID": ""}, "MissingHeader"},
		"an id of two letters": {map[string]string{"X-Formation-ID": "ab"}, "InvalidFormationID"},
		"an id that climbs":    {map[string]string{"X-Formation-ID": "../../etc"}, "InvalidFormationID"},
		"a reserved id":        {map[string]string{"X-Formation-ID": "health"}, "InvalidFormationID"},
		"another id":           {map[string]string{"X-Formation-ID": "other"}, "IDMismatch"},
		"a version of nothing": {map[string]string{"X-Formation-Version": "a version"}, "ValidationError"},
	} {
		r := s.DeployRequest("solo", bundle)
		maps.Copy(r.Header, c.change)
		reply := s.HTTP.Must(r).Want(t, http.StatusBadRequest, "success", "false", "error", c.error, "code", "400")
		if reply.Text("message") == "" || t.Failed() {
			t.Fatalf("%s: %s", name, reply.Body)
		}
	}
	s.RPC(http.MethodGet, "/rpc/formations").Want(t, http.StatusOK, "data.total", "0")
	if left := s.Files("formations", "tmp"); !onlyWorkrooms(left) {
		t.Errorf("left behind: %v", left)
	}
}

func TestDeploy_ManifestFaultsNamePlaceAndRemedy(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{})
	for id, says := range map[string][]string{
		"bad-schema":          {`formation.afs:1:9: schema: "2.0.0" is no supported schema; write schema: "1.0.0"`},
		"duplicate-key":       {`formation.afs:8:1: description:`, "first at 3:1", "keep one"},
		"missing-description": {`formation.afs:1:1: description: is required; write description:`},
		"unknown-agent":       {`formation.afs:5:5: agents[0]: agents/wirter.afs`, `did you mean "writer"?`},
		"wrong-enum":          {`agents/writer.afs:5:7: role: "specalist"`, `did you mean "specialist"?`},
		"many": {
			"formation.afs:5:9: server.port: takes a whole number", "formation.afs:6:3: server.auth: was removed; set server.api_keys",
			`formation.afs:9:13: overlord.response.format: "markdwon"`, "formation.afs:14:5: agents[1]: agents/editor.afs",
			"agents/writer.afs:1:1: description: is required", "agents/writer.afs:6:18: llm.settings.temperature: is 3; it goes from 0 to 2",
		},
	} {
		bundle := suite.Read(t, "test/formations/broken/"+id).Bundle(t, id)
		reply := s.HTTP.Must(s.DeployRequest(id, bundle)).Want(t, http.StatusBadRequest, "success", "false", "error", "ParseError", "code", "400")
		r := s.DeployRequest(id, bundle)
		r.Header["Accept"] = "text/event-stream"
		frames := s.HTTP.MustStream(r).MustRest(t)
		last := frames[len(frames)-1]
		if last.Event != "error" || last.Text("error") != "ParseError" || last.Text("stage") != "validating" {
			t.Errorf("%s: the stream ends with %+v", id, last)
		}
		for _, text := range says {
			if !strings.Contains(reply.Text("message"), text) || !strings.Contains(last.Text("message"), text) {
				t.Errorf("%s: %q is not in\n%s\nor not in\n%s", id, text, reply.Text("message"), last.Text("message"))
			}
		}
	}
	missing := suite.Read(t, "test/formations/valid/missing-secret").Bundle(t, "missing-secret")
	reply := s.HTTP.Must(s.DeployRequest("missing-secret", missing)).Want(t, http.StatusBadRequest, "error", "SecretsError")
	if !strings.Contains(reply.Text("message"), "NOBODY_STORED_THIS") {
		t.Errorf("the message %q does not name the secret", reply.Text("message"))
	}
	s.RPC(http.MethodGet, "/rpc/formations").Want(t, http.StatusOK, "data.total", "0")
	if left := s.Files("formations", "tmp"); !onlyWorkrooms(left) {
		t.Errorf("left behind: %v", left)
	}
}

// endless is a body of n bytes that costs no memory.
func endless(n int64) io.Reader { return io.LimitReader(spaces{}, n) }

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestLimits_AnOversizedBodyIsRefusedOnBothSides(t *testing.T) {
	t.Parallel()
	s := suite.Start(t, harness.Options{Settings: "limits:\n  bundle:\n    max_bytes: 100K\n"})
	f := s.Deploy("solo", suite.Read(t, "test/formations/valid/solo"))
	for _, base := range []string{f.Own(), f.Through()} {
		r := f.Request(endless(80<<20 + 1))
		r.URL = base + "/v1/chat"
		reply := s.HTTP.Must(r).Want(t, http.StatusRequestEntityTooLarge, "object", "error", "error.code", "PAYLOAD_TOO_LARGE", "success", "false")
		if !reply.Closes { // the rest of the body may be on its way
			t.Errorf("%s does not announce that the connection cannot be used again", base)
		}
	}
	// Signed without the body, so that it need not be hashed.
	const path = "/rpc/formations"
	header := s.Signing(http.MethodPost, path, nil).Authorization()
	header["Content-Type"], header["X-Formation-ID"] = "application/gzip", "large"
	s.HTTP.Must(harness.Request{Method: http.MethodPost, URL: s.URL + path, Header: header, Body: endless(100<<10 + 1)}).
		Want(t, http.StatusRequestEntityTooLarge, "success", "false", "error", "PayloadTooLarge", "code", "413")
	stop := path + "/solo/stop"
	header = s.Signing(http.MethodPost, stop, nil).Authorization()
	s.HTTP.Must(harness.Request{Method: http.MethodPost, URL: s.URL + stop, Header: header, Body: endless(1<<20 + 1)}).
		Want(t, http.StatusRequestEntityTooLarge, "error", "PayloadTooLarge")
	f.Get().Want(t, http.StatusOK, "data.status", "running")
	if left := s.Files("tmp"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

package client_test

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/client"
)

// TestServer_CallsTheRoutesOfTheReference has one row per route of the
// management side: what is sent, and what is made of the documented answer.
func TestServer_CallsTheRoutesOfTheReference(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	seq := int64(7)
	status := &client.ServerStatus{}
	status.Server.ID, status.Server.Version, status.Server.Uptime, status.Server.Port = "server-a", "0.2", 9, 7890
	status.Formations.Total, status.Formations.Crashed = 3, 1
	status.Ports.Range = "8000-9000"
	status.Runtime.Versions = []string{"0.2"}
	draft := &client.DraftReply{Data: client.DraftData{
		Path: ".", Entries: []client.DraftEntry{{Name: "agents/", Type: "dir"}, {Name: "formation.afs", Type: "file", Size: 9}},
	}}
	draft.Draft.Exists, draft.Draft.BaseVersion, draft.Draft.CreatedAt = true, "1.0.0", &at
	draft.Live.Version, draft.Live.Status = "1.0.0", "running"
	for name, tc := range map[string]struct {
		call  func(context.Context, *client.Server) (any, error)
		asks  string // method, path and query, and the body when there is one
		reply string
		want  any
	}{
		"update": {
			func(ctx context.Context, s *client.Server) (any, error) {
				return s.Update(ctx, client.DeployRequest{ID: "x", Version: "1.1.0", Bundle: strings.NewReader("gz"), Plain: true}, nil)
			},
			"PUT /rpc/formations/x gz",
			`{"data":{"id":"x","formation_id":"x","status":"running","version":"1.1.0","previous_version":"1.0.0","port":8000,"pid":7,"message":"m","deployment_type":"blue-green"}}`,
			&client.Launched{FormationID: "x", Status: "running", Version: "1.1.0", PreviousVersion: "1.0.0", Port: 8000, PID: 7, Message: "m"},
		},
		"rollback": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.Rollback(ctx, "x", "", nil) },
			"POST /rpc/formations/x/rollback",
			`{"data":{"id":"x","status":"running","version":"1.0.0","current_version":"1.0.0","previous_version":"1.1.0","pid":8,"message":"m"}}`,
			&client.Launched{FormationID: "x", Status: "running", Version: "1.0.0", PreviousVersion: "1.1.0", PID: 8, Message: "m"},
		},
		"rollback to a version": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.Rollback(ctx, "x", "0.9", nil) },
			`POST /rpc/formations/x/rollback {"version":"0.9"}`,
			`{"data":{"id":"x","current_version":"0.9"}}`,
			&client.Launched{FormationID: "x", Version: "0.9"},
		},
		"cancel-update": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.CancelUpdate(ctx, "x") },
			"POST /rpc/formations/x/cancel-update",
			`{"data":{"message":"m","formation_id":"x","staging_port":8000,"status":"running","current_port":8000}}`,
			&client.Cancelled{FormationID: "x", Message: "m", Status: "running", CurrentPort: 8000},
		},
		"status": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.Status(ctx) },
			"GET /rpc/server/status",
			`{"data":{"server":{"id":"server-a","server_id":"server-a","version":"0.2","uptime":9,"port":7890},"formations":{"total":3,"crashed":1},` +
				`"port_pool":{"total":1001},"ports":{"range":"8000-9000"},"runtime":{"versions":["0.2"]}}}`,
			status,
		},
		"server logs": {
			func(ctx context.Context, s *client.Server) (any, error) {
				text, err := s.ServerLogs(ctx, 5)
				return string(text), err
			},
			"GET /rpc/server/logs?lines=5", "{\"seq\":1}\n", "{\"seq\":1}\n",
		},
		"audit": {
			func(ctx context.Context, s *client.Server) (any, error) {
				return s.Audit(ctx, client.AuditFilter{Since: at, Until: at.Add(time.Hour), Actor: "a", Action: "deploy", ID: "x", Limit: 3})
			},
			"GET /rpc/audit?action=deploy&actor=a&id=x&limit=3&since=2026-01-02T03%3A04%3A05Z&until=2026-01-02T04%3A04%3A05Z",
			`{"data":{"entries":[{"seq":7,"time":"2026-01-02T03:04:05Z","actor":"a","action":"deploy","id":"x","result":"ok","status":201,"request_id":"r","remote_addr":"::1","hash":"h","prev_hash":"p"}],"count":1}}`,
			[]client.AuditEntry{{
				Seq: 7, Time: at, Actor: "a", Action: "deploy", ID: "x", Result: "ok", Status: 201, RequestID: "r",
				RemoteAddr: "::1", Hash: "h", PrevHash: "p",
			}},
		},
		"audit verify": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.VerifyAudit(ctx) },
			"GET /rpc/audit/verify", `{"data":{"valid":false,"count":9,"first_seq":1,"last_seq":9,"broken_at":7}}`,
			&client.AuditCheck{Count: 9, FirstSeq: 1, LastSeq: 9, BrokenAt: &seq},
		},
		"draft": {
			func(ctx context.Context, s *client.Server) (any, error) {
				return s.Draft(ctx, "x", client.DraftRequest{Action: client.DraftList, Path: "."})
			},
			`POST /rpc/formations/x/draft/files {"action":"list","path":"."}`,
			`{"success":true,"data":{"path":".","entries":[{"name":"agents/","type":"dir"},{"name":"formation.afs","type":"file","size":9}]},` +
				`"draft":{"exists":true,"base_version":"1.0.0","created_at":"2026-01-02T03:04:05Z"},"live":{"version":"1.0.0","status":"running"}}`,
			draft,
		},
		"draft deploy": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.DeployDraft(ctx, "x", nil) },
			`POST /rpc/formations/x/draft/files {"action":"deploy"}`,
			`{"data":{"formation_id":"x","status":"running","port":8000}}`,
			&client.Launched{FormationID: "x", Status: "running", Port: 8000},
		},
		"dev run of a directory": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.DevRunDir(ctx, "/srv/x") },
			`POST /rpc/dev/run {"path":"/srv/x"}`,
			`{"success":true,"formation_id":"x","port":8001,"status":"running","data":{"formation_id":"x","port":8001,"status":"running"}}`,
			&client.Dev{FormationID: "x", Port: 8001, Status: "running"},
		},
		"dev run of a draft": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.DevRun(ctx, "x") },
			`POST /rpc/dev/run {"formation_id":"x"}`, `{"data":{"formation_id":"x"}}`, &client.Dev{FormationID: "x"},
		},
		"dev stop": {
			func(ctx context.Context, s *client.Server) (any, error) { return s.DevStop(ctx, "x") },
			`POST /rpc/dev/stop {"formation_id":"x"}`, `{"data":{"formation_id":"x","status":"stopped"}}`,
			&client.Dev{FormationID: "x", Status: "stopped"},
		},
		"download": {
			func(ctx context.Context, s *client.Server) (any, error) {
				var out bytes.Buffer
				n, err := s.Download(ctx, "x", true, &out)
				if n != int64(out.Len()) {
					return nil, errors.New("the count of bytes is wrong")
				}
				return out.String(), err
			},
			"GET /rpc/formations/x/download?db=true", "PK...", "PK...",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				if got := strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body)); got != tc.asks {
					t.Errorf("asked %s\nwant  %s", got, tc.asks)
				}
				answer(w, 200, tc.reply)
			})
			got, err := tc.call(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUpdate_FollowsTheEvents(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") != "text/event-stream" || r.Header.Get("X-Formation-Version") != "1.1.0" || r.Header.Get("X-Formation-ID") != "" {
			t.Errorf("headers %v", r.Header)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			t.Error(err)
		}
		events(w, "event: progress\ndata: {\"stage\":\"swapping\",\"message\":\"m\"}",
			"event: complete\ndata: {\"formation_id\":\"x\",\"port\":8000,\"status\":\"running\",\"previous_version\":\"1.0.0\",\"new_version\":\"1.1.0\"}")
	})
	var got stages
	l, err := s.Update(t.Context(), client.DeployRequest{ID: "x", Version: "1.1.0", Bundle: strings.NewReader("gz")}, got.add)
	if err != nil {
		t.Fatal(err)
	}
	want := &client.Launched{FormationID: "x", Port: 8000, Status: "running", Version: "1.1.0", PreviousVersion: "1.0.0"}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(stages{"uploading", "uploaded", "swapping"}, got); diff != "" {
		t.Error(diff)
	}
}

// A flat error of the dev routes is an error like any other.
func TestDevRun_TellsTheErrorByName(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 409, `{"success":false,"formation_id":"x","error":"DraftRunning","message":"it runs","code":409}`)
	})
	_, err := s.DevRun(t.Context(), "x")
	if e := wantError(t, err, 409, "DraftRunning"); e.Message != "it runs" {
		t.Errorf("message %q", e.Message)
	}
}

func TestDownload_TellsAFileThatIsCutOff(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Write([]byte("PK"))
	})
	n, err := s.Download(t.Context(), "x", false, io.Discard)
	wantError(t, err, 0, client.NameBrokenStream)
	if n != 2 {
		t.Errorf("%d bytes", n)
	}
}

var errFull = errors.New("no space is left")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestDownload_ReturnsTheErrorOfTheWriter(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("PK")) })
	if _, err := s.Download(t.Context(), "x", false, full{}); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
}

func TestTLS_TrustsOnlyWhatItIsToldTo(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("pong")) }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // of the handshakes that are refused
	srv.StartTLS()
	t.Cleanup(srv.Close)
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	other := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("another one")})
	ping := func(t *testing.T, cfg client.ServerConfig) error {
		t.Helper()
		cfg.URL = srv.URL
		s, err := client.NewServer(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s.Ping(t.Context())
	}
	wantError(t, ping(t, client.ServerConfig{}), 0, client.NameUnreachable)
	ca, err := client.TrustCA(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := ping(t, client.ServerConfig{TLS: ca}); err != nil {
		t.Errorf("its own authority: %v", err)
	}
	only, err := client.TrustOnly(append(key, own...))
	if err != nil {
		t.Fatal(err)
	}
	if err := ping(t, client.ServerConfig{TLS: only}); err != nil {
		t.Errorf("its own certificate: %v", err)
	}
	wrong, err := client.TrustOnly(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := ping(t, client.ServerConfig{TLS: wrong}); err == nil || !strings.Contains(err.Error(), "another certificate") {
		t.Errorf("another certificate: %v", err)
	}
	for _, text := range []string{"", "no certificate", string(key)} {
		if _, err := client.TrustCA([]byte(text)); err == nil {
			t.Errorf("TrustCA took %q", text)
		}
		if _, err := client.TrustOnly([]byte(text)); err == nil {
			t.Errorf("TrustOnly took %q", text)
		}
	}
}

func TestFormation_ReachesADraft(t *testing.T) {
	t.Parallel()
	f := newFormation(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/draft/x/v1/health" {
			t.Errorf("asked %s", r.URL.Path)
		}
		answer(w, 200, `{"status":"healthy"}`)
	}, func(cfg *client.FormationConfig) { cfg.ID, cfg.Draft = "x", true })
	if _, err := f.Health(t.Context()); err != nil {
		t.Fatal(err)
	}
}

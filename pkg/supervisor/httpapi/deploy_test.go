package httpapi_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/deploy"
	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
	"github.com/agentformation/service/pkg/supervisor/httpapi"
)

func TestDeploy_AcceptsBothSignaturesAndAllContentTypes(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	for i, kind := range []string{"application/gzip", "application/x-gzip; x=y", "Application/Octet-Stream"} {
		c := d.deployCall("hello", body)
		c.header["Content-Type"] = kind
		c.header["X-Formation-Version"] = "1.2.3"
		if i%2 == 0 {
			c.sign = threeHeaders
		}
		d.data(t, 201, c)
		d.data(t, 200, call{method: "DELETE", path: "/rpc/formations/hello"})
	}
}

func TestDeploy_HeaderFaults(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	d.data(t, 201, d.deployCall("hello", body))
	for name, tc := range map[string]struct {
		change func(map[string]string)
		code   int
		fault  string
		text   string
	}{
		"no content type":    {func(h map[string]string) { h["Content-Type"] = "" }, 400, "InvalidContentType", "application/gzip"},
		"other content type": {func(h map[string]string) { h["Content-Type"] = "application/json" }, 400, "InvalidContentType", "application/gzip"},
		"no id":              {func(h map[string]string) { h["X-Formation-ID"] = "" }, 400, "MissingHeader", "X-Formation-ID"},
		"bad id":             {func(h map[string]string) { h["X-Formation-ID"] = "../x" }, 400, "InvalidFormationID", "3 to 50"},
		"reserved id":        {func(h map[string]string) { h["X-Formation-ID"] = "metrics" }, 400, "InvalidFormationID", "reserved"},
		"exists":             {func(map[string]string) {}, 409, "ValidationError", "already exists"},
		"other id":           {func(h map[string]string) { h["X-Formation-ID"] = "other" }, 400, "IDMismatch", "other"},
	} {
		for _, accept := range []string{"application/json", "text/event-stream"} {
			if name == "other id" && accept != "application/json" {
				continue // told on the stream
			}
			for _, sign := range []func(*http.Request, []byte){authorize, threeHeaders} {
				t.Run(name, func(t *testing.T) {
					c := d.deployCall("hello", body)
					c.sign, c.header["Accept"] = sign, accept
					tc.change(c.header)
					d.refused(t, tc.code, tc.fault, tc.text, c)
				})
			}
		}
	}
}

func TestDeploy_AWrongSignatureOverTheBodyTellsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "taken", nil)
	before := d.Left(t)
	for _, id := range []string{"taken", "fresh", "../bad", ""} {
		c := d.deployCall(id, []byte("some body"))
		c.sign = func(r *http.Request, _ []byte) { threeHeaders(r, []byte("another body")) }
		d.refused(t, 401, "Unauthorized", "Invalid signature", c)
	}
	if diff := cmp.Diff(before, d.Left(t)); diff != "" {
		t.Errorf("on disk (-before +after):\n%s", diff)
	}
}

func TestDeploy_SkewedClock(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for _, off := range []time.Duration{-6 * time.Minute, 6 * time.Minute} {
		ts := time.Now().Add(off).Unix()
		d.refused(t, 401, "Unauthorized", "Request expired (timestamp too old or in future)", call{
			method: "GET", path: "/rpc/formations", sign: func(r *http.Request, _ []byte) {
				r.Header.Set("Authorization", fmt.Sprintf("SVC-HMAC key=%s, timestamp=%d, signature=%s", keyID, ts, sign(fmt.Sprintf("%d;GET;/rpc/formations", ts))))
			},
		})
	}
}

// archiveOf writes entries with the rights and wrongs of a test.
func archiveOf(t *testing.T, entries ...tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	gz := gzip.NewWriter(&buf)
	tw := tar.NewWriter(gz)
	for _, h := range entries {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Mode = 0o644
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(tw, zeros{}, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestDeploy_RefusesHostileArchivesAndLeavesTheDiskClean(t *testing.T) {
	t.Parallel()
	d := setup(t, func(c *deploy.Config) { c.Limits.MaxEntries, c.Limits.MaxBytes = 2000, 1<<20 })
	good := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	file := func(name string) tar.Header { return tar.Header{Name: name} }
	link := func(typ byte, target string) tar.Header {
		return tar.Header{Name: "hello/link", Typeflag: typ, Linkname: target}
	}
	many := make([]tar.Header, 2001)
	for i := range many {
		many[i] = file(fmt.Sprintf("hello/%d", i))
	}
	badSum := bytes.Clone(good)
	badSum[len(badSum)-5] ^= 1
	for name, tc := range map[string]struct {
		body []byte
		code int
		text string
	}{
		"dot dot":               {archiveOf(t, file("../evil")), 400, ".. is not allowed"},
		"absolute":              {archiveOf(t, file("/tmp/evil")), 400, "absolute"},
		"symlink, then a write": {archiveOf(t, link(tar.TypeSymlink, "/tmp"), file("hello/link/evil")), 400, "symbolic link"},
		"hard link":             {archiveOf(t, file("hello/a"), link(tar.TypeLink, "hello/a")), 400, "hard link"},
		"device":                {archiveOf(t, link(tar.TypeChar, "")), 400, "device"},
		"duplicate":             {archiveOf(t, file("hello/a"), file("hello/a")), 400, "two entries"},
		"too many entries":      {archiveOf(t, many...), 413, "max_entries"},
		"high ratio":            {archiveOf(t, tar.Header{Name: "hello/a", Size: 8 << 20}), 413, "max_ratio"},
		"truncated":             {good[:len(good)/2], 400, "truncated"},
		"wrong checksum":        {badSum, 400, "checksum"},
		"trailing garbage":      {append(bytes.Clone(good), "garbage"...), 400, "after the end of the gzip stream"},
		"no gzip":               {[]byte("{}"), 400, "not a gzip stream"},
		"empty":                 {nil, 400, "not a gzip stream"},
		"too large":             {make([]byte, 1<<20+1), 413, "max_bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[int]string{400: "ExtractError", 413: "PayloadTooLarge"}[tc.code]
			d.refused(t, tc.code, want, tc.text, d.deployCall("hello", tc.body))
			if left := d.Left(t); len(left) != 0 {
				t.Errorf("left on disk: %q", left)
			}
		})
	}
	d.data(t, 201, d.deployCall("hello", good))
}

func TestDeploy_AChunkedBodyBeyondTheLimitIsRefused(t *testing.T) {
	t.Parallel()
	d := setup(t, func(c *deploy.Config) { c.Limits.MaxBytes = 1000 })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/rpc/formations", io.LimitReader(zeros{}, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	authorize(req, nil)
	req.Header.Set("Content-Type", "application/gzip")
	req.Header.Set("X-Formation-ID", "hello")
	res, err := d.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 413 {
		t.Errorf("status %d, want 413", res.StatusCode)
	}
	if left := d.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %q", left)
	}
}

func TestDeploy_Stream(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	c := d.deployCall("hello", deploytest.Bundle(t, "hello", deploytest.Files("hello", nil)))
	c.header["Accept"] = "text/event-stream"
	res := d.send(t, t.Context(), c)
	defer res.Body.Close()
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	all := events(t, res.Body, nil)
	last := all[len(all)-1]
	var stages []string
	for _, e := range all[:len(all)-1] {
		stage := e.data["stage"].(string)
		if e.name != "progress" || e.data["message"] == "" {
			t.Errorf("event %+v", e)
		}
		if (stage == "health_check") != (e.data["max_attempts"] != nil) {
			t.Errorf("attempts in %+v", e)
		}
		if len(stages) == 0 || stages[len(stages)-1] != stage {
			stages = append(stages, stage)
		}
	}
	if got := strings.Join(stages, " "); got != "extracting validating resolving_runtime spawning health_check" {
		t.Errorf("stages = %s", got)
	}
	want := map[string]any{
		"formation_id": "hello", "port": float64(d.First), "status": "running", "url": d.url + "/api/hello",
		"health_url": fmt.Sprintf("http://localhost:%d/v1/health", d.First), "pid": last.data["pid"], "new_version": "1.2.3",
	}
	if diff := cmp.Diff(want, last.data); diff != "" || last.name != "complete" {
		t.Errorf("last event %s (-want +got):\n%s", last.name, diff)
	}
}

func TestDeploy_StreamOfAFailure(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	for mode, want := range map[string]map[string]any{
		"crash":   {"error": "HealthCheckFailed", "message": "Formation crashed during startup: the disk is on fire", "stage": "health_check", "rollback_status": "success"},
		"secrets": {"error": "SecretsError", "message": "secret API_KEY is missing; set it with: supervisor secrets", "stage": "validating", "rollback_status": "success"},
	} {
		c := d.deployCall("hello", deploytest.Bundle(t, "hello", deploytest.Files("hello", map[string]string{"behave": mode})))
		c.header["Accept"] = "text/event-stream"
		res := d.send(t, t.Context(), c)
		all := events(t, res.Body, nil)
		res.Body.Close()
		last := all[len(all)-1]
		if diff := cmp.Diff(want, last.data); diff != "" || last.name != "error" || res.StatusCode != 200 {
			t.Errorf("%s: last event %s (-want +got):\n%s", mode, last.name, diff)
		}
		if left := d.Left(t); len(left) != 0 {
			t.Errorf("left on disk: %q", left)
		}
	}
}

func TestLifecycle_StreamsCarryRefusalsAsEvents(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	d.mustDeploy(t, "hello", nil)
	stream := func(path string) []event {
		res := d.send(t, t.Context(), call{method: "POST", path: "/rpc/formations/" + path, header: map[string]string{"Accept": "text/event-stream"}})
		defer res.Body.Close()
		if res.StatusCode != 200 {
			t.Errorf("%s: status %d", path, res.StatusCode)
		}
		return events(t, res.Body, nil)
	}
	for path, want := range map[string]string{"nobody/start": "FormationNotFound", "nobody/restart": "FormationNotFound", "hello/start": "AlreadyRunning"} {
		if all := stream(path); len(all) != 1 || all[0].name != "error" || all[0].data["error"] != want || all[0].data["stage"] == nil {
			t.Errorf("%s: %+v, want one %s", path, all, want)
		}
	}
	all := stream("hello/restart")
	last := all[len(all)-1]
	if last.name != "complete" || last.data["restart_count"] != 1.0 || last.data["formation_id"] != "hello" || last.data["port"] != float64(d.First) {
		t.Errorf("restart: %+v", last)
	}
}

func TestDeploy_UploadsThatAreNotProvenYetAreBounded(t *testing.T) {
	t.Parallel()
	d := setup(t, nil)
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	// Eight uploads that stay half way, each on its own connection.
	var held []*io.PipeWriter
	answers := make(chan int, 8)
	for range 8 {
		pr, pw := io.Pipe()
		held = append(held, pw)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/rpc/formations", pr)
		if err != nil {
			t.Fatal(err)
		}
		threeHeaders(req, body)
		req.Header.Set("Content-Type", "application/gzip")
		req.Header.Set("X-Formation-ID", "hello")
		go func() {
			res, err := d.client.Do(req)
			if err != nil {
				answers <- 0
				return
			}
			res.Body.Close()
			answers <- res.StatusCode
		}()
		if _, err := pw.Write(body[:10]); err != nil {
			t.Fatal(err)
		}
	}
	deploytest.Eventually(t, "eight uploads are on disk", func() bool { return len(d.Left(t)) == 8 })
	c := d.deployCall("hello", body)
	c.sign = threeHeaders
	if res := d.refused(t, 429, "RateLimited", "too many uploads", c); res.Header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	// A signature that needs no body is not held up by them.
	d.data(t, 201, d.deployCall("hello", body))
	for _, pw := range held {
		pw.CloseWithError(io.ErrUnexpectedEOF)
	}
	for range held {
		if code := <-answers; code != 0 {
			t.Errorf("an upload that broke off was answered %d", code)
		}
	}
}

func TestDeploy_AnUploadThatFallsSilentGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	d := setupWith(t, nil, func(cfg *httpapi.Config) { cfg.UploadPatience = time.Second })
	body := deploytest.Bundle(t, "hello", deploytest.Files("hello", nil))
	for _, sign := range []func(*http.Request, []byte){threeHeaders, authorize} {
		pr, pw := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/rpc/formations", pr)
		if err != nil {
			t.Fatal(err)
		}
		sign(req, body)
		req.Header.Set("Content-Type", "application/gzip")
		req.Header.Set("X-Formation-ID", "hello")
		got := make(chan answer, 1)
		go func() { got <- d.exchange(req) }()
		if _, err := pw.Write(body[:10]); err != nil {
			t.Fatal(err)
		}
		if a := <-got; a.status != http.StatusBadRequest || a.name != "ExtractError" || !strings.Contains(a.body, "the upload broke off") {
			t.Errorf("answered %s %s", a, a.body)
		}
		pw.CloseWithError(io.ErrUnexpectedEOF)
	}
	if left := d.Left(t); len(left) != 0 {
		t.Errorf("left on disk: %v", left)
	}
	d.data(t, 201, d.deployCall("hello", body))
}

package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/agentformation/service/pkg/formation/request"
)

var asAnn = []string{"X-SVC-Client-Key", clientKey, "X-SVC-User-Id", "ann"}

func TestChat_FiftyDuplicatesReachTheModelOnceAndSayTheSame(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	replies := make([]string, 50)
	var wg sync.WaitGroup
	for i := range replies {
		wg.Go(func() {
			res := d.send(t, "POST", "/v1/chat", `{"message":"hi"}`, append([]string{"X-SVC-Idempotency-Key", "k"}, asAnn...)...)
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("got %d, %v", res.StatusCode, err)
			}
			replies[i] = string(body)
		})
	}
	wg.Wait()
	for _, r := range replies[1:] {
		if r != replies[0] {
			t.Errorf("two replies differ:\n%s\n%s", replies[0], r)
		}
	}
	if n := d.script.calls.Load(); n != 1 {
		t.Errorf("the model was asked %d times", n)
	}
}

func TestChat_BodyOverTheLimitIsRefusedBeforeItIsRead(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(d.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/chat HTTP/1.1\r\nHost: x\r\nX-SVC-Client-Key: %s\r\nContent-Length: %d\r\n\r\n", clientKey, 80<<20+1)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(body), `"code":"PAYLOAD_TOO_LARGE"`) {
		t.Errorf("got %d %s", res.StatusCode, body)
	}
}

func TestChat_StreamsWhenTheFormationSaysSo(t *testing.T) {
	t.Parallel()
	f := formationForTest()
	f.Overlord.Response.Streaming = true
	d := openDoor(t, doorOptions{formation: f})
	for body, want := range map[string]string{
		`{"message":"hi"}`: "text/event-stream", `{"message":"hi","stream":null}`: "text/event-stream",
		`{"message":"hi","stream":false}`: "application/json",
	} {
		res := d.send(t, "POST", "/v1/chat", body, asAnn...)
		if got := res.Header.Get("Content-Type"); got != want {
			t.Errorf("%s: got %s, want %s", body, got, want)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
}

func TestChat_OverItsThresholdTheTurnContinuesInTheBackground(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	res := d.send(t, "POST", "/v1/chat", `{"message":"wait","threshold_seconds":0.001,"request_id":"r1"}`, asAnn...)
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != http.StatusAccepted || !strings.Contains(string(body), `"poll_url":"/v1/requests/r1"`) {
		t.Fatalf("got %d %s", res.StatusCode, body)
	}
	close(d.script.release)
	if got := d.ended(t, "r1"); got.Status != request.Completed {
		t.Errorf("the turn ended %s", got.Status)
	}
}

// ended waits for a request to end and returns its record.
func (d *door) ended(t *testing.T, id string) *request.Record {
	t.Helper()
	h, err := d.turns.Find(t.Context(), "", id, true)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = h.Wait(t.Context())
	r, err := request.Get(t.Context(), d.db, id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChat_FramesArriveBeforeTheTurnEndsAndItOutlivesItsReader(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+"/v1/chat",
		strings.NewReader(`{"message":"wait","stream":true,"request_id":"r1"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-SVC-Client-Key", clientKey)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for _, want := range []string{": keepalive", "", "id: 1"} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q, want %q", lines.Text(), want)
		}
	}
	<-d.script.started // the turn is running while its first frames are here
	leave()
	close(d.script.release)
	if got := d.ended(t, "r1"); got.Status != request.Completed {
		t.Errorf("the turn ended %s", got.Status)
	}
	// The rest is read by the one who comes back.
	rest := d.send(t, "POST", "/v1/chat", `{"request_id":"r1"}`, "X-SVC-Client-Key", clientKey, "Last-Event-ID", "1")
	all := frames(t, rest)
	if len(all) < 3 || all[0].id != "2" || all[len(all)-1].data != `{"finished":true}` {
		t.Errorf("got %+v", all)
	}
}

func TestChat_AStreamCutByTheEndOfTheProcessSaysNoDone(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	res := d.send(t, "POST", "/v1/chat", `{"message":"wait","stream":true,"request_id":"r1"}`, asAnn...)
	<-d.script.started
	d.turns.Stop()
	for _, f := range frames(t, res) {
		if f.event != "" {
			t.Errorf("a turn that goes on later sent %+v", f)
		}
	}
}

func TestChat_ACancelledTurnAnswersEmpty(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	var wg sync.WaitGroup
	wg.Go(func() {
		res := d.send(t, "POST", "/v1/chat", `{"message":"wait","mode":"sync","request_id":"r1"}`, asAnn...)
		var got struct {
			Data struct{ Response, Status string }
		}
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil || res.StatusCode != 200 ||
			got.Data.Response != "" || got.Data.Status != request.Cancelled {
			t.Errorf("got %d %+v %v", res.StatusCode, got, err)
		}
	})
	<-d.script.started
	if res := d.send(t, "DELETE", "/v1/requests/r1", "", asAnn...); res.StatusCode != http.StatusOK {
		t.Errorf("cancel: %d", res.StatusCode)
	}
	wg.Wait()
}

func TestDraining_SaysDownAndClosesConnections(t *testing.T) {
	t.Parallel()
	var draining atomic.Bool
	d := openDoor(t, doorOptions{draining: draining.Load})
	draining.Store(true)
	res := d.send(t, "GET", "/", "")
	body, _ := io.ReadAll(res.Body)
	if !strings.Contains(string(body), "Down") || !res.Close {
		t.Errorf("got %s, close %v", body, res.Close)
	}
}

func TestStatus_CountsTurns(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	d.send(t, "POST", "/v1/chat", `{"message":"wait","mode":"async"}`, asAnn...)
	<-d.script.started
	defer close(d.script.release)
	res := d.send(t, "GET", "/v1/status", "", "X-SVC-Admin-Key", adminKey)
	var got struct {
		Data struct {
			Stats struct {
				Requests struct{ Total, Active int }
				Memory   struct {
					Working float64 `json:"working_memory_mb"`
					Usage   float64 `json:"memory_usage_mb"`
				}
			}
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	stats := got.Data.Stats
	if stats.Requests.Total != 1 || stats.Requests.Active != 1 || stats.Memory.Working <= 0 || stats.Memory.Usage < stats.Memory.Working {
		t.Errorf("got %+v", stats)
	}
}

func TestStream_AnErrorFrameHasTheTypeAndTheCodeOfAnErrorReply(t *testing.T) {
	t.Parallel()
	d := openDoor(t, doorOptions{})
	for _, message := range []string{"fail", "break", "budget"} {
		var reply struct{ Type, Code string }
		res := d.send(t, "POST", "/v1/chat", `{"message":"`+message+`"}`, asUser("ann")...)
		if err := json.NewDecoder(res.Body).Decode(&reply); err != nil {
			t.Fatal(err)
		}
		res = d.send(t, "POST", "/v1/chat", `{"message":"`+message+`","stream":true}`, asUser("ann")...)
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_, data, found := strings.Cut(string(text), "event: error\ndata: ")
		data, _, _ = strings.Cut(data, "\n")
		var frame struct{ Error, Type, Code string }
		if err := json.Unmarshal([]byte(data), &frame); !found || err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if frame.Error == "" || frame.Type != reply.Type || frame.Code != reply.Code || !strings.HasPrefix(frame.Type, "error.") {
			t.Errorf("%s: the frame is %+v, the reply %+v", message, frame, reply)
		}
	}
}

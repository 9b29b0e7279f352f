package httpapi_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/supervisor/httpapi"
)

func TestUnavailable_IsTheFormationsOwnErrorEnvelope(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	httpapi.Unavailable(w, httptest.NewRequest(http.MethodPost, "/v1/chat", http.NoBody))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if at, _ := got["timestamp"].(float64); time.Since(time.UnixMilli(int64(at))) > time.Minute {
		t.Errorf("timestamp = %v, want epoch milliseconds", got["timestamp"])
	}
	request, _ := got["request"].(map[string]any)
	want := map[string]any{
		"object": "error", "type": "error.processing", "timestamp": got["timestamp"],
		"request": map[string]any{"id": request["id"], "idempotency_key": nil}, "success": false,
		"error": map[string]any{"code": "SERVICE_UNAVAILABLE", "message": "The formation is not running", "data": map[string]any{}},
		"data":  map[string]any{}, "code": "SERVICE_UNAVAILABLE", "message": "The formation is not running",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("envelope (-want +got):\n%s", diff)
	}
	head := httptest.NewRecorder()
	httpapi.Unavailable(head, httptest.NewRequest(http.MethodHead, "/", http.NoBody))
	if head.Body.Len() != 0 {
		t.Errorf("HEAD got a body: %s", head.Body)
	}
}

package httpapi

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/agentformation/service/pkg/httpx"
)

// Unavailable answers on the port of a formation whose process does not come
// back: 503 in the formation's own envelope (runtime.md 1.2), with Retry-After.
func Unavailable(w http.ResponseWriter, r *http.Request) {
	const code, message = "SERVICE_UNAVAILABLE", "The formation is not running"
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Retry-After", retryAfter)
	w.WriteHeader(http.StatusServiceUnavailable)
	if r.Method == http.MethodHead {
		return
	}
	type object = map[string]any
	// A failed write means that the client left; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(object{
		"object": "error", "type": "error.processing", "timestamp": time.Now().UnixMilli(),
		"request": object{"id": httpx.NewID("req_"), "idempotency_key": nil},
		"success": false, "error": object{"code": code, "message": message, "data": object{}}, "data": object{},
		"code": code, "message": message,
	})
}

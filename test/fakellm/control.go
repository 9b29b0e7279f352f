package fakellm

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// control answers the paths by which a test in another process scripts the
// server and reads its record:
//
//	POST /_fake/rules     a rule or a list of rules, appended
//	POST /_fake/reset     forget rules, gates and calls
//	POST /_fake/release   ?gate=NAME opens a gate
//	GET  /_fake/calls     {"count","active","calls":[…]}; ?count=N first waits
//	                      until N calls have begun, ?bodies=0 leaves bodies out
func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "POST /_fake/rules":
		s.postRules(w, r)
	case "POST /_fake/reset":
		s.Reset()
		writeJSON(w, http.StatusOK, []byte("{}"))
	case "POST /_fake/release":
		s.Release(r.URL.Query().Get("gate"))
		writeJSON(w, http.StatusOK, []byte("{}"))
	case "GET /_fake/calls":
		s.getCalls(w, r)
	default:
		writeError(w, http.StatusNotFound, "unknown path "+r.URL.Path, "not_found")
	}
}

func (s *Server) postRules(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r)
	if err != nil {
		writeError(w, http.StatusRequestEntityTooLarge, err.Error(), "")
		return
	}
	rules, err := ParseRules(body)
	if err == nil {
		err = s.Script(rules)
	}
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error(), "")
		return
	}
	writeJSON(w, http.StatusOK, []byte("{}"))
}

func (s *Server) getCalls(w http.ResponseWriter, r *http.Request) {
	if text := r.URL.Query().Get("count"); text != "" {
		n, err := strconv.Atoi(text)
		if err == nil {
			err = s.WaitCount(r.Context(), n)
		}
		if err != nil {
			writeError(w, http.StatusBadRequest, err.Error(), "")
			return
		}
	}
	calls := s.Calls()
	if r.URL.Query().Get("bodies") == "0" {
		for i := range calls {
			calls[i].Body = ""
		}
	}
	s.mu.Lock()
	count, active := s.log.count, s.log.active
	s.mu.Unlock()
	out, err := json.Marshal(map[string]any{"count": count, "active": active, "calls": calls})
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error(), "")
		return
	}
	writeJSON(w, http.StatusOK, out)
}

package deploy

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/agentformation/service/pkg/control"
	"github.com/agentformation/service/pkg/supervisor/process"
)

// Notice is something an operator wants to be told (server.md 6.1).
type Notice struct {
	Event       string // "crashed", "hung", "budget", "dead_letter"; else the formation's own word
	FormationID string
	Time        time.Time
	Message     string
	Detail      map[string]any
}

// The events of a Notice.
const (
	NoticeCrashed    = "crashed"
	NoticeHung       = "hung"
	NoticeBudget     = "budget"
	NoticeDeadLetter = "dead_letter"
)

func (s *Service) alert(n Notice) {
	if s.cfg.Alert != nil {
		s.cfg.Alert(n)
	}
}

// alertEvent tells of a process that hangs, or that does not come again. A
// deploy or update that fails is answered to its caller instead.
func (s *Service) alertEvent(f *formation, e process.Event) {
	var event, text string
	switch e.Kind {
	case process.EventCrashed:
		event, text = NoticeCrashed, "Formation '"+f.id+"' crashed and is not restarted: "+e.Exit.Reason
	case process.EventHung:
		event, text = NoticeHung, "Formation '"+f.id+"' hung and is replaced: "+e.Exit.Reason
	default:
		return
	}
	f.mu.Lock()
	answered := f.cancel != nil || f.change != nil
	f.mu.Unlock()
	if answered {
		return
	}
	detail := map[string]any{"reason": e.Exit.Reason, "restart_count": e.Snapshot.RestartCount}
	if e.Exit.Signal != "" {
		detail["signal"] = e.Exit.Signal
	} else if e.Exit.Code >= 0 {
		detail["exit_code"] = e.Exit.Code
	}
	if len(e.Exit.Stderr) > 0 {
		detail["stderr"] = e.Exit.Stderr
	}
	s.alert(Notice{Event: event, FormationID: f.id, Time: e.Time, Message: text, Detail: detail})
}

// alertRecord passes a formation's own alert on.
func (s *Service) alertRecord(id string, r control.Record) {
	n := Notice{Event: r.Action, FormationID: id, Time: r.Time, Message: r.Message}
	switch {
	case strings.Contains(r.Action, NoticeBudget):
		n.Event = NoticeBudget
	case strings.Contains(r.Action, NoticeDeadLetter):
		n.Event = NoticeDeadLetter
	}
	if len(r.Detail) > 0 && json.Unmarshal(r.Detail, &n.Detail) != nil {
		n.Detail = map[string]any{"detail": string(r.Detail)}
	}
	s.alert(n)
}

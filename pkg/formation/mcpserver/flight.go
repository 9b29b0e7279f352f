package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// errTakenBack is the cause of the end of a wait whose caller has taken the call
// back.
var errTakenBack = errors.New("the caller has taken the call back")

// flights are the calls that run, by the client and its number for them. The
// zero value is ready.
type flights struct {
	mu    sync.Mutex
	calls map[string]*context.CancelCauseFunc
}

// add notes a call until done is called. A client without an id has no way to
// name it later.
func (f *flights) add(session string, call *jsonrpc.Request, cancel context.CancelCauseFunc) (done func()) {
	if session == "" || !call.IsCall() {
		return func() {}
	}
	key := flightKey(session, call.ID)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = make(map[string]*context.CancelCauseFunc)
	}
	f.calls[key] = &cancel
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.calls[key] == &cancel { // else another one took the number
			delete(f.calls, key)
		}
	}
}

// takeBack ends the call that a notification names. One that has ended is none
// of its business.
func (f *flights) takeBack(session string, notice *jsonrpc.Request) {
	var params struct {
		RequestID any `json:"requestId"`
	}
	if json.Unmarshal(notice.Params, &params) != nil {
		return
	}
	id, err := jsonrpc.MakeID(params.RequestID)
	if err != nil {
		return
	}
	f.mu.Lock()
	call := f.calls[flightKey(session, id)]
	f.mu.Unlock()
	if call != nil {
		(*call)(errTakenBack)
	}
}

func flightKey(session string, id jsonrpc.ID) string {
	return fmt.Sprintf("%s %T %v", session, id.Raw(), id.Raw())
}

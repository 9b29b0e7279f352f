package httpapi

import (
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/request"
	"github.com/agentformation/service/pkg/formation/turn"
	"github.com/agentformation/service/pkg/httpx"
)

// requestDocument is a record for GET /v1/requests/{id} (reference runtime.md 4.2).
type requestDocument struct {
	RequestID   string    `json:"request_id"`
	UserID      string    `json:"user_id"`
	Status      string    `json:"status"`
	Progress    *string   `json:"progress"`
	CreatedAt   jsonTime  `json:"created_at"`
	CompletedAt *jsonTime `json:"completed_at,omitempty"`
	Error       string    `json:"error,omitempty"`
	ErrorCode   string    `json:"error_code,omitempty"`
	// Result and Response are both the text of a completed turn.
	Result   *string `json:"result,omitempty"`
	Response *string `json:"response,omitempty"`
	// UI are the widgets that go with the text, ClarificationQuestion what a
	// request asks that awaits clarification.
	UI                    []chat.Widget `json:"ui,omitempty"`
	ClarificationQuestion string        `json:"clarification_question,omitempty"`
}

// requestItem is a record in the list, where progress is a number.
type requestItem struct {
	RequestID   string    `json:"request_id"`
	UserID      string    `json:"user_id"`
	Status      string    `json:"status"`
	Progress    *int      `json:"progress"`
	CreatedAt   jsonTime  `json:"created_at"`
	CompletedAt *jsonTime `json:"completed_at"`
	Error       string    `json:"error,omitempty"`
}

type requestList struct {
	Requests []requestItem `json:"requests"`
	Count    int           `json:"count"`
}

type cancellation struct {
	RequestID    string `json:"request_id"`
	Status       string `json:"status"`
	Cancellation string `json:"cancellation"`
	Message      string `json:"message"`
}

func (a *api) listRequests(c echo.Context, who caller) error {
	records, err := a.cfg.Requests.List(c.Request().Context(), who.user)
	if err != nil {
		return err
	}
	list := requestList{Requests: make([]requestItem, len(records)), Count: len(records)}
	for i := range records {
		r := &records[i]
		list.Requests[i] = requestItem{
			RequestID: r.ID, UserID: r.UserID, Status: r.Status, Progress: percent(r.Progress),
			CreatedAt: jsonTime(r.CreatedAt), CompletedAt: timeOrNil(r.CompletedAt), Error: r.Error,
		}
	}
	return a.reply(c, objectRequestList, typeRequestList, &list)
}

func (a *api) getRequest(c echo.Context, who caller) error {
	id := httpx.Param(c, "id")
	r, err := a.cfg.Requests.Get(c.Request().Context(), id)
	switch {
	case err != nil && fault.KindOf(err) == fault.NotFound:
		return fault.Wrap(fault.NotFound, "REQUEST_NOT_FOUND", "No request with id '"+clip(id)+"'", err)
	case err != nil:
		return err
	case !who.admin && r.UserID != who.user:
		return fault.New(fault.Forbidden, "", "The request belongs to another user")
	}
	doc := requestDocument{
		RequestID: r.ID, UserID: r.UserID, Status: r.Status, CreatedAt: jsonTime(r.CreatedAt),
		CompletedAt: timeOrNil(r.CompletedAt), Error: r.Error, ErrorCode: r.ErrorCode,
	}
	if r.Progress != "" {
		doc.Progress = &r.Progress
	}
	if r.Status == request.Completed {
		doc.Result, doc.Response = &r.Result, &r.Result
	}
	if doc.UI, doc.ClarificationQuestion, err = turn.Shown(r); err != nil {
		return err
	}
	return a.reply(c, objectRequestStatus, typeRequestStatus, &doc)
}

func (a *api) cancelRequest(c echo.Context, who caller) error {
	id := httpx.Param(c, "id")
	how, err := a.cfg.Turns.Cancel(c.Request().Context(), who.user, id, who.admin)
	a.audit(c, who, Change{Action: "request.cancel", Subject: clip(id), Message: "a request was cancelled"}, err)
	if err != nil {
		if fault.KindOf(err) == fault.NotFound {
			return fault.Wrap(fault.NotFound, "NOT_FOUND", "No request with id '"+clip(id)+"'", err)
		}
		return err
	}
	return a.reply(c, objectCancellation, typeRequestCancelled, &cancellation{
		RequestID: id, Status: request.Cancelled, Cancellation: how, Message: "Request cancelled",
	})
}

// percent returns a progress that is a number from 0 to 100, else nil.
func percent(progress string) *int {
	n, err := strconv.Atoi(strings.TrimSuffix(progress, "%"))
	if err != nil || n < 0 || n > 100 {
		return nil
	}
	return &n
}

// clip shortens what a caller wrote before it is quoted back.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// audit records a change when the caller is an administrator.
func (a *api) audit(c echo.Context, who caller, change Change, err error) {
	if !who.admin {
		return
	}
	change.Actor, change.Result = "admin", "ok"
	if err != nil {
		f := fault.From(err)
		change.Result, _ = errorWords(f.Kind)
		if f.Name != "" {
			change.Result = f.Name
		}
	}
	change.RequestID, change.From = httpx.RequestID(c), httpx.PeerAddr(c.Request(), nil)
	a.cfg.Audit(c.Request().Context(), change)
}

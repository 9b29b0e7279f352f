package httpapi

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/overlord"
	"github.com/agentformation/service/pkg/httpx"
)

// Router tells who would answer a message; *overlord.Overlord satisfies it.
type Router interface {
	Preview(ctx context.Context, in overlord.PreviewInput) (overlord.Preview, error)
}

var _ Router = (*overlord.Overlord)(nil)

const (
	objectRoutePreview = "route_preview"
	typeRoutePreviewed = "route.previewed"
)

// routeBody is the body of POST /v1/route (reference runtime.md 21).
type routeBody struct {
	Message   *string `json:"message" required:"true"`
	SessionID string  `json:"session_id" about:"whose last agent counts"`
	UserID    string  `json:"user_id" about:"deprecated: the header wins"`
}

// previewRoute tells which agents a message would go to, and why. Nothing is
// stored and no agent sees the message.
func (a *api) previewRoute(c echo.Context, who caller) error {
	if a.cfg.Router == nil {
		return fault.New(fault.Unavailable, "SERVICE_UNAVAILABLE", "This formation has no routing")
	}
	var in routeBody
	if err := httpx.Bind(c, httpx.MaxManagementBody, &in); err != nil {
		return chatFault(alsoWrong(err, func() []httpx.FieldError { return in.check(a.cfg.Formation.InputLimits.MaxMessageLength) }))
	}
	if err := a.nameUser(&who, in.UserID); err != nil {
		return err
	}
	if bad := in.check(a.cfg.Formation.InputLimits.MaxMessageLength); len(bad) > 0 {
		return chatFault(&httpx.BodyError{Fields: bad})
	}
	ctx, last := c.Request().Context(), ""
	if in.SessionID != "" {
		var err error
		if last, err = a.cfg.Sessions.LastAgent(ctx, who.user, in.SessionID); err != nil {
			return err
		}
	}
	preview, err := a.cfg.Router.Preview(ctx, overlord.PreviewInput{
		Message: *in.Message, LastAgent: last, UserID: who.user, RequestID: httpx.RequestID(c),
	})
	if err != nil {
		return err
	}
	return a.reply(c, objectRoutePreview, typeRoutePreviewed, &preview)
}

// check returns every value that is wrong.
func (in *routeBody) check(maxMessage int) []httpx.FieldError {
	var bad checker
	switch {
	case in.Message == nil:
		bad.add("message", "Field required", "string", httpx.Missing)
	case strings.TrimSpace(*in.Message) == "":
		bad.add("message", "The message is blank", "string", httpx.TooShort)
	case maxMessage > 0 && len(*in.Message) > maxMessage && utf8.RuneCountInString(*in.Message) > maxMessage:
		bad.add("message", fmt.Sprintf("The message is longer than %d characters", maxMessage), "string", httpx.TooLong)
	}
	checkID(&bad, "session_id", in.SessionID)
	return bad
}

package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/supervisor/logs"
	"github.com/agentformation/service/pkg/supervisor/registry"
)

const maxAuditLimit = 1000

type auditReply struct {
	Entries []registry.AuditEntry `json:"entries"`
	Count   int                   `json:"count"`
}

// audit answers with records of the chain.
func (a *API) audit(c echo.Context) error {
	f := registry.AuditFilter{Actor: c.QueryParam("actor"), Action: c.QueryParam("action"), ID: c.QueryParam("id")}
	var err error
	if f.Since, err = timeParam(c, "since"); err != nil {
		return err
	}
	if f.Until, err = timeParam(c, "until"); err != nil {
		return err
	}
	if !f.Until.IsZero() && f.Until.Before(f.Since) {
		return invalid("until must not be before since")
	}
	if f.Limit, err = countParam(c, maxAuditLimit, "limit"); err != nil {
		return err
	}
	entries, err := a.cfg.Registry.Audit(c.Request().Context(), f)
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, auditReply{Entries: append([]registry.AuditEntry{}, entries...), Count: len(entries)})
}

// verifyAudit walks the whole chain. A broken one is an answer, no error.
func (a *API) verifyAudit(c echo.Context) error {
	check, err := a.cfg.Registry.VerifyAudit(c.Request().Context())
	if err != nil {
		return err
	}
	return reply(c, http.StatusOK, check)
}

// serverLogs answers with the last lines of the audit log file as they are.
func (a *API) serverLogs(c echo.Context) error {
	n, err := countParam(c, maxLines, "lines", "limit")
	if err != nil {
		return err
	}
	var text []byte
	if a.cfg.AuditLogPath != "" {
		tail, err := logs.Tail(c.Request().Context(), a.cfg.AuditLogPath, n)
		if err != nil {
			return err
		}
		for _, line := range tail.Lines {
			text = append(append(text, line...), '\n')
		}
	}
	return c.Blob(http.StatusOK, "text/plain; charset=utf-8", text)
}

// timeParam reads a time of the query; the zero time when it is absent.
func timeParam(c echo.Context, name string) (time.Time, error) {
	text := c.QueryParam(name)
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, invalid("%s must be a time such as 2026-01-02T15:04:05Z (RFC 3339), not %q", name, text)
	}
	return at, nil
}

// defaultCount is how many lines or records are told when nobody says.
const defaultCount = 100

// countParam reads how many are wanted, from the first of names that is there.
// More than the most is the most.
func countParam(c echo.Context, most int, names ...string) (int, error) {
	for _, name := range names {
		text := c.QueryParam(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return 0, invalid("%s must be a whole number from 1 to %d, not %q", name, most, text)
		}
		return min(n, most), nil
	}
	return defaultCount, nil
}

package httpapi

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/supervisor/registry"
)

// auditLine is a record as it stands in the audit log file: that of the chain
// and what helps to read it.
type auditLine struct {
	registry.AuditEntry
	Method     string `json:"method"`
	Path       string `json:"path"`
	DurationMS int64  `json:"duration_ms"`
}

// append commits rec to the chain and writes it to the log file.
func (a *API) append(c echo.Context, rec registry.AuditRecord, start time.Time) {
	ctx := context.WithoutCancel(c.Request().Context())
	committed, err := a.cfg.Registry.AppendAudit(ctx, rec)
	if err != nil {
		a.cfg.Log.Error().Err(err).Str("action", rec.Action).Str("request_id", rec.RequestID).Msg("a call is not in the audit")
		return
	}
	a.writeLine(auditLine{
		AuditEntry: entryOf(committed), Method: c.Request().Method, Path: c.Request().URL.Path,
		DurationMS: a.now().Sub(start).Milliseconds(),
	})
}

func entryOf(rec registry.AuditRecord) registry.AuditEntry {
	return registry.AuditEntry{AuditRecord: rec, Hash: rec.Hash, PrevHash: rec.PrevHash}
}

func (a *API) writeLine(line auditLine) {
	if a.cfg.AuditLog == nil {
		return
	}
	text, err := json.Marshal(line)
	if err == nil {
		err = a.auditLines.write(a.cfg.AuditLog, append(text, '\n'))
	}
	if err != nil {
		a.cfg.Log.Error().Err(err).Msg("the audit log file is not written")
	}
}

// lines keeps a line that was cut off, as on a full disk, from running into the
// next one. The zero value is ready.
type lines struct {
	mu   sync.Mutex // guards torn, and a line from others
	torn bool
}

func (l *lines) write(to io.Writer, line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := to.Write(line)
	switch {
	case err == nil:
		l.torn = false
	case n > 0:
		l.torn = line[n-1] != '\n'
	}
	return err
}

package request

import (
	"fmt"

	"github.com/agentformation/service/pkg/formation/store"
)

// A request that asks its user something waits: it is open, but nobody works
// on it, so that no process takes it for one that it must resume. All requests
// of a session that wait do so for the session's one question, and end together.

// ask leaves an open request waiting for its user.
func ask(tx *store.Tx, e End) (bool, error) {
	n, err := tx.Exec(`UPDATE requests SET status = 'awaiting_clarification', launch_id = '',
			agent_id = CASE WHEN ?1 <> '' THEN ?1 ELSE agent_id END, result = ?2, reply = ?3
		WHERE id = ?4 AND completed_at IS NULL`, e.AgentID, e.Result, e.Reply, e.ID)
	if err != nil {
		return false, fmt.Errorf("leave request %s waiting: %w", e.ID, err)
	}
	return n == 1, nil
}

// Waits tells, in the caller's commit, whether a request waits for its user.
func Waits(tx *store.Tx, id string) (waits bool, err error) {
	if err := tx.QueryRow(`SELECT EXISTS (SELECT 1 FROM requests WHERE id = ? AND status = 'awaiting_clarification')`,
		[]any{id}, &waits); err != nil {
		return false, fmt.Errorf("look whether request %s waits: %w", id, err)
	}
	return waits, nil
}

// Settle ends the requests of a session that wait, but for e.ID, in the
// caller's commit. Their replies stay what they were, so that a repeated key
// gets the question again; e.Reply, a JSON array of widgets or nil, is added.
func Settle(tx *store.Tx, userID, sessionID string, e End) error {
	if _, err := tx.Exec(`DELETE FROM request_files WHERE request_id IN (SELECT id FROM requests
		WHERE user_id = ? AND session_id = ? AND status = 'awaiting_clarification' AND id <> ?)`, userID, sessionID, e.ID); err != nil {
		return fmt.Errorf("drop files of what waits in session %s: %w", sessionID, err)
	}
	var widgets any
	if e.Reply != nil {
		widgets = string(e.Reply)
	}
	if _, err := tx.Exec(`UPDATE requests SET status = ?1, agent_id = CASE WHEN ?2 <> '' THEN ?2 ELSE agent_id END,
			completed_at = ?3, result = ?4, error = NULLIF(?5, ''), error_code = NULLIF(?6, ''),
			reply = CASE WHEN ?7 IS NULL THEN reply ELSE json_set(reply, '$.final_ui', json(?7)) END
		WHERE user_id = ?8 AND session_id = ?9 AND status = 'awaiting_clarification' AND id <> ?10`,
		e.Status, e.AgentID, e.At.UnixMilli(), e.Result, e.Error, e.ErrorCode, widgets, userID, sessionID, e.ID); err != nil {
		return fmt.Errorf("end what waits in session %s: %w", sessionID, err)
	}
	return nil
}

package request

import (
	"context"
	"fmt"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/store"
)

// SaveFiles keeps the files of a new request in the caller's commit.
func SaveFiles(tx *store.Tx, requestID string, files []chat.File) error {
	for i := range files {
		f := &files[i]
		if _, err := tx.Exec(`INSERT INTO request_files (request_id, position, kind, media_type, name, size, spoken, cut, text, data)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			requestID, i, string(f.Kind), f.MediaType, f.Name, f.Size, f.Spoken, f.Cut, f.Text, f.Data); err != nil {
			return fmt.Errorf("store file %d of %s: %w", i, requestID, err)
		}
	}
	return nil
}

// Files returns the files of an open request in their order.
func Files(ctx context.Context, db *store.DB, requestID string) ([]chat.File, error) {
	rows, err := db.Query(ctx, `SELECT kind, media_type, name, size, spoken, cut, text, data
		FROM request_files WHERE request_id = ? ORDER BY position`, requestID)
	if err != nil {
		return nil, fmt.Errorf("read files of %s: %w", requestID, err)
	}
	defer rows.Close()
	var out []chat.File
	for rows.Next() {
		var f chat.File
		if err := rows.Scan(&f.Kind, &f.MediaType, &f.Name, &f.Size, &f.Spoken, &f.Cut, &f.Text, &f.Data); err != nil {
			return nil, fmt.Errorf("read files of %s: %w", requestID, err)
		}
		out = append(out, f)
	}
	return out, rows.Err()
}

// DropFiles forgets the files of an ended request in the caller's commit.
func DropFiles(tx *store.Tx, requestID string) error {
	if _, err := tx.Exec(`DELETE FROM request_files WHERE request_id = ?`, requestID); err != nil {
		return fmt.Errorf("drop files of %s: %w", requestID, err)
	}
	return nil
}

package mcpclient

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/agentformation/service/pkg/formation/store"
)

// Stored is a ToolStore in the formation's store.
type Stored struct{ DB *store.DB }

// keptLists is how many lists of a server are kept, by the hash of its file: a
// version that is rolled back to finds its own.
const keptLists = 4

// Load implements ToolStore.
func (s Stored) Load(ctx context.Context, server, config string) ([]byte, error) {
	var data []byte
	err := s.DB.QueryRow(ctx, `SELECT list FROM tool_lists WHERE server = ? AND config = ?`, []any{server, config}, &data)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the tools of %s: %w", server, err)
	}
	return data, nil
}

// Save implements ToolStore.
func (s Stored) Save(ctx context.Context, server, config string, list []byte) error {
	err := s.DB.Write(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(`INSERT INTO tool_lists (server, config, list, saved_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (server, config) DO UPDATE SET list = excluded.list, saved_at = excluded.saved_at`,
			server, config, list, s.DB.Now().UnixMilli()); err != nil {
			return err
		}
		_, err := tx.Exec(`DELETE FROM tool_lists WHERE server = ? AND config NOT IN
			(SELECT config FROM tool_lists WHERE server = ? ORDER BY saved_at DESC LIMIT ?)`, server, server, keptLists)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the tools of %s: %w", server, err)
	}
	return nil
}

package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// genesis is the prev_hash of the first record: 64 zeros.
const genesis = "0000000000000000000000000000000000000000000000000000000000000000"

// AuditRecord says who did what. Its JSON, with keys in sorted order, is what
// the chain hashes; the two hash fields are not part of it.
type AuditRecord struct {
	Action     string `json:"action"`
	Actor      string `json:"actor"` // key id, "" when none was given
	ID         string `json:"id"`    // formation, "" when the call is about none
	RemoteAddr string `json:"remote_addr"`
	RequestID  string `json:"request_id"`
	Result     string `json:"result"`
	Seq        int64  `json:"seq"`
	Status     int    `json:"status"` // HTTP status of the answer
	Time       string `json:"time"`   // RFC 3339, UTC, milliseconds

	Hash     string `json:"-"`
	PrevHash string `json:"-"`
}

// AppendAudit commits rec as the next record of the chain and returns it with
// its sequence number, time and hashes. Texts are cut at 2000 bytes and made
// valid UTF-8: the record and the columns that are searched must say the same.
func (r *Registry) AppendAudit(ctx context.Context, rec AuditRecord) (AuditRecord, error) {
	for _, text := range []*string{&rec.Action, &rec.Actor, &rec.ID, &rec.RemoteAddr, &rec.RequestID, &rec.Result} {
		*text = bounded(*text)
	}
	err := r.inTx(ctx, func(tx *sql.Tx) error {
		var seq int64
		var prev string
		err := tx.QueryRowContext(ctx, `SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1`).Scan(&seq, &prev)
		if errors.Is(err, sql.ErrNoRows) {
			prev = genesis
		} else if err != nil {
			return err
		}
		now := r.now().UTC()
		rec.Seq, rec.PrevHash = seq+1, prev
		rec.Time = now.Format("2006-01-02T15:04:05.000Z07:00")
		text, err := canonical(rec)
		if err != nil {
			return err
		}
		rec.Hash = chainHash(prev, text)
		_, err = tx.ExecContext(ctx,
			`INSERT INTO audit (seq, time, actor, action, id, status, record, prev_hash, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			rec.Seq, now.UnixMilli(), rec.Actor, rec.Action, rec.ID, rec.Status, string(text), rec.PrevHash, rec.Hash)
		return err
	})
	if err != nil {
		return AuditRecord{}, fmt.Errorf("append audit record: %w", err)
	}
	return rec, nil
}

// canonical is the text that is hashed: compact JSON with sorted keys, and no
// character escaped that JSON does not ask for, so that any tool can repeat it.
func canonical(rec AuditRecord) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(rec); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}

// chainHash is the hash of a record: SHA-256 over the previous hash, a newline
// and the record's JSON, as lower-case hex.
func chainHash(prev string, record []byte) string {
	h := sha256.New()
	h.Write([]byte(prev))
	h.Write([]byte{'\n'})
	h.Write(record)
	return hex.EncodeToString(h.Sum(nil))
}

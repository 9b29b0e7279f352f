package client

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// Layout is a form of the request signature. Servers take both unless they
// are told to insist on the body hash (reference server.md 2).
type Layout uint8

// The layouts.
const (
	// ThreeHeaders sends X-SVC-Key-ID, X-SVC-Timestamp and X-SVC-Signature and
	// covers the body.
	ThreeHeaders Layout = iota
	// Authorization sends one header and does not cover the body.
	Authorization
)

// sign puts a fresh signature of c on h. Every attempt is signed again, so
// that a retry after a long wait is still inside the server's window.
func (cfg ServerConfig) sign(h http.Header, c *call) {
	if cfg.KeyID == "" {
		return // a server with auth.enabled: false
	}
	at := strconv.FormatInt(cfg.Now().Unix(), 10)
	message := at + ";" + c.method + ";" + c.path
	p := cfg.HeaderPrefix
	if cfg.Layout == Authorization {
		h.Set("Authorization", fmt.Sprintf("%s-HMAC key=%s, timestamp=%s, signature=%s",
			p, cfg.KeyID, at, signature(cfg.SecretKey, message)))
		return
	}
	h.Set("X-"+p+"-Key-ID", cfg.KeyID)
	h.Set("X-"+p+"-Timestamp", at)
	h.Set("X-"+p+"-Signature", signature(cfg.SecretKey, message+";"+c.hash))
}

// signature is standard base64 of HMAC-SHA256.
func signature(secret Secret, message string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(message))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// hashBytes is the body hash of body: lower-case hex SHA-256, "" without a body.
func hashBytes(body []byte) string {
	if len(body) == 0 {
		return ""
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// hashStream reads r to its end, goes back to its start, and returns the body
// hash and the number of bytes. A bundle is signed before it is sent and is
// never held in memory.
func hashStream(r io.ReadSeeker) (hash string, size int64, err error) {
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return "", 0, err
	}
	sum := sha256.New()
	size, err = io.Copy(sum, r)
	if err != nil || size == 0 {
		return "", 0, err
	}
	_, err = r.Seek(0, io.SeekStart)
	return hex.EncodeToString(sum.Sum(nil)), size, err
}

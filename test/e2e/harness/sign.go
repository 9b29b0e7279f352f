package harness

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"time"
)

// HMAC is the base64 of HMAC-SHA256, as a signature has it.
func HMAC(secret, message string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(message))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Signing is what goes into a signature.
type Signing struct {
	KeyID, Secret string
	Time          time.Time
	Method, Path  string
	Body          []byte
}

// ThreeHeaders is the layout of the specification: the body is part of the
// message.
func (s Signing) ThreeHeaders() map[string]string {
	hash := ""
	if len(s.Body) > 0 {
		sum := sha256.Sum256(s.Body)
		hash = hex.EncodeToString(sum[:])
	}
	at := Unix(s.Time)
	return map[string]string{
		"X-SVC-Key-ID":    s.KeyID,
		"X-SVC-Timestamp": at,
		"X-SVC-Signature": HMAC(s.Secret, at+";"+s.Method+";"+s.Path+";"+hash),
	}
}

// Authorization is the other layout: one header, and no body in the message.
func (s Signing) Authorization() map[string]string {
	at := Unix(s.Time)
	return map[string]string{
		"Authorization": "SVC-HMAC key=" + s.KeyID + ", timestamp=" + at + ", signature=" +
			HMAC(s.Secret, at+";"+s.Method+";"+s.Path),
	}
}

// Signing returns what signs a request to this supervisor now.
func (s *Supervisor) Signing(method, path string, body []byte) Signing {
	return Signing{KeyID: s.KeyID, Secret: s.Secret, Time: time.Now(), Method: method, Path: path, Body: body}
}

// RPC calls the management API, signed with three headers.
func (s *Supervisor) RPC(method, path string) Reply {
	s.TB.Helper()
	r := Request{Method: method, URL: s.URL + path, Header: s.Signing(method, path, nil).ThreeHeaders()}
	if method == http.MethodGet {
		return s.HTTP.Must(r)
	}
	return s.change(r)
}

// DeployRequest is a signed deploy of a bundle.
func (s *Supervisor) DeployRequest(id string, bundle []byte) Request {
	const path = "/rpc/formations"
	header := s.Signing(http.MethodPost, path, bundle).ThreeHeaders()
	header["Content-Type"], header["X-Formation-ID"] = "application/gzip", id
	return Request{Method: http.MethodPost, URL: s.URL + path, Header: header, Body: bundle}
}

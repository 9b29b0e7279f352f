package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
)

// Digest is the SHA-256 of a key. The door compares digests, in constant time,
// and never holds a key.
type Digest [sha256.Size]byte

// DigestOf returns the digest of a key.
func DigestOf(key string) Digest { return sha256.Sum256([]byte(key)) }

// Keys are the digests of the keys that open the formation's API. There are
// several of a kind while a rotation overlaps.
type Keys struct {
	Admin, Client []Digest
}

// access says which key a route takes (reference runtime.md 2). Client and
// dual routes take either key and differ in the challenge only.
type access uint8

const (
	adminOnly access = iota
	clientOrAdmin
	dual
)

// userRule says when a caller has to name its user.
type userRule uint8

const (
	userNone     userRule = iota // the route knows no user
	userOptional                 // "0" when not named
	userByClient                 // required with the client key; an admin without sees all
	userRequired
)

// defaultUser is the user of requests that name none.
const defaultUser = "0"

// maxUserID is the longest user id in bytes.
const maxUserID = 256

// caller is who sent a request.
type caller struct {
	admin bool
	user  string // "" only for an admin on a userByClient route
	named bool   // header or query named the user
	due   *due   // nil: nothing is left to count
}

// headers are the names of the formation's request headers, for people and in
// the canonical form that http.Header is keyed by.
type headers struct {
	admin, client                            string
	adminKey, clientKey, userKey, idempotKey string
}

func newHeaders(prefix string) headers {
	h := headers{admin: httpx.HeaderName(prefix, "Admin-Key"), client: httpx.HeaderName(prefix, "Client-Key")}
	h.adminKey, h.clientKey = http.CanonicalHeaderKey(h.admin), http.CanonicalHeaderKey(h.client)
	h.userKey = http.CanonicalHeaderKey(httpx.HeaderName(prefix, "User-Id"))
	h.idempotKey = http.CanonicalHeaderKey(httpx.HeaderName(prefix, "Idempotency-Key"))
	return h
}

// handler is a route's own part, behind its key.
type handler func(c echo.Context, who caller) error

// guard puts a route behind its key, its rule for user ids and the limits of how
// often it is asked.
func (a *api) guard(r *route) echo.HandlerFunc {
	need, rule, inBody, next := r.key, r.user, r.userInBody, r.do
	return func(c echo.Context) error {
		who, err := a.authenticate(c, need)
		if err != nil {
			return err
		}
		if rule != userNone {
			err = a.identify(c, rule, &who)
		}
		switch {
		case a.limits == nil:
		case inBody && !who.named:
			return a.countedLater(c, who, next)
		default:
			if over := a.count(c, rule, who); over != nil {
				return over
			}
		}
		if err != nil {
			return err
		}
		return next(c, who)
	}
}

// authenticate checks the key of a request.
func (a *api) authenticate(c echo.Context, need access) (caller, error) {
	who, ok, err := a.open(c.Request(), need)
	if ok || err != nil {
		return who, err
	}
	h := c.Request().Header
	return caller{}, a.refuse(c, need, first(h[a.head.adminKey]), first(h[a.head.clientKey]))
}

// open tells whether a request brought a key that opens what needs need. Its
// error is that too many wrong ones came from where it comes from.
func (a *api) open(r *http.Request, need access) (who caller, ok bool, err error) {
	who, ok = a.keyOf(r.Header, need)
	if a.limits == nil {
		return who, ok, nil
	}
	wrongAdmin := !who.admin && first(r.Header[a.head.adminKey]) != ""
	wrongClient := !ok && need != adminOnly && first(r.Header[a.head.clientKey]) != ""
	if err := a.limits.check(r, verdict{opens: ok, admin: who.admin, wrong: wrongAdmin || wrongClient}); err != nil {
		return caller{}, false, err
	}
	return who, ok, nil
}

// keyOf tells whether a request brought a key that opens what needs need.
func (a *api) keyOf(h http.Header, need access) (who caller, ok bool) {
	keys := a.cfg.Keys()
	if admin := first(h[a.head.adminKey]); admin != "" && known(keys.Admin, admin) {
		return caller{admin: true}, true
	}
	client := first(h[a.head.clientKey])
	return caller{}, need != adminOnly && client != "" && known(keys.Client, client)
}

// known compares in a time that depends on neither key; digests are of one length.
func known(digests []Digest, key string) bool {
	given := DigestOf(key)
	found := 0
	for i := range digests {
		found |= subtle.ConstantTimeCompare(digests[i][:], given[:])
	}
	return found == 1
}

// refuse makes the 401 of a route, with its challenge.
func (a *api) refuse(c echo.Context, need access, admin, client string) error {
	challenge, message := "ApiKey", ""
	switch need {
	case adminOnly:
		challenge = fmt.Sprintf("ApiKey realm=%q, header=%q", "admin", a.head.admin)
		switch {
		case admin != "":
			message = "Invalid admin key"
		case client != "":
			message = "The client key does not open this route: send the admin key in " + a.head.admin
		default:
			message = "Missing admin key: send it in " + a.head.admin
		}
	case clientOrAdmin, dual:
		if need == clientOrAdmin {
			challenge = fmt.Sprintf("ApiKey realm=%q, header=%q", "client", a.head.client)
		}
		switch {
		case client != "":
			message = "Invalid client key"
		case admin != "":
			message = "Invalid admin key"
		default:
			message = "Missing client key: send it in " + a.head.client
		}
	}
	c.Response().Header().Set(echo.HeaderWWWAuthenticate, challenge)
	return fault.New(fault.Unauthenticated, "", message)
}

// identify finds the user of a request in its header, then its query. The body
// of a chat may name one too, see chat.go.
func (a *api) identify(c echo.Context, rule userRule, who *caller) error {
	who.user = strings.TrimSpace(first(c.Request().Header[a.head.userKey]))
	if who.user == "" && c.Request().URL.RawQuery != "" {
		who.user = strings.TrimSpace(c.QueryParam("user_id"))
	}
	who.named = who.user != ""
	switch {
	case who.named:
		return checkUserID(who.user)
	case rule == userOptional:
		who.user = defaultUser
	case rule == userRequired || !who.admin:
		return fault.New(fault.Invalid, "", "This route needs a user id: send it in "+
			httpx.HeaderName(a.cfg.HeaderPrefix, "User-Id")+" or the query parameter user_id")
	}
	return nil
}

func checkUserID(id string) error {
	if len(id) > maxUserID {
		return fault.Errorf(fault.Invalid, "", "The user id is longer than %d bytes", maxUserID)
	}
	if strings.ContainsFunc(id, isControl) {
		return fault.New(fault.Invalid, "", "The user id holds a control character")
	}
	return nil
}

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

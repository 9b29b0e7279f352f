package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
)

// metrics lets the scraper in when it knows the token. Hashes are compared, so
// that the time tells nothing of the token's length either.
func (a *API) metrics(c echo.Context) error {
	if want := a.cfg.MetricsToken; want != "" {
		scheme, given, _ := strings.Cut(c.Request().Header.Get("Authorization"), " ")
		bearer := strings.EqualFold(scheme, "Bearer") // RFC 9110: in any case
		x, y := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(want))
		if subtle.ConstantTimeCompare(x[:], y[:]) != 1 || !bearer {
			c.Response().Header().Set("WWW-Authenticate", "Bearer")
			return fault.New(fault.Unauthenticated, "Unauthorized", "metrics need Authorization: Bearer and the token of metrics.token")
		}
	}
	a.cfg.Metrics.ServeHTTP(c.Response(), c.Request())
	return nil
}

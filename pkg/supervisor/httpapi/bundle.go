package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/httpx"
	"github.com/agentformation/service/pkg/openapi"
	"github.com/agentformation/service/pkg/supervisor/deploy"
)

const (
	headerFormationID      = "X-Formation-ID"
	headerFormationVersion = "X-Formation-Version"
)

// bundleTypes are the media types of a bundle.
func bundleTypes() []string {
	return []string{"application/gzip", "application/x-gzip", "application/octet-stream"}
}

// bundleRoutes are those whose body is a bundle, which is streamed to disk.
func (a *API) bundleRoutes() []route {
	const one = "/rpc/formations/:id"
	version := openapi.Param{Name: headerFormationVersion, In: "header", About: "the manifest's when absent"}
	// What is known before the operation begins is an answer with its own status,
	// also for a client that wants a stream.
	received := []string{"400 InvalidContentType", "400 ExtractError", "413 PayloadTooLarge", "500 DirectoryError"}
	newID := append([]string{"400 InvalidFormationID", "409 ValidationError"}, received...)
	known := append([]string{"404 FormationNotFound", "409 UpdateInProgress", "409 NoChange"}, received...)
	later := laterFailures()
	body := &openapi.Body{Types: bundleTypes()}
	deployed := route{
		method: "POST", path: "/rpc/formations", action: "formations.deploy", bundle: true, handler: a.deploy, tag: "operations",
		about: "Deploys a new formation from a bundle.", body: body,
		params:  []openapi.Param{{Name: headerFormationID, In: "header", About: "id of the formation", Required: true}, version},
		replies: []openapi.Reply{answers[launched](201), streams()},
		fails:   slices.Concat([]string{"400 MissingHeader"}, newID, later, []string{"500 PortAllocationError", "500 CleanupError"}),
	}
	update := route{
		method: "PUT", path: one, action: "formations.update", bundle: true, handler: a.update, tag: "operations",
		about: "Lets a new version take over from the one that serves.", body: body, fails: slices.Concat(known, later),
		params: []openapi.Param{version}, replies: []openapi.Reply{answers[updatedReply](200), streams()},
	}
	again := deployed // by the id in the path
	again.path, again.params = one+"/deploy", []openapi.Param{version}
	again.fails = append([]string{"400 ValidationError"}, deployed.fails[1:]...)
	posted := update
	posted.method, posted.path, posted.fails = "POST", one+"/update", append([]string{"400 ValidationError"}, update.fails...)
	again.tag, posted.tag = "aliases", "aliases"
	return []route{
		deployed, update, again, posted,
		streamed(again, append([]string{"400 ValidationError", "400 IDMismatch"}, newID...)...),
		streamed(posted, append([]string{"400 ValidationError"}, known...)...),
	}
}

// laterFailures are those of a deploy or update that has begun.
func laterFailures() []string {
	return []string{
		"400 ParseError", "400 SecretsError", "400 IDMismatch", "400 VersionMismatch", "400 InvalidRuntime", "400 ResolveError",
		"400 HealthCheckFailed", "409 DeployConflict", "500 MoveError", "500 SpawnError", "500 RegisterError", ending,
	}
}

// withBundle receives the bundle of a request, when check finds nothing wrong
// before, and hands it to then. Where the signature covers the body, nothing is
// told or done before that is right.
func (a *API) withBundle(c echo.Context, check func() error, then func(*deploy.Bundle) error) error {
	k := callOf(c)
	var bundle *deploy.Bundle
	defer func() { bundle.Discard() }()
	var err error
	if !k.claim.Verified() {
		if bundle, err = a.receiveUnproven(c, k); err != nil {
			return err
		}
	}
	if err := checkType(c); err != nil {
		return err
	}
	if err := check(); err != nil {
		return err
	}
	if bundle == nil {
		if bundle, err = a.receive(c, k); err != nil {
			return err
		}
	}
	return then(bundle)
}

// checkType refuses what is no bundle. The older routes, which have the id in
// their path, were once given other things.
func checkType(c echo.Context) error {
	kind, _, err := mime.ParseMediaType(c.Request().Header.Get("Content-Type"))
	if err == nil && slices.Contains(bundleTypes(), kind) {
		return nil
	}
	if kind == jsonType && c.Request().Method == http.MethodPost && httpx.Param(c, "id") != "" {
		return invalid("a bundle is needed: send the formation as a gzipped tar file with Content-Type application/gzip")
	}
	return fault.New(fault.Invalid, "InvalidContentType", "Content-Type must be application/gzip")
}

func (a *API) receiveUnproven(c echo.Context, k *call) (*deploy.Bundle, error) {
	select {
	case a.unproven <- struct{}{}:
		defer func() { <-a.unproven }()
		return a.receive(c, k)
	default:
		return nil, fault.New(fault.RateLimited, "RateLimited", "too many uploads at once; try again")
	}
}

// receive stores the body and finishes the claim of a signature that covers it.
func (a *API) receive(c echo.Context, k *call) (*deploy.Bundle, error) {
	if n := c.Request().ContentLength; n > a.cfg.MaxBundle {
		return nil, fault.Errorf(fault.TooLarge, "PayloadTooLarge",
			"the bundle has %d bytes; at most %d are allowed (limits.bundle.max_bytes)", n, a.cfg.MaxBundle)
	}
	// A client that falls silent would keep its place among the unproven for ever.
	body := &upload{r: c.Request().Body, rc: http.NewResponseController(c.Response().Writer), patience: a.cfg.UploadPatience}
	defer body.end()
	b, err := a.cfg.Deploy.Receive(c.Request().Context(), body)
	if body.silent { // which net/http takes for a client that left
		return nil, fault.Errorf(fault.Invalid, "ExtractError", "the upload broke off: nothing came for %s", body.patience)
	}
	if err != nil {
		return nil, err
	}
	if err := k.claim.Finish(b.Sum, b.Size); err != nil {
		b.Discard()
		return nil, err
	}
	return b, nil
}

// upload gives each read its own deadline.
type upload struct {
	r        io.Reader
	rc       *http.ResponseController
	patience time.Duration
	silent   bool // longer than patience
}

// Read reads the next piece.
func (u *upload) Read(p []byte) (int, error) {
	_ = u.rc.SetReadDeadline(time.Now().Add(u.patience))
	n, err := u.r.Read(p)
	u.silent = u.silent || errors.Is(err, os.ErrDeadlineExceeded)
	return n, err
}

// end takes the last deadline back: the operation that follows may take longer.
func (u *upload) end() { _ = u.rc.SetReadDeadline(time.Time{}) }

package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/agentformation/service/pkg/fault"
)

// Limits of what the hub says about a repository.
const (
	describeLimit = 16 << 20 // bytes
	siblingsLimit = 20_000   // files
)

// sum is a hash as the hub writes it: sha256 of a large file, the git blob id
// (sha1) of the others.
var sum = lazily(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// description is the hub's answer about a revision.
type description struct {
	SHA      string `json:"sha"`
	Siblings []struct {
		Name string `json:"rfilename"`
		Size *int64 `json:"size"`
		Blob string `json:"blobId"`
		LFS  *struct {
			SHA256 string `json:"sha256"`
			Size   int64  `json:"size"`
		} `json:"lfs"`
	} `json:"siblings"`
}

// describe asks for the files of the revision.
func (f *fetch) describe(ctx context.Context) ([]file, error) {
	at := f.hub.endpoint.JoinPath("api", "models", f.ref.Owner, f.ref.Name, "revision", f.ref.Revision)
	at.RawQuery = "blobs=true"
	var d description
	err := f.retry(ctx, func() (bool, error) {
		return false, f.send(ctx, request{http.MethodGet, at, ""}, func(ctx context.Context, res *http.Response) error {
			data, err := io.ReadAll(io.LimitReader(res.Body, describeLimit+1))
			if err != nil {
				return f.unreachable(ctx, err)
			}
			d = description{}
			if len(data) > describeLimit {
				return final(f.broken("its description has more than %s", mebi(describeLimit)))
			}
			if err := json.Unmarshal(data, &d); err != nil {
				return final(f.broken("%s is no description of a model: %v", at.Redacted(), err))
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if !commit().MatchString(d.SHA) {
		return nil, f.broken("the commit %q is none", d.SHA)
	}
	if len(d.Siblings) > siblingsLimit {
		return nil, f.broken("%d files, more than %d", len(d.Siblings), siblingsLimit)
	}
	f.commit = d.SHA
	var all []file
	for _, s := range d.Siblings {
		if path.Clean(s.Name) != s.Name || !filepath.IsLocal(s.Name) {
			return nil, f.broken("a file is named %q", s.Name)
		}
		one := file{name: s.Name, size: -1}
		if sum().MatchString(s.Blob) && len(s.Blob) == 40 && s.LFS == nil && s.Size != nil {
			one.hash, one.size = s.Blob, *s.Size
		}
		if s.LFS != nil && sum().MatchString(s.LFS.SHA256) && s.LFS.Size > 0 {
			one.hash, one.size = s.LFS.SHA256, s.LFS.Size
		}
		all = append(all, one)
	}
	return all, nil
}

// look asks for the hash and size of a file whose description had none.
func (f *fetch) look(ctx context.Context, one *file) error {
	return f.retry(ctx, func() (bool, error) {
		return false, f.send(ctx, request{http.MethodHead, f.address(*one), ""}, func(_ context.Context, res *http.Response) error {
			one.size, one.hash = res.ContentLength, linkedSum(res)
			if !sum().MatchString(one.hash) {
				return final(f.broken("the hub names no hash for %s", one.name))
			}
			if one.size < 0 && len(one.hash) == 40 {
				return final(f.broken("the hub names no size for %s", one.name)) // which is part of this hash
			}
			return nil
		})
	})
}

// linkedSum is the hash of a file, which the hub tells before it sends us on to
// where the file lies.
func linkedSum(res *http.Response) string {
	tag := res.Header.Get("ETag")
	for r := res.Request; r != nil && r.Response != nil; r = r.Response.Request {
		if linked := r.Response.Header.Get("X-Linked-Etag"); linked != "" {
			tag = linked
		}
	}
	return strings.Trim(strings.TrimPrefix(tag, "W/"), `"`)
}

// isModel tells a model from the library.
func (f *fetch) isModel() bool { return f.ref != Ref{} }

func (f *fetch) address(one file) *url.URL {
	if one.at != nil {
		return one.at
	}
	return f.hub.endpoint.JoinPath(append([]string{f.ref.Owner, f.ref.Name, "resolve", f.commit}, strings.Split(one.name, "/")...)...)
}

// request is one question to the hub; ranges is the Range header, "" for all.
type request struct {
	method string
	at     *url.URL
	ranges string
}

// send makes one request, sorts out the answers that are none, and has read read
// the good one. A silence of the hub ends it.
func (f *fetch) send(ctx context.Context, r request, read func(context.Context, *http.Response) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, r.method, r.at.String(), http.NoBody)
	if err != nil {
		return final(f.broken("ask for %s: %v", r.at.Redacted(), err))
	}
	req.Header.Set("User-Agent", "agentformation")
	if f.hub.cfg.Token != "" && f.isModel() {
		req.Header.Set("Authorization", "Bearer "+f.hub.cfg.Token)
	}
	if r.ranges != "" {
		req.Header.Set("Range", r.ranges)
	}
	watch := newWatch(f.hub.cfg.Stall, cancel)
	defer watch.stop()
	client := *f.hub.client
	client.CheckRedirect = f.follow
	res, err := client.Do(req)
	if err != nil {
		return f.unreachable(ctx, err)
	}
	defer res.Body.Close()
	res.Body = &watchedBody{res.Body, watch}
	if err := f.refusal(res); err != nil {
		return err
	}
	return read(ctx, res)
}

// mostRedirects of one request.
const mostRedirects = 5

// follow keeps the token away from where the hub sends us on to, and the
// content off wires that anybody can write on.
func (f *fetch) follow(req *http.Request, via []*http.Request) error {
	if len(via) > mostRedirects {
		return fmt.Errorf("more than %d redirects", mostRedirects)
	}
	if req.URL.Scheme != "https" && via[0].URL.Scheme == "https" {
		return fmt.Errorf("redirected from https to %s", req.URL.Scheme)
	}
	if req.URL.Host != f.host {
		req.Header.Del("Authorization")
	}
	return nil
}

// refusal is the fault that an answer stands for, nil when it is a good one.
func (f *fetch) refusal(res *http.Response) error {
	code := res.Header.Get("X-Error-Code")
	switch {
	case res.StatusCode == http.StatusOK || res.StatusCode == http.StatusPartialContent:
		return nil
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return errRange
	case !f.isModel() && res.StatusCode < http.StatusInternalServerError && res.StatusCode != http.StatusTooManyRequests:
		return final(fault.New(fault.NotFound, NameNotFound, fmt.Sprintf("%s: %s answered %s for %s", f.what, res.Request.URL.Host, res.Status, res.Request.URL.Path)))
	case code == "RevisionNotFound":
		return final(fault.New(fault.NotFound, NameNotFound, fmt.Sprintf("embedding model %s: %s has no revision %q", f.ref, f.ref.ID(), f.ref.Revision)))
	case code == "GatedRepo" || res.StatusCode == http.StatusForbidden,
		res.StatusCode == http.StatusUnauthorized && code != "RepoNotFound" && f.hub.cfg.Token != "":
		return final(fault.New(fault.Forbidden, NameForbidden, fmt.Sprintf("embedding model %s: %s gives it only to a token that may read it; set HF_TOKEN to one", f.ref, f.hub.endpoint.Host)))
	case code == "RepoNotFound" || res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusNotFound:
		return final(fault.New(fault.NotFound, NameNotFound, fmt.Sprintf("embedding model %s: there is no %s on %s, or it is private; check owner and name", f.ref, f.ref.ID(), f.hub.endpoint.Host)))
	case res.StatusCode == http.StatusTooManyRequests || res.StatusCode >= 500:
		return f.unreachableText(fmt.Sprintf("%s answered %s", f.host, res.Status))
	}
	return final(f.broken("%s answered %s", f.host, res.Status))
}

func (f *fetch) broken(format string, args ...any) *fault.Error {
	return fault.New(fault.BadGateway, NameBroken, f.what+": "+fmt.Sprintf(format, args...))
}

// unreachable is what a broken connection means; a stall is told as such.
func (f *fetch) unreachable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStall) {
		return f.unreachableText(fmt.Sprintf("%s sent nothing for %s", f.host, f.hub.cfg.Stall))
	}
	if u, ok := errors.AsType[*url.Error](err); ok { // its text has the whole address, with what a redirect signed
		err = u.Err
	}
	return fault.Wrap(fault.Unavailable, NameUnreachable, fmt.Sprintf("%s: %s can't be reached: %v", f.what, f.host, err), err)
}

func (f *fetch) unreachableText(text string) error {
	return fault.New(fault.Unavailable, NameUnreachable, f.what+": "+text)
}

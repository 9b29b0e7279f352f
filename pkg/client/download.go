package client

import (
	"context"
	"io"
	"net/http"
)

// Download writes the zip file of a formation's current version to w, with
// withDB also the SQLite files of its state, and returns how many bytes it
// wrote. A connection that breaks is an *Error NameBrokenStream: what was
// written by then is no whole file.
func (s *Server) Download(ctx context.Context, id string, withDB bool, w io.Writer) (int64, error) {
	c := newCall(http.MethodGet, "rpc", "formations", id, "download")
	if withDB {
		c.query.Set("db", "true")
	}
	resp, err := s.caller.open(ctx, c)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body := &broken{r: resp.Body}
	n, err := io.Copy(w, body)
	if body.err != nil {
		return n, brokenStream(body.err.Error(), body.err)
	}
	return n, err
}

// broken keeps an error of the reading, to tell it from one of the writing.
type broken struct {
	r   io.Reader
	err error
}

// Read reads from the body.
func (b *broken) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF {
		b.err = err
	}
	return n, err
}

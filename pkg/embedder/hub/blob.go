package hub

import (
	"context"
	"crypto/sha1" //nolint:gosec // the id of a git blob, which the hub names
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/agentformation/service/pkg/fault"
)

// incomplete ends the name of a blob that is still coming.
const incomplete = ".incomplete"

var (
	errStall = errors.New("the hub fell silent")
	errRange = errors.New("the hub has no such range")
)

// finalError is one that another try would meet again.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func final(err error) error { return finalError{err} }

// retry calls try until it succeeds, fails for good, or has got nowhere too
// often. try tells whether it got anywhere.
func (f *fetch) retry(ctx context.Context, try func() (progress bool, err error)) error {
	for failed := 0; ; {
		progress, err := try()
		if err == nil {
			return nil
		}
		if last, ok := errors.AsType[finalError](err); ok {
			return last.error
		}
		if progress {
			failed = 0
		}
		if failed++; failed > f.hub.cfg.Retries || ctx.Err() != nil {
			return err
		}
		f.hub.cfg.Log.Debug().Err(err).Int("attempt", failed).Str("fetch", f.what).Msg("asking again")
		pause := time.NewTimer(f.hub.cfg.Backoff << (failed - 1))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		}
	}
}

// blob fetches the content of a file, unless it is there. What came of an
// earlier download is kept and continued.
func (f *fetch) blob(ctx context.Context, one file) error {
	path := f.blobPath(one)
	if info, err := os.Stat(path); err == nil {
		f.step.Done += info.Size()
		return nil
	}
	out, err := os.OpenFile(path+incomplete, os.O_CREATE|os.O_RDWR, 0o644) //nolint:gosec // formations of other users read the cache
	if err != nil {
		return cacheFault(f.what, err)
	}
	defer out.Close()
	before, again := f.step.Done, true
	err = f.retry(ctx, func() (bool, error) {
		p := &part{fetch: f, file: one, out: out, sum: newSum(one)}
		if err := p.resume(); err != nil {
			return false, final(cacheFault(f.what, err))
		}
		f.step.Done = before + p.have
		progress, err := p.pull(ctx)
		if errors.Is(err, errWrongSum) || errors.Is(err, errRange) {
			// What lay here was bad, or what came: begin anew, once.
			if err := out.Truncate(0); err != nil {
				return false, final(cacheFault(f.what, err))
			}
			if !again {
				return false, final(f.broken("what came for %s has not the hash that the hub names (%s)", one.name, one.hash))
			}
			again = false
			return false, err
		}
		return progress, err
	})
	if err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return cacheFault(f.what, err)
	}
	if err := os.Rename(path+incomplete, path); err != nil {
		return cacheFault(f.what, err)
	}
	return nil
}

var errWrongSum = errors.New("the content has another hash")

// newSum is the hash that the name of the blob is made with.
func newSum(one file) hash.Hash {
	if len(one.hash) == sha256.Size*2 {
		return sha256.New()
	}
	h := sha1.New() //nolint:gosec // the id of a git blob
	fmt.Fprintf(h, "blob %d\x00", one.size)
	return h
}

// part is one try to get the rest of a blob.
type part struct {
	*fetch
	file
	out  *os.File
	sum  hash.Hash
	have int64
}

// resume reads what is there into the hash.
func (p *part) resume() error {
	if _, err := p.out.Seek(0, io.SeekStart); err != nil {
		return err
	}
	n, err := io.Copy(p.sum, p.out)
	if err != nil {
		return err
	}
	if p.size >= 0 && n > p.size {
		p.sum, n = newSum(p.file), 0
		if err := p.out.Truncate(0); err != nil {
			return err
		}
	}
	p.have = n
	_, err = p.out.Seek(n, io.SeekStart)
	return err
}

// pull gets the rest and checks the whole.
func (p *part) pull(ctx context.Context) (progress bool, err error) {
	if p.size < 0 || p.have < p.size {
		if progress, err = p.get(ctx); err != nil {
			return progress, err
		}
	}
	if p.size >= 0 && p.have != p.size {
		return progress, p.unreachableText(fmt.Sprintf("%s ended after %d of %d bytes", p.name, p.have, p.size))
	}
	if hex.EncodeToString(p.sum.Sum(nil)) != p.hash {
		return false, errWrongSum
	}
	return progress, nil
}

func (p *part) get(ctx context.Context) (progress bool, err error) {
	r := request{http.MethodGet, p.address(p.file), ""}
	if p.have > 0 {
		r.ranges = fmt.Sprintf("bytes=%d-", p.have)
	}
	err = p.send(ctx, r, func(ctx context.Context, res *http.Response) error {
		if err := p.begin(res); err != nil {
			return err
		}
		if p.step.Total == 0 && res.ContentLength > 0 {
			p.step.Total = p.have + res.ContentLength
		}
		progress, err = p.read(ctx, res.Body)
		return err
	})
	return progress, err
}

// begin sees where the answer begins: where we asked, or all anew.
func (p *part) begin(res *http.Response) error {
	if p.have == 0 {
		return nil
	}
	if res.StatusCode == http.StatusPartialContent {
		from := int64(-1)
		_, _ = fmt.Sscanf(res.Header.Get("Content-Range"), "bytes %d-", &from)
		if from != p.have {
			return errRange
		}
		return nil
	}
	if err := p.restart(); err != nil {
		return final(cacheFault(p.what, err))
	}
	return nil
}

func (p *part) read(ctx context.Context, body io.Reader) (progress bool, err error) {
	most := p.size
	if most < 0 {
		most = p.hub.cfg.MaxFile
	}
	buf := make([]byte, 256<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			if p.have+int64(n) > most {
				return false, final(p.broken("%s is longer than %d bytes", p.name, most))
			}
			if _, err := p.out.Write(buf[:n]); err != nil {
				return false, final(cacheFault(p.what, err))
			}
			p.sum.Write(buf[:n])
			p.have += int64(n)
			p.step.Done += int64(n)
			p.tell(false)
			progress = true
		}
		if err == io.EOF {
			return progress, nil
		}
		if err != nil {
			return progress, p.unreachable(ctx, err)
		}
	}
}

func (p *part) restart() error {
	p.step.Done -= p.have
	p.sum, p.have = newSum(p.file), 0
	if err := p.out.Truncate(0); err != nil {
		return err
	}
	_, err := p.out.Seek(0, io.SeekStart)
	return err
}

// watch ends a request when nothing has come for a while.
type watch struct {
	timer *time.Timer
	after time.Duration
}

func newWatch(after time.Duration, cancel context.CancelCauseFunc) *watch {
	return &watch{timer: time.AfterFunc(after, func() { cancel(errStall) }), after: after}
}

func (w *watch) stop() { w.timer.Stop() }

// watchedBody sets the watch back with each piece.
type watchedBody struct {
	io.ReadCloser
	watch *watch
}

// Read reads the next piece.
func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.watch.timer.Reset(b.watch.after)
	}
	return n, err
}

// cacheFault is an error of the disk.
func cacheFault(what string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("fetch %s: %w", what, err)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		return fault.Wrap(fault.Unavailable, NameNoSpace, what+": no space is left in the model cache", err)
	}
	return fault.Wrap(fault.Unavailable, NameNoSpace, fmt.Sprintf("%s: the model cache can't be used: %v", what, err), err)
}

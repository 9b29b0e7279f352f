package embedtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Commit is the commit every branch of a fake repository points at.
const Commit = "1234567890abcdef1234567890abcdef12345678"

// Hub is a model hub on the loopback interface. Set its faults before the call
// that shall meet them; they are safe to set while it serves.
type Hub struct {
	URL string

	mu     sync.Mutex
	repos  map[string]map[string][]byte
	calls  []Call
	faults map[string]Fault // by file name; "" is the description of the repository
	gated  map[string]bool
	token  string
	plain  bool
}

// Call is a request that the hub had.
type Call struct{ Method, Path, Range, Authorization string }

// Fault is what the hub does wrong with a file.
type Fault struct {
	Status  int           // answer with this, when not 0
	Body    string        // instead of the content
	CutAt   int           // end the connection after this many bytes, when above 0
	Times   int           // how often, 0 is always
	Stall   chan struct{} // stop sending in the middle until it is closed
	Corrupt bool          // change a byte
	NoRange bool          // ignore Range
}

// NewHub starts a hub that ends with the test.
func NewHub(t testing.TB) *Hub {
	h, end := ServeHub()
	t.Cleanup(end)
	return h
}

// ServeHub starts a hub that ends with end.
func ServeHub() (h *Hub, end func()) {
	h = &Hub{repos: map[string]map[string][]byte{}, faults: map[string]Fault{}, gated: map[string]bool{}}
	server := httptest.NewServer(h)
	h.URL = server.URL
	return h, server.Close
}

// Add makes a repository, or replaces its files.
func (h *Hub) Add(id string, files map[string][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.repos[id] = files
}

// Fail sets what goes wrong with a file; the zero Fault mends it.
func (h *Hub) Fail(file string, f Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults[file] = f
}

// Gate makes a repository ask for the token.
func (h *Hub) Gate(id, token string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gated[id], h.token = true, token
}

// Plain makes the hub describe files without their sizes and hashes, as older
// ones do.
func (h *Hub) Plain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.plain = true
}

// Calls returns the requests so far and forgets them.
func (h *Hub) Calls() []Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil
	return calls
}

// large files are kept apart, behind a redirect, as a hub does with LFS.
func large(name string) bool {
	return strings.HasSuffix(name, ".onnx") || strings.Contains(name, "_data")
}

// ETag is what identifies the content of a file: sha256 of large ones, the git
// blob id of the rest.
func ETag(name string, data []byte) string {
	if large(name) {
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...))
	return hex.EncodeToString(sum[:])
}

// ServeHTTP answers as the hub does.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.calls = append(h.calls, Call{r.Method, r.URL.Path, r.Header.Get("Range"), r.Header.Get("Authorization")})
	h.mu.Unlock()
	path := strings.TrimPrefix(r.URL.Path, "/")
	if rest, ok := strings.CutPrefix(path, "api/models/"); ok {
		id, revision, _ := strings.Cut(rest, "/revision/")
		h.describe(w, r, id, revision)
		return
	}
	if rest, ok := strings.CutPrefix(path, "storage/"); ok {
		owner, rest, _ := strings.Cut(rest, "/")
		name, file, _ := strings.Cut(rest, "/")
		h.content(w, r, owner+"/"+name, file)
		return
	}
	id, rest, ok := strings.Cut(path, "/resolve/")
	revision, file, _ := strings.Cut(rest, "/")
	files, known := h.files(id)
	data, exists := files[file]
	if !ok || !known || !exists || revision != Commit {
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	w.Header().Set("X-Repo-Commit", Commit)
	if large(file) {
		w.Header().Set("X-Linked-Etag", `"`+ETag(file, data)+`"`)
		w.Header().Set("X-Linked-Size", fmt.Sprint(len(data)))
		http.Redirect(w, r, "/storage/"+id+"/"+file, http.StatusFound)
		return
	}
	w.Header().Set("ETag", `"`+ETag(file, data)+`"`)
	h.content(w, r, id, file)
}

func refuse(w http.ResponseWriter, status int, code, text string) {
	w.Header().Set("X-Error-Code", code)
	w.Header().Set("X-Error-Message", text)
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error":%q}`, text)
}

func (h *Hub) files(id string) (map[string][]byte, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	files, ok := h.repos[id]
	return files, ok
}

func (h *Hub) describe(w http.ResponseWriter, r *http.Request, id, revision string) {
	if f := h.take(""); f.Status != 0 {
		w.WriteHeader(f.Status)
		_, _ = w.Write([]byte(f.Body))
		return
	}
	files, ok := h.files(id)
	h.mu.Lock()
	plain := h.plain
	gated := h.gated[id] && r.Header.Get("Authorization") != "Bearer "+h.token
	h.mu.Unlock()
	switch {
	case !ok: // a hub does not say whether it is private or not there
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Repository not found")
	case gated:
		refuse(w, http.StatusUnauthorized, "GatedRepo", "Access to model "+id+" is restricted")
	case revision != "main" && revision != "v1" && revision != Commit:
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+revision)
	default:
		type lfs struct {
			SHA256 string `json:"sha256"`
			Size   int    `json:"size"`
		}
		type sibling struct {
			Name string `json:"rfilename"`
			Size int    `json:"size,omitempty"`
			Blob string `json:"blobId,omitempty"`
			LFS  *lfs   `json:"lfs,omitempty"`
		}
		var all []sibling
		for name, data := range files {
			s := sibling{Name: name}
			if r.URL.Query().Get("blobs") == "true" && !plain {
				s.Size, s.Blob = len(data), ETag(name, data)
				if large(name) {
					s.LFS = &lfs{ETag(name, data), len(data)}
				}
			}
			all = append(all, s)
		}
		slices.SortFunc(all, func(a, b sibling) int { return strings.Compare(a.Name, b.Name) })
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object{"id": id, "sha": Commit, "siblings": all})
	}
}

// take returns the fault of a file and counts it.
func (h *Hub) take(file string) Fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.faults[file]
	if f.Times > 0 {
		left := f
		left.Times--
		if left.Times == 0 {
			left = Fault{}
		}
		h.faults[file] = left
	}
	return f
}

func (h *Hub) content(w http.ResponseWriter, r *http.Request, id, file string) {
	files, _ := h.files(id)
	data, f := files[file], Fault{}
	if r.Method != http.MethodHead {
		f = h.take(file)
	}
	switch {
	case f.Status != 0:
		w.WriteHeader(f.Status)
		_, _ = w.Write([]byte(f.Body))
		return
	case f.Corrupt:
		data = bytes.Clone(data)
		data[len(data)/2] ^= 0xFF
	case f.Body != "":
		data = []byte(f.Body)
	}
	if f.NoRange {
		r.Header.Del("Range")
	}
	if f.CutAt > 0 || f.Stall != nil {
		w = &faulty{ResponseWriter: w, r: r, fault: f, left: max(f.CutAt, 1)}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// faulty ends the connection, or stops, after some bytes.
type faulty struct {
	http.ResponseWriter
	r     *http.Request
	fault Fault
	left  int
}

// Write passes on what is left before the fault.
func (f *faulty) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p[:min(len(p), f.left)])
	f.left -= n
	if err != nil || f.left > 0 {
		return n, err
	}
	_ = http.NewResponseController(f.ResponseWriter).Flush()
	if f.fault.Stall != nil {
		select {
		case <-f.fault.Stall:
		case <-f.r.Context().Done():
		}
	}
	panic(http.ErrAbortHandler)
}

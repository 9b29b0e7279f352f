package httpx

import (
	"crypto/rand"
	"sync"
)

// idLength is the number of random characters of an id; with 6 bits each an id
// carries 126 bits.
const idLength = 21

// idAlphabet has exactly 64 characters, so that a random byte maps to one of
// them without bias.
const idAlphabet = "_-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// idSource holds random bytes read ahead: one system call serves 32 ids.
type idSource struct {
	buf  [32 * idLength]byte
	next int
}

// A pool of random bytes has no identity: every caller may share it.
var idSources = sync.Pool{New: func() any {
	return &idSource{next: 32 * idLength}
}}

// NewID returns prefix followed by 21 random characters of [_-0-9a-zA-Z]. The
// randomness comes from the operating system; a byte is never used twice.
func NewID(prefix string) string {
	s := idSources.Get().(*idSource)
	if s.next == len(s.buf) {
		// Since Go 1.24 Read never fails: it ends the program instead.
		_, _ = rand.Read(s.buf[:])
		s.next = 0
	}
	var out [64]byte
	id := append(out[:0], prefix...)
	for _, b := range s.buf[s.next : s.next+idLength] {
		id = append(id, idAlphabet[b&63])
	}
	clear(s.buf[s.next : s.next+idLength])
	s.next += idLength
	idSources.Put(s)
	return string(id)
}

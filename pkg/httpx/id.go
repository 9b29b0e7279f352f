package httpx

import (
	"crypto/rand"
	"sync"
	"time"
)

// An id is 21 characters: the time in milliseconds, most significant first,
// then 78 random bits. Ids are keys of the stores' indexes: in the order of
// time an insert goes to the end of an index, where the last one went, instead
// of to a random page of it, and a commit writes a fifth of the pages.
const (
	idTime   = 8  // characters, 48 bits: milliseconds until the year 10889
	idRandom = 13 // characters, 78 bits
)

// idAlphabet has exactly 64 characters, so that a random byte maps to one of
// them without bias; they are in the order of their codes, so that ids compare
// as their times do.
const idAlphabet = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"

// idSource holds random bytes read ahead: one system call serves 32 ids.
type idSource struct {
	buf  [32 * idRandom]byte
	next int
}

// A pool of random bytes has no identity: every caller may share it.
var idSources = sync.Pool{New: func() any {
	return &idSource{next: 32 * idRandom}
}}

// NewID returns prefix followed by 21 characters of [-_0-9A-Za-z], in the
// order of the time they were made and else random. The randomness comes from
// the operating system; a byte is never used twice.
func NewID(prefix string) string {
	s := idSources.Get().(*idSource)
	if s.next == len(s.buf) {
		// Since Go 1.24 Read never fails: it ends the program instead.
		_, _ = rand.Read(s.buf[:])
		s.next = 0
	}
	var out [64]byte
	id := append(out[:0], prefix...)
	now := uint64(time.Now().UnixMilli())
	for shift := 6 * (idTime - 1); shift >= 0; shift -= 6 {
		id = append(id, idAlphabet[now>>shift&63])
	}
	for _, b := range s.buf[s.next : s.next+idRandom] {
		id = append(id, idAlphabet[b&63])
	}
	clear(s.buf[s.next : s.next+idRandom])
	s.next += idRandom
	idSources.Put(s)
	return string(id)
}

package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

// charsMap is a table of replacements as SentencePiece compiles it: a double
// array of prefixes, whose leaves point into a list of strings that end in NUL.
type charsMap struct {
	units []uint32
	text  string
}

// longestCluster is how many bytes a cluster of characters may have to be
// looked up whole; longer ones are looked up character by character.
const longestCluster = 6

func parseCharsMap(raw json.RawMessage) (normalizer, error) {
	var p struct {
		Map string `json:"precompiled_charsmap"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, err
	}
	data, err := base64.StdEncoding.DecodeString(p.Map)
	if err != nil {
		return nil, fmt.Errorf("precompiled_charsmap: %w", err)
	}
	m, err := newCharsMap(data)
	if err != nil {
		return nil, fmt.Errorf("precompiled_charsmap: %w", err)
	}
	return m.normalize, nil
}

func newCharsMap(data []byte) (*charsMap, error) {
	if len(data) < 4 {
		return nil, errors.New("shorter than its own length")
	}
	size := uint64(binary.LittleEndian.Uint32(data))
	data = data[4:]
	if size == 0 || size%4 != 0 || size > uint64(len(data)) {
		return nil, fmt.Errorf("%d bytes of prefixes in %d bytes", size, len(data))
	}
	m := &charsMap{units: make([]uint32, size/4), text: string(data[size:])}
	for to := range strings.SplitSeq(m.text, "\x00") {
		if err := checkContent(to); err != nil {
			return nil, err
		}
	}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return m, nil
}

func (m *charsMap) normalize(s string) string {
	if s == "" {
		return s
	}
	var b strings.Builder
	b.Grow(len(s))
	state := -1
	for s != "" {
		var cluster string
		cluster, s, _, state = uniseg.FirstGraphemeClusterInString(s, state)
		if len(cluster) < longestCluster {
			if to, ok := m.find(cluster); ok {
				b.WriteString(to)
				continue
			}
		}
		for i, r := range cluster {
			part := cluster[i : i+utf8.RuneLen(r)]
			if to, ok := m.find(part); ok {
				part = to
			}
			b.WriteString(part)
		}
	}
	// A table may cut characters in two, and whoever comes next takes text.
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// find returns the replacement of the shortest prefix of s that has one, which
// is how the reference does it.
func (m *charsMap) find(s string) (string, bool) {
	at := offset(m.units[0])
	for i := range len(s) {
		at ^= uint32(s[i])
		if s[i] == 0 || int(at) >= len(m.units) {
			return "", false
		}
		unit := m.units[at]
		if unit&(1<<31|0xFF) != uint32(s[i]) {
			return "", false
		}
		at ^= offset(unit)
		if int(at) >= len(m.units) {
			return "", false
		}
		if unit>>8&1 == 1 {
			from := int(m.units[at] & (1<<31 - 1))
			if from > len(m.text) {
				return "", false
			}
			to, _, _ := strings.Cut(m.text[from:], "\x00")
			return to, true
		}
	}
	return "", false
}

func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

package media

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/agentformation/service/pkg/formation/chat"
)

// maxBoxes bounds the parts of a container that are looked at.
const maxBoxes = 10_000

// sniffMP4 reads the boxes of an MP4 or QuickTime file: what its tracks are and
// how long it is.
func sniffMP4(data []byte) kind {
	switch brand := string(data[8:min(len(data), 12)]); brand {
	case "heic", "heix", "mif1", "msf1", "avif", "avis":
		return kind{problem: "HEIC and AVIF images are not read: send JPEG, PNG, GIF or WebP"}
	case "qt  ":
		return mp4Kind(data, "video/quicktime")
	case "M4A ", "M4B ":
		return kind{part: chat.Audio, mediaType: "audio/mp4"}
	default:
		return mp4Kind(data, "video/mp4")
	}
}

func mp4Kind(data []byte, mediaType string) kind {
	m := mp4{left: maxBoxes}
	m.boxes(data, 0)
	if m.sound && !m.picture {
		return kind{part: chat.Audio, mediaType: "audio/mp4"}
	}
	return kind{part: chat.Video, mediaType: mediaType, duration: m.duration}
}

// mp4 is what is known of an MP4 file.
type mp4 struct {
	sound, picture bool
	duration       time.Duration
	left           int
}

// boxes walks the boxes of data: four bytes of size, four of type, content.
func (m *mp4) boxes(data []byte, depth int) {
	const maxDepth = 8
	for len(data) >= 8 && m.left > 0 && depth < maxDepth {
		m.left--
		size, head := uint64(binary.BigEndian.Uint32(data)), uint64(8)
		switch size {
		case 0: // up to the end
			size = uint64(len(data))
		case 1:
			if len(data) < 16 {
				return
			}
			size, head = binary.BigEndian.Uint64(data[8:]), 16
		}
		if size < head || size > uint64(len(data)) {
			return
		}
		content := data[head:size]
		switch string(data[4:8]) {
		case "moov", "trak", "mdia", "mvex":
			m.boxes(content, depth+1)
		case "mvhd":
			m.duration = max(m.duration, headerDuration(content))
		case "hdlr":
			m.sound = m.sound || hasAt(content, 8, "soun")
			m.picture = m.picture || hasAt(content, 8, "vide")
		}
		data = data[size:]
	}
}

// headerDuration reads the duration of a movie header.
func headerDuration(b []byte) time.Duration {
	var scale, length uint64
	switch {
	case len(b) >= 32 && b[0] == 1: // 64-bit times
		scale, length = uint64(binary.BigEndian.Uint32(b[20:])), binary.BigEndian.Uint64(b[24:])
	case len(b) >= 20 && b[0] == 0:
		scale, length = uint64(binary.BigEndian.Uint32(b[12:])), uint64(binary.BigEndian.Uint32(b[16:]))
		if length == math.MaxUint32 {
			return 0 // not known
		}
	}
	if scale == 0 || length == math.MaxUint64 {
		return 0
	}
	return seconds(float64(length) / float64(scale))
}

// seconds is a duration, the longest that there is for what is longer.
func seconds(s float64) time.Duration {
	if math.IsNaN(s) || s <= 0 {
		return 0
	}
	if s >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(s * float64(time.Second))
}

// The elements of Matroska and WebM that are looked at.
const (
	ebmlSegment   = 0x18538067
	ebmlInfo      = 0x1549a966
	ebmlScale     = 0x2ad7b1
	ebmlDuration  = 0x4489
	ebmlTracks    = 0x1654ae6b
	ebmlTrack     = 0xae
	ebmlTrackType = 0x83
	ebmlHeader    = 0x1a45dfa3
	ebmlDocType   = 0x4282
	ebmlCluster   = 0x1f43b675
)

// sniffMatroska reads the elements of a WebM or Matroska file. Browsers record
// speech as WebM without pictures.
func sniffMatroska(data []byte) kind {
	m := matroska{left: maxBoxes, scale: 1e6}
	m.elements(data, 0)
	end := "x-matroska"
	if m.web {
		end = "webm"
	}
	if m.sound && !m.picture {
		return kind{part: chat.Audio, mediaType: "audio/" + end}
	}
	return kind{part: chat.Video, mediaType: "video/" + end, duration: seconds(m.length * m.scale / 1e9)}
}

// matroska is what is known of such a file.
type matroska struct {
	sound, picture, web bool
	length, scale       float64 // in units of scale nanoseconds
	left                int
}

func (m *matroska) elements(data []byte, depth int) {
	const maxDepth = 8
	for len(data) > 0 && m.left > 0 && depth < maxDepth {
		m.left--
		id, n := vint(data, true)
		if n == 0 {
			return
		}
		size, k := vint(data[n:], false)
		if k == 0 {
			return
		}
		data = data[n+k:]
		content := data
		if size < uint64(len(data)) {
			content = data[:size]
		}
		switch id {
		case ebmlHeader, ebmlSegment, ebmlInfo, ebmlTracks, ebmlTrack:
			m.elements(content, depth+1)
		case ebmlCluster:
			if m.sound || m.picture {
				return // what comes now is the film itself
			}
		case ebmlDocType:
			m.web = string(content) == "webm"
		case ebmlScale:
			m.scale = float64(unsigned(content))
		case ebmlDuration:
			m.length = float(content)
		case ebmlTrackType:
			m.picture = m.picture || unsigned(content) == 1
			m.sound = m.sound || unsigned(content) == 2
		}
		data = data[len(content):]
	}
}

// vint reads a number whose first byte says its length; n is 0 when there is
// none. An id keeps the mark of its length, an unknown size is the largest.
func vint(b []byte, id bool) (v uint64, n int) {
	const most = 8
	if len(b) == 0 || b[0] == 0 {
		return 0, 0
	}
	for n = 1; b[0]&(0x80>>(n-1)) == 0; n++ {
	}
	if n > most || len(b) < n {
		return 0, 0
	}
	first := b[0]
	if !id {
		first &= 0xff >> n
	}
	v = uint64(first)
	for _, c := range b[1:n] {
		v = v<<8 | uint64(c)
	}
	if !id && v == 1<<(7*n)-1 {
		return math.MaxUint64, n
	}
	return v, n
}

func unsigned(b []byte) (v uint64) {
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return v
}

func float(b []byte) float64 {
	switch len(b) {
	case 4:
		return float64(math.Float32frombits(binary.BigEndian.Uint32(b)))
	case 8:
		return math.Float64frombits(binary.BigEndian.Uint64(b))
	default:
		return 0
	}
}

package media

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/unicode"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/media/document"
)

// kind is what the bytes of a file are.
type kind struct {
	part      chat.PartKind
	mediaType string
	format    document.Format // of a document whose text is read elsewhere
	duration  time.Duration   // of a video; 0 when it does not say
	problem   string          // set when the file is nothing that can be taken
}

// sniff finds out what a file is. Name and declared type only choose between
// kinds of text, which are all read as text.
func sniff(data []byte, name, declared string) kind {
	switch {
	case hasAt(data, 0, "\x89PNG\r\n\x1a\n"):
		return kind{part: chat.Image, mediaType: "image/png"}
	case hasAt(data, 0, "\xff\xd8\xff"):
		return kind{part: chat.Image, mediaType: "image/jpeg"}
	case hasAt(data, 0, "GIF87a"), hasAt(data, 0, "GIF89a"):
		return kind{part: chat.Image, mediaType: "image/gif"}
	case hasAt(data, 0, "RIFF"):
		return riff(data)
	case hasAt(data, 4, "ftyp"):
		return sniffMP4(data)
	case hasAt(data, 0, "\x1a\x45\xdf\xa3"):
		return sniffMatroska(data)
	case hasAt(data, 0, "OggS"):
		return ogg(data)
	case hasAt(data, 0, "fLaC"):
		return kind{part: chat.Audio, mediaType: "audio/flac"}
	case hasAt(data, 0, "ID3"), mp3Frame(data):
		return kind{part: chat.Audio, mediaType: "audio/mpeg"}
	case len(data) > 1 && data[0] == 0xff && data[1]&0xf6 == 0xf0:
		return kind{part: chat.Audio, mediaType: "audio/aac"}
	case hasAt(data, 0, "FORM") && (hasAt(data, 8, "AIFF") || hasAt(data, 8, "AIFC")):
		return kind{part: chat.Audio, mediaType: "audio/aiff"}
	case hasAt(data, 0, "\x00\x00\x01\xba"), hasAt(data, 0, "\x00\x00\x01\xb3"):
		return kind{part: chat.Video, mediaType: "video/mpeg"}
	}
	return sniffDocument(data, name, declared)
}

func hasAt(data []byte, at int, magic string) bool {
	return len(data) >= at+len(magic) && string(data[at:at+len(magic)]) == magic
}

func riff(data []byte) kind {
	switch {
	case hasAt(data, 8, "WEBP"):
		return kind{part: chat.Image, mediaType: "image/webp"}
	case hasAt(data, 8, "WAVE"):
		return kind{part: chat.Audio, mediaType: "audio/wav"}
	case hasAt(data, 8, "AVI "):
		return kind{part: chat.Video, mediaType: "video/x-msvideo"}
	default:
		return unknown()
	}
}

// ogg tells a film from a recording by the first page of its streams.
func ogg(data []byte) kind {
	const head = 4096
	if bytes.Contains(data[:min(len(data), head)], []byte("\x80theora")) {
		return kind{part: chat.Video, mediaType: "video/ogg"}
	}
	return kind{part: chat.Audio, mediaType: "audio/ogg"}
}

// mp3Frame tells whether data begins with the frame header of MPEG layer III.
func mp3Frame(data []byte) bool {
	const header = 4
	if len(data) < header || data[0] != 0xff || data[1]&0xe0 != 0xe0 {
		return false
	}
	version, layer := data[1]>>3&3, data[1]>>1&3
	bitrate, rate := data[2]>>4, data[2]>>2&3
	return version != 1 && layer == 1 && bitrate != 0 && bitrate != 15 && rate != 3
}

func unknown() kind {
	return kind{problem: "its type is not known: send an image (JPEG, PNG, GIF, WebP), audio, video, or a document (PDF, DOCX, XLSX, PPTX, HTML, Markdown, CSV, JSON, text)"}
}

func sniffDocument(data []byte, name, declared string) kind {
	const head = 1024 // a PDF may begin with a little of something else
	switch {
	case bytes.Contains(data[:min(len(data), head)], []byte("%PDF-")):
		return kind{part: chat.Document, mediaType: document.TypePDF, format: document.PDF}
	case hasAt(data, 0, "PK\x03\x04"):
		return kind{part: chat.Document, mediaType: "application/zip", format: document.Office}
	case hasAt(data, 0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"):
		return kind{problem: "old Office files are not read: save it as DOCX, XLSX or PPTX"}
	}
	return sniffText(data, name, declared)
}

// sniffText tells kinds of text apart; what is no text is unknown.
func sniffText(data []byte, name, declared string) kind {
	text, ok := decode(data)
	if !ok {
		return unknown()
	}
	mediaType := textTypes[strings.ToLower(path.Ext(name))]
	if mediaType == "" {
		if declared, _, err := mime.ParseMediaType(declared); err == nil && isText(declared) {
			mediaType = declared
		}
	}
	switch {
	case mediaType == document.TypeHTML, strings.HasPrefix(http.DetectContentType(data), document.TypeHTML) && mediaType == "":
		return kind{part: chat.Document, mediaType: document.TypeHTML, format: document.HTML}
	case mediaType == "" && (hasAt([]byte(text), 0, "{") || hasAt([]byte(text), 0, "[")) && json.Valid([]byte(text)):
		mediaType = "application/json"
	case mediaType == "":
		mediaType = "text/plain"
	}
	return kind{part: chat.Document, mediaType: mediaType}
}

var textTypes = map[string]string{
	".html": document.TypeHTML, ".htm": document.TypeHTML, ".xhtml": document.TypeHTML,
	".md": "text/markdown", ".markdown": "text/markdown", ".csv": "text/csv", ".tsv": "text/tab-separated-values",
	".json": "application/json", ".jsonl": "application/jsonl", ".xml": "application/xml", ".yaml": "application/yaml",
	".yml": "application/yaml", ".txt": "text/plain", ".text": "text/plain", ".log": "text/plain",
}

func isText(mediaType string) bool {
	switch mediaType {
	case "application/json", "application/jsonl", "application/xml", "application/yaml", "application/x-yaml":
		return true
	}
	return strings.HasPrefix(mediaType, "text/")
}

// decode returns the text of a file, without byte order mark; ok is false when
// it is no text. Text that is not UTF-8 is taken as Windows-1252, in which older
// programs write.
func decode(data []byte) (text string, ok bool) {
	switch {
	case hasAt(data, 0, "\xff\xfe"), hasAt(data, 0, "\xfe\xff"):
		out, err := unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewDecoder().Bytes(data)
		if err != nil {
			return "", false
		}
		data = out
	case !utf8.Valid(data):
		out, err := charmap.Windows1252.NewDecoder().Bytes(data)
		if err != nil {
			return "", false
		}
		data = out
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for _, c := range data {
		if c < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f' || c == 0x7f {
			return "", false
		}
	}
	if bytes.ContainsRune(data, utf8.RuneError) || bytes.ContainsFunc(data, func(r rune) bool { return r >= 0x80 && r < 0xa0 }) {
		return "", false
	}
	return string(data), true
}

// plainText makes the text of a file that is text.
func (w *work) plainText() {
	text, _ := decode(w.file.Data)
	w.file.Data = nil
	if len(text) > MaxText {
		text, w.file.Cut = strings.ToValidUTF8(text[:MaxText], ""), true
	}
	if strings.TrimSpace(text) == "" {
		w.refuse("content", "there is no text in it")
		return
	}
	w.file.Text = strings.ReplaceAll(text, "\r\n", "\n")
}

// declaredKind is the kind of a media type that says something, else "".
func declaredKind(declared string) chat.PartKind {
	mediaType, _, err := mime.ParseMediaType(declared)
	if err != nil {
		return ""
	}
	top, _, _ := strings.Cut(mediaType, "/")
	switch {
	case top == "image":
		return chat.Image
	case top == "audio":
		return chat.Audio
	case top == "video":
		return chat.Video
	case isText(mediaType), mediaType == document.TypePDF, strings.HasPrefix(mediaType, "application/vnd.openxmlformats"):
		return chat.Document
	default:
		return ""
	}
}

// agree tells whether what is said of a file goes with what it is. Recordings
// and films share their containers.
func agree(declared, found chat.PartKind) bool {
	timed := func(k chat.PartKind) bool { return k == chat.Audio || k == chat.Video }
	return declared == found || timed(declared) && timed(found)
}

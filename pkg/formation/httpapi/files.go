package httpapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/media"
	"github.com/agentformation/service/pkg/httpx"
)

// Files makes files ready for models; *media.Preparer satisfies it.
type Files interface {
	Prepare(ctx context.Context, batch media.Batch) ([]chat.File, error)
}

// fileBody is a file of a chat body (reference runtime.md 3.1).
type fileBody struct {
	Filename    string      `json:"filename"`
	Content     base64Bytes `json:"content" required:"true"`
	ContentType string      `json:"content_type"`
	MimeType    string      `json:"mime_type" about:"the same as content_type"`
	Size        *int64      `json:"size" about:"of the content in bytes"`
}

func (f *fileBody) mediaType() string {
	if f.ContentType != "" {
		return f.ContentType
	}
	return f.MimeType
}

// base64Bytes is the content of a file. What is wrong with it is kept, to be
// told with the number of the file.
type base64Bytes struct {
	data    []byte
	problem string
	given   bool
}

// JSONSchema describes it.
func (base64Bytes) JSONSchema() map[string]any {
	return map[string]any{"type": "string", "contentEncoding": "base64"}
}

// UnmarshalJSON reads base64 of any of its alphabets, padded or not. It copies
// what it keeps, and nothing else: files are large.
func (b *base64Bytes) UnmarshalJSON(raw []byte) error {
	*b = base64Bytes{given: true}
	if len(raw) < 2 || raw[0] != '"' {
		b.given, b.problem = string(raw) != "null", "Input should be a string"
		return nil
	}
	text := raw[1 : len(raw)-1]
	if bytes.IndexByte(text, '\\') >= 0 { // some write "\/"
		var plain string
		if err := json.Unmarshal(raw, &plain); err != nil {
			return err
		}
		text = []byte(plain)
	}
	encoding := base64.RawStdEncoding
	if bytes.ContainsAny(text, "-_") {
		encoding = base64.RawURLEncoding
	}
	text = bytes.TrimRight(text, "=\r\n")
	b.data = make([]byte, encoding.DecodedLen(len(text)))
	n, err := encoding.Decode(b.data, text)
	if b.data = b.data[:n]; err != nil {
		b.data, b.problem = nil, "The content is not base64"
	}
	return nil
}

// checkFiles finds what is wrong with files before anybody looks into them.
func checkFiles(bad *checker, files []fileBody) {
	for i := range files {
		f, field := &files[i], fmt.Sprintf("files.%d.", i)
		named := fmt.Sprintf("files[%d]: ", i)
		switch {
		case f.Content.problem != "" && f.Content.given:
			word := httpx.InvalidFormat
			if f.Content.problem != "The content is not base64" {
				word = httpx.WrongType
			}
			bad.add(field+"content", named+f.Content.problem, "string", word)
		case !f.Content.given:
			bad.add(field+"content", named+"Field required", "string", httpx.Missing)
		case f.Size != nil && *f.Size != int64(len(f.Content.data)):
			bad.add(field+"size", fmt.Sprintf("%sthe size says %d bytes, the content has %d", named, *f.Size, len(f.Content.data)),
				"integer", httpx.InvalidFormat)
		}
	}
}

// uploadsOf returns the files of a body that was checked.
func uploadsOf(files []fileBody) []media.Upload {
	uploads := make([]media.Upload, len(files))
	for i := range files {
		uploads[i] = media.Upload{Name: files[i].Filename, Type: files[i].mediaType(), Data: files[i].Content.data}
	}
	return uploads
}

// prepare makes the files of a request ready. A file that cannot be taken is a
// fault that names it.
func (a *api) prepare(ctx context.Context, in *asked) error {
	if len(in.uploads) == 0 {
		return nil
	}
	if a.cfg.Files == nil {
		return fault.New(fault.Unavailable, "SERVICE_UNAVAILABLE", "files are not taken here")
	}
	files, err := a.cfg.Files.Prepare(ctx, media.Batch{Files: in.uploads, Agent: in.req.AgentID, Spoken: in.spoken})
	if refused, ok := errors.AsType[*media.RefusedError](err); ok {
		return in.refused(refused)
	}
	if err == nil && in.spoken {
		err = asSpoken(files)
	}
	in.req.Files, in.uploads = files, nil
	return err
}

func (in *asked) refused(e *media.RefusedError) error {
	var bad checker
	for _, r := range e.Refusals {
		if in.spoken && r.Field == "content_type" {
			return spokenFault(wrongContentType, "%s: %s", wrongContentType, r.Message)
		}
		field, typ, word := "files", "array", httpx.InvalidFormat
		if r.File >= 0 {
			field, typ = fmt.Sprintf("files.%d.%s", r.File, r.Field), "string"
		}
		if r.TooLong {
			word = httpx.TooLong
		}
		bad.add(field, r.Message, typ, word)
	}
	return &httpx.BodyError{Fields: bad}
}

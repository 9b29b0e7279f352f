package fakellm

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path"
)

// transcribePurpose is the purpose of calls for the words of a recording; rules
// name it, and User is the name of the file with its size.
const transcribePurpose = "transcription"

// transcriptions answers /v1/audio/transcriptions: with the text of the rule
// that matches, else with a sentence about the size of the recording. Like the
// real one it tells kinds of recordings by the ending of the file's name.
func (s *Server) transcriptions(x *exchange) error {
	mediaType, params, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
	if err != nil || mediaType != "multipart/form-data" {
		return fmt.Errorf("we could not parse your request: want multipart/form-data")
	}
	form, err := multipart.NewReader(bytes.NewReader(x.body), params["boundary"]).ReadForm(maxBody)
	if err != nil {
		return fmt.Errorf("we could not parse your multipart form: %w", err)
	}
	files := form.File["file"]
	if len(files) != 1 || len(form.Value["model"]) != 1 {
		return fmt.Errorf("you must provide a model and a file")
	}
	switch path.Ext(files[0].Filename) {
	case ".flac", ".m4a", ".mp3", ".mp4", ".mpeg", ".mpga", ".oga", ".ogg", ".wav", ".webm":
	default:
		return fmt.Errorf("invalid file format %q", files[0].Filename)
	}
	if format := form.Value["response_format"]; len(format) == 1 && format[0] != "json" {
		return fmt.Errorf("response_format %q is not supported", format[0])
	}
	f, err := files[0].Open()
	if err != nil {
		return fmt.Errorf("open the file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil || len(data) == 0 {
		return fmt.Errorf("the audio file could not be decoded")
	}
	x.call.Model, x.call.Purpose = form.Value["model"][0], transcribePurpose
	x.call.User = fmt.Sprintf("%s %d", files[0].Filename, len(data))
	x.call.Parts = []string{describePart("audio", path.Ext(files[0].Filename), len(data))}
	if x.call.User == probeSilence {
		x.call.Purpose = probePurpose
	}
	x.begin()
	asked := query{Model: x.call.Model, purpose: x.call.Purpose, user: x.call.User, last: "user"}
	reply, ok := s.match(&asked)
	if ok && (reply.Status != 0 || reply.Reset || reply.Stall || reply.Body != "") {
		x.send(&asked, &reply)
		return nil
	}
	if ok && (!x.pass(reply.Gate) || !x.pause(reply.delay())) {
		return nil
	}
	text := reply.Text
	if !ok {
		text = fmt.Sprintf("This is what %d bytes say.", len(data))
	}
	body := appendQuoted([]byte(`{"text":`), text)
	if !reply.NoUsage {
		body = fmt.Appendf(body, `,"usage":{"type":"tokens","input_tokens":%d,"output_tokens":%d,"total_tokens":%d}`, len(data), 2, len(data)+2)
	}
	writeJSON(x.w, http.StatusOK, append(body, '}'))
	return nil
}

package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/openai/openai-go/v3/option"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
)

// Transcribe turns a recording into text; see llm.Transcriber. Servers tell the
// kind of a recording by the ending of its name.
func (o *openAI) Transcribe(ctx context.Context, req llm.TranscribeRequest) (llm.Transcript, error) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	fields := [][2]string{{"model", req.Model}, {"response_format", "json"}}
	if req.Language != "" {
		fields = append(fields, [2]string{"language", req.Language})
	}
	for _, f := range fields {
		if err := form.WriteField(f[0], f[1]); err != nil {
			return llm.Transcript{}, fmt.Errorf("write the form: %w", err)
		}
	}
	file, err := form.CreateFormFile("file", "recording."+recordingEnding(req.Audio.MediaType))
	if err == nil {
		_, err = file.Write(req.Audio.Data)
	}
	if err == nil {
		err = form.Close()
	}
	if err != nil {
		return llm.Transcript{}, fmt.Errorf("write the form: %w", err)
	}
	var res *http.Response
	err = o.client.Post(ctx, "audio/transcriptions", nil, &res, option.WithRequestBody(form.FormDataContentType(), body.Bytes()))
	if err != nil || res.StatusCode != http.StatusOK {
		failed, _ := o.failure(res, err)
		return llm.Transcript{}, failed
	}
	defer func() { _ = res.Body.Close() }()
	out := llm.Transcript{Model: req.Model}
	err = o.whole(res, func(data []byte) error { return readTranscript(data, &out) })
	return out, o.scrubbed(err)
}

// readTranscript reads the reply. Models that are paid by the minute count no
// tokens.
func readTranscript(data []byte, out *llm.Transcript) error {
	var reply struct {
		Text  *string `json:"text"`
		Usage struct {
			InputTokens  int `json:"input_tokens"`
			OutputTokens int `json:"output_tokens"`
			TotalTokens  int `json:"total_tokens"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &reply); err != nil || reply.Text == nil {
		return &llm.CallError{Reason: llm.Garbled, Detail: "not the JSON of a transcript"}
	}
	out.Text = *reply.Text
	out.Usage = chat.Usage{
		PromptTokens: reply.Usage.InputTokens, CompletionTokens: reply.Usage.OutputTokens, TotalTokens: reply.Usage.TotalTokens,
	}
	return nil
}

// recordingEnding is the ending of the file name of a recording.
func recordingEnding(mediaType string) string {
	_, format, _ := strings.Cut(mediaType, "/")
	switch format = strings.TrimPrefix(format, "x-"); format {
	case "mpeg":
		return "mp3"
	case "mp4":
		return "m4a"
	default:
		return format
	}
}

// Transcribe refuses: Ollama has no such route.
func (o *ollama) Transcribe(context.Context, llm.TranscribeRequest) (llm.Transcript, error) {
	return llm.Transcript{}, &llm.CallError{Reason: llm.Missing, Detail: o.name + " turns no recordings into text"}
}

// Transcribe asks the model for the words of the recording; see llm.Transcriber.
func (g *google) Transcribe(ctx context.Context, req llm.TranscribeRequest) (llm.Transcript, error) {
	ask := "Write down what is said in the recording, word for word. Answer with the words only, and with nothing when there are none."
	if req.Language != "" {
		ask += " The language is " + req.Language + "."
	}
	reply, err := llm.Collect(g.Stream(ctx, llm.Request{
		Model:    req.Model,
		Messages: []chat.Message{{Role: chat.User, Content: ask, Parts: []chat.Part{req.Audio}}},
	}), nil)
	if err != nil {
		return llm.Transcript{}, err
	}
	return llm.Transcript{Text: strings.TrimSpace(reply.Text), Usage: reply.Last.Usage, Model: reply.Last.Model}, nil
}

var (
	_ llm.Transcriber = (*openAI)(nil)
	_ llm.Transcriber = (*google)(nil)
	_ llm.Transcriber = (*ollama)(nil)
)

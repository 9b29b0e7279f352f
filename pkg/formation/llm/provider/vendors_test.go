package provider

import (
	"net/http"
	"strings"
	"testing"

	sdk "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"google.golang.org/genai"

	"github.com/agentformation/service/test/fakellm"
)

// The official clients read the fake without a fault: what the adapters are
// tested against is what the vendors' own users are served.

func TestFake_SatisfiesTheOfficialClientOfAnthropic(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{})
	fake.Add(fakellm.Rule{User: "tools", Reply: fakellm.Reply{Text: "I look.", Calls: []fakellm.ToolCall{{ID: "c1", Name: "f", Args: `{"a":1}`}, {ID: "c2", Name: "g", Args: `{}`}}}})
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	client := sdk.NewClient(option.WithBaseURL(fake.Root()), option.WithAPIKey("k"), option.WithHTTPClient(&http.Client{Transport: tr}))
	params := func(text string) sdk.MessageNewParams {
		return sdk.MessageNewParams{Model: "m", MaxTokens: 10, Messages: []sdk.MessageParam{sdk.NewUserMessage(sdk.NewTextBlock(text))}}
	}
	plain, err := client.Messages.New(t.Context(), params("hello"))
	if err != nil || len(plain.Content) != 1 || plain.Content[0].Text != "Fake answer to: hello" || plain.StopReason != "end_turn" || plain.Usage.InputTokens == 0 {
		t.Errorf("plain: %+v, error %v", plain, err)
	}
	stream := client.Messages.NewStreaming(t.Context(), params("tools"))
	var message sdk.Message
	for stream.Next() {
		if err := message.Accumulate(stream.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil || len(message.Content) != 3 || message.Content[0].Text != "I look." || string(message.Content[1].Input) != `{"a":1}` || message.StopReason != "tool_use" {
		t.Errorf("stream: %+v, error %v", message.Content, err)
	}
}

func TestFake_SatisfiesTheOfficialClientOfGoogle(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{})
	fake.Add(fakellm.Rule{User: "tools", Reply: fakellm.Reply{Calls: []fakellm.ToolCall{{ID: "c1", Name: "f", Args: `{"a":1}`}}}})
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	client, err := genai.NewClient(t.Context(), &genai.ClientConfig{
		APIKey: "k", Backend: genai.BackendGeminiAPI, HTTPClient: &http.Client{Transport: tr}, HTTPOptions: genai.HTTPOptions{BaseURL: fake.Root()},
	})
	if err != nil {
		t.Fatal(err)
	}
	plain, err := client.Models.GenerateContent(t.Context(), "m", genai.Text("hello"), nil)
	if err != nil || plain.Text() != "Fake answer to: hello" || plain.UsageMetadata.TotalTokenCount == 0 || plain.Candidates[0].FinishReason != genai.FinishReasonStop {
		t.Errorf("plain: %+v, error %v", plain, err)
	}
	var text strings.Builder
	for chunk, err := range client.Models.GenerateContentStream(t.Context(), "m", genai.Text("hello"), nil) {
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString(chunk.Text())
	}
	if text.String() != "Fake answer to: hello" {
		t.Errorf("stream: %q", text.String())
	}
	tools, err := client.Models.GenerateContent(t.Context(), "m", genai.Text("tools"), nil)
	if err != nil || len(tools.FunctionCalls()) != 1 || tools.FunctionCalls()[0].Args["a"] != 1.0 {
		t.Errorf("tools: %+v, error %v", tools, err)
	}
	vectors, err := client.Models.EmbedContent(t.Context(), "e", append(genai.Text("a"), genai.Text("b")...), nil)
	if err != nil || len(vectors.Embeddings) != 2 || len(vectors.Embeddings[0].Values) == 0 {
		t.Errorf("embeddings: %+v, error %v", vectors, err)
	}
}

package provider

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/test/fakellm"
)

// The benchmarks answer why the adapter uses the SDK's client but not its
// types: "typed" is chat.completions through the SDK's structs, "adapter" is
// what the product does. "canned" leaves out the network and the server.

const (
	benchSystem = "You are a careful assistant of a small company. Answer in a few plain sentences and name your sources."
	benchUser   = "Which of the three offers is the cheapest over two years, when the setup fee is included?"
	benchReply  = "The second offer is the cheapest one: its monthly price is a little higher, but it has no setup fee, so that after two years you have paid about a tenth less."
)

func benchRequest(deltas bool) llm.Request {
	temperature, limit := 0.7, 4096
	return llm.Request{
		Model:    "fake",
		Messages: []chat.Message{{Role: chat.System, Content: benchSystem}, {Role: chat.User, Content: benchUser}},
		Settings: llm.Settings{Temperature: &temperature, MaxTokens: &limit},
		Deltas:   deltas,
	}
}

func runAdapter(b *testing.B, url string, transport http.RoundTripper, deltas bool) {
	model, err := NewOpenAI(llm.Endpoint{Name: "fake", BaseURL: url, Key: "k", Transport: transport})
	if err != nil {
		b.Fatal(err)
	}
	req := benchRequest(deltas)
	measure(b, func() {
		reply, err := llm.Collect(model.Stream(b.Context(), req), nil)
		if err != nil || reply.Text != benchReply {
			b.Fatalf("reply %q, error %v", reply.Text, err)
		}
	})
}

func runTyped(b *testing.B, url string, transport http.RoundTripper, deltas bool) {
	client := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("k"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: transport}))
	params := openai.ChatCompletionNewParams{
		Model:       "fake",
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(benchSystem), openai.UserMessage(benchUser)},
		Temperature: openai.Float(0.7),
		MaxTokens:   openai.Int(4096),
	}
	measure(b, func() {
		text, err := typedText(client, params, deltas)
		if err != nil || text != benchReply {
			b.Fatalf("reply %q, error %v", text, err)
		}
	})
}

func typedText(client openai.Client, params openai.ChatCompletionNewParams, deltas bool) (string, error) {
	if !deltas {
		reply, err := client.Chat.Completions.New(context.Background(), params)
		if err != nil {
			return "", err
		}
		return reply.Choices[0].Message.Content, nil
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(context.Background(), params)
	defer func() { _ = stream.Close() }()
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		acc.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		return "", err
	}
	return acc.Choices[0].Message.Content, nil
}

// measure adds the CPU time of the whole process per call, which is what the
// budget of a turn is made of.
func measure(b *testing.B, call func()) {
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		call()
	}
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// canned answers every request with the same bytes.
type canned struct {
	contentType string
	body        []byte
}

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK,
		Header:     http.Header{"Content-Type": {c.contentType}},
		Body:       io.NopCloser(bytes.NewReader(c.body)),
	}, nil
}

func BenchmarkOpenAI(b *testing.B) {
	server := fakellm.Start(b, fakellm.Options{Record: -1, Text: benchReply, Chunks: 20})
	shared := &http.Transport{MaxIdleConnsPerHost: 8, DisableCompression: true}
	defer shared.CloseIdleConnections()
	for _, mode := range []struct {
		name   string
		deltas bool
	}{{"plain", false}, {"stream20", true}} {
		replay := record(b, server.URL(), shared, mode.deltas)
		b.Run("canned/"+mode.name+"/typed", func(b *testing.B) { runTyped(b, server.URL(), replay, mode.deltas) })
		b.Run("canned/"+mode.name+"/adapter", func(b *testing.B) { runAdapter(b, server.URL(), replay, mode.deltas) })
		b.Run("wire/"+mode.name+"/typed", func(b *testing.B) { runTyped(b, server.URL(), shared, mode.deltas) })
		b.Run("wire/"+mode.name+"/adapter", func(b *testing.B) { runAdapter(b, server.URL(), shared, mode.deltas) })
	}
}

// record fetches one reply of the fake.
func record(b *testing.B, url string, transport http.RoundTripper, deltas bool) canned {
	b.Helper()
	body := encodeRequest(benchRequest(deltas), quirks{})
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, url+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		b.Fatal(err)
	}
	return canned{contentType: res.Header.Get("Content-Type"), body: data}
}

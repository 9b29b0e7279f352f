package provider_test

import (
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/llmtest"
	"github.com/agentformation/service/pkg/formation/llm/provider"
	"github.com/agentformation/service/test/fakellm"
)

// vendorPaths are the base paths of the protocols on the fake.
var vendorPaths = map[string]string{"openai": "/v1", "anthropic": "", "google": "", "ollama": ""}

func probing(t *testing.T, fake *fakellm.Server) *llm.Router {
	t.Helper()
	endpoints := map[string]string{}
	for name, path := range vendorPaths {
		endpoints[name] = fake.Root() + path
	}
	r, err := llm.NewRouter(llm.Config{
		Providers: provider.All(), Endpoints: endpoints, Transport: transport(t),
		Key: func(string) (llm.Secret, error) { return llmtest.Key, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func TestProbe_TellsAWrongModelFromAnHourOfTrouble(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reply    fakellm.Reply
		unusable bool
		want     string // "" answers
	}{
		"answers":      {},
		"cut short":    {reply: fakellm.Reply{Text: "o", Finish: "length"}},
		"no model":     {fakellm.Reply{Status: 404, Message: "no such model"}, true, "no such model or path (HTTP 404)"},
		"another page": {fakellm.Reply{Body: "<html>hello</html>"}, true, "could not be read"},
		"wrong key":    {fakellm.Reply{Status: 401}, false, "rejected the key"},
		"limited":      {fakellm.Reply{Status: 429}, false, "limits the rate"},
		"trouble":      {fakellm.Reply{Status: 503}, false, "not able to answer"},
		"refusal":      {fakellm.Reply{Status: 400, Message: "too small"}, false, "refused the request"},
		"no network":   {fakellm.Reply{Reset: true}, false, "broke"},
	} {
		for vendor := range vendorPaths {
			t.Run(name+"/"+vendor, func(t *testing.T) {
				t.Parallel()
				fake := fakellm.Start(t, fakellm.Options{})
				fake.Add(fakellm.Rule{Purpose: "probe", Reply: tc.reply})
				_, err := probing(t, fake).Probe(t.Context(), vendor+"/small", llm.AnswersText)
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("got %v, want %q", err, tc.want)
				}
				if llm.Unusable(err) != tc.unusable {
					t.Errorf("unusable: %v for %v", !tc.unusable, err)
				}
				if calls := len(fake.Probes()); calls != 1 && name != "another page" || fake.Count() != 0 {
					t.Errorf("%d probes and %d other calls", calls, fake.Count())
				}
			})
		}
	}
}

func TestProbe_FindsTheDimensionAndHearsSilence(t *testing.T) {
	t.Parallel()
	fake := fakellm.Start(t, fakellm.Options{})
	fake.Add(
		fakellm.Rule{Purpose: "probe", Model: "^gone", Reply: fakellm.Reply{Status: 404}},
		fakellm.Rule{Purpose: "probe", Model: "^whisper", Reply: fakellm.Reply{Text: ""}},
	)
	r := probing(t, fake)
	for _, vendor := range []string{"openai", "google", "ollama"} {
		if got, err := r.Probe(t.Context(), vendor+"/vectors", llm.MakesVectors); err != nil || got.Dimension != 256 {
			t.Errorf("%s: %+v, %v", vendor, got, err)
		}
		if _, err := r.Probe(t.Context(), vendor+"/gone-vectors", llm.MakesVectors); !llm.Unusable(err) {
			t.Errorf("%s: %v", vendor, err)
		}
	}
	if _, err := r.Probe(t.Context(), "openai/whisper", llm.HearsSpeech); err != nil {
		t.Error(err)
	}
	if _, err := r.Probe(t.Context(), "openai/gone-ears", llm.HearsSpeech); !llm.Unusable(err) {
		t.Errorf("got %v", err)
	}
	// A vendor that can't do it at all is known without a call.
	before := len(fake.Probes())
	for ability, want := range map[llm.Ability]string{llm.MakesVectors: "makes no embeddings", llm.HearsSpeech: "turns no recordings into text"} {
		if _, err := r.Probe(t.Context(), "anthropic/m", ability); !llm.Unusable(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", ability, err)
		}
	}
	if len(fake.Probes()) != before || fake.Count() != 0 {
		t.Errorf("%d probes, %d other calls", len(fake.Probes())-before, fake.Count())
	}
}

package manifest_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/manifest"
)

const mixed = `
schema: "1.0.0"
id: hello
description: x
llm:
  api_keys: {openai: "${{ secrets.A }}", lab: "${{ secrets.B }}"}
  endpoints: {lab: http://lab/v1}
  aliases: {own: lab/m}
  settings: {max_tokens: 100}
  models: [{text: openai/big, api_key: "${{ secrets.OWN }}", settings: {temperature: 0}}]
overlord: {llm: {settings: {max_retries: 0}}}
agents:
  - {id: plain, name: a, description: b}
  - {id: tuned, name: a, description: b, llm: {settings: {temperature: 1.5, timeout_seconds: 2}}}
  - {id: other, name: a, description: b, llm: {settings: {temperature: 1.5, max_tokens: 7}, models: [{text: own, settings: {max_tokens: 9}}]}}
`

func TestUse_MergesFormationAndAgent(t *testing.T) {
	t.Parallel()
	f, _, err := manifest.Parse("formation.afs", []byte(mixed))
	if err != nil {
		t.Fatal(err)
	}
	base := manifest.Settings{MaxTokens: 100, Timeout: 30 * time.Second, MaxRetries: 3, TemperatureGiven: true, MaxTokensGiven: true, Caching: f.LLM.Settings.Caching}
	big := manifest.ModelUse{ID: "openai/big", APIKey: "${{ secrets.OWN }}", Settings: base}
	tuned, overlord := big, big
	tuned.Settings.Temperature, tuned.Settings.Timeout = 1.5, 2*time.Second
	overlord.Settings.MaxRetries = 0
	other := manifest.ModelUse{ID: "lab/m", APIKey: "${{ secrets.B }}", Endpoint: "http://lab/v1", Settings: base}
	other.Settings.Temperature, other.Settings.MaxTokens = 1.5, 9

	for id, want := range map[string]manifest.ModelUse{"plain": big, "tuned": tuned, "other": other} {
		a := f.Agent(id)
		if diff := cmp.Diff(want, a.Use(f)); diff != "" {
			t.Errorf("agent %s (-want +got):\n%s", id, diff)
		}
		if a.Model(f) != want.ID || a.Settings(f) != want.Settings {
			t.Errorf("agent %s: Model and Settings differ from Use", id)
		}
	}
	if diff := cmp.Diff(overlord, f.OverlordUse()); diff != "" {
		t.Errorf("overlord (-want +got):\n%s", diff)
	}
	if id, s := f.LLM.TextModel(); id != "openai/big" || s != base {
		t.Errorf("TextModel() = %q, %+v", id, s)
	}
	if got := f.LLM.ByID("own", base); got.ID != "lab/m" || got.Endpoint != "http://lab/v1" || got.Provider() != "lab" || got.Model() != "m" {
		t.Errorf("ByID(own) = %+v", got)
	}
	if f.Agent("absent") != nil {
		t.Error("found an agent that is absent")
	}
}

func TestUseStreamed_TakesTheNearestModelForStreams(t *testing.T) {
	t.Parallel()
	const formations = "llm: {settings: {max_tokens: 100}, models: [{text: openai/big}, {streaming: openai/quick, api_key: '${{ secrets.Q }}', settings: {temperature: 0.5, max_retries: 1}}]}\n"
	src := head + formations + "agents:\n" +
		"  - {id: plain, name: a, description: b, llm: {settings: {max_retries: 2}}}\n" +
		"  - {id: text, name: a, description: b, llm_models: [{text: openai/small}]}\n" +
		"  - {id: both, name: a, description: b, llm_models: [{text: openai/small}, {streaming: openai/fast}]}\n"
	f, _, err := manifest.Parse("formation.afs", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	plain, ok := f.Agent("plain").UseStreamed(f)
	if !ok || plain.ID != "openai/quick" || plain.APIKey != "${{ secrets.Q }}" || plain.Settings.MaxTokens != 100 ||
		plain.Settings.Temperature != 0.5 || plain.Settings.MaxRetries != 2 {
		t.Errorf("plain: %+v, %v", plain, ok)
	}
	if u, ok := f.Agent("text").UseStreamed(f); ok {
		t.Errorf("the formation's model for streams is nearer than the agent's own text model: %+v", u)
	}
	if u, ok := f.Agent("both").UseStreamed(f); !ok || u.ID != "openai/fast" || u.APIKey != "" || u.Settings.TemperatureGiven {
		t.Errorf("both: %+v, %v", u, ok)
	}
	if u := f.Agent("plain").Use(f); u.ID != "openai/big" {
		t.Errorf("an answer in one piece is of %s", u.ID)
	}
}

func TestUse_IsEmptyWithoutTextModel(t *testing.T) {
	t.Parallel()
	f, warnings, err := manifest.Parse("formation.afs", []byte(head+"agents: [{id: a, name: a, description: b}]"))
	if err != nil {
		t.Fatal(err)
	}
	u := f.OverlordUse()
	if u.ID != "" || u.Provider() != "" || u.Settings.MaxTokens != 4096 || u.Settings.TemperatureGiven {
		t.Errorf("use is %+v", u)
	}
	if len(warnings) != 1 || warnings[0].Rule != manifest.RuleNoModel {
		t.Errorf("warnings are %v", warnings)
	}
}

func TestOverlordUse_TakesItsOwnModel(t *testing.T) {
	t.Parallel()
	src := head + "llm: {models: [{text: openai/big, settings: {temperature: 0}}]}\n" +
		"overlord: {llm: {model: openai/small}}\nagents: [{id: a, name: a, description: b}]"
	f, _, err := manifest.Parse("formation.afs", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if u := f.OverlordUse(); u.ID != "openai/small" || u.Settings.TemperatureGiven {
		t.Errorf("use is %+v; it has the settings of another model", u)
	}
}

func TestDeltas_AreOffForFormatsThatCannotBeCut(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]bool{"markdown": true, "text": true, "json": false, "html": false} {
		if got := (manifest.Response{Format: format, StreamTokens: true}).Deltas(); got != want {
			t.Errorf("%s: Deltas() = %v", format, got)
		}
	}
	if (manifest.Response{Format: "text"}).Deltas() {
		t.Error("deltas without stream_tokens")
	}
}

func TestOverlordUse_BaseAndSynthesisHaveTheirOwnModels(t *testing.T) {
	t.Parallel()
	f := &manifest.Formation{LLM: manifest.LLM{
		APIKeys: map[string]string{"openai": "key"},
		Models:  []manifest.Model{{Capability: manifest.CapabilityText, ID: "openai/big"}},
	}}
	f.Overlord.LLM.Model = "openai/small"
	if u := f.SynthesisUse(); u.ID != "openai/small" {
		t.Errorf("synthesis without a model of its own takes the overlord's: %s", u.ID)
	}
	f.Overlord.LLM.Base = manifest.Model{Capability: manifest.CapabilityText, ID: "openai/base"}
	f.Overlord.LLM.Synthesis = manifest.Model{Capability: manifest.CapabilityText, ID: "other/voice", APIKey: "its own"}
	if u := f.OverlordUse(); u.ID != "openai/base" || u.APIKey != "key" {
		t.Errorf("the overlord thinks with %+v", u)
	}
	if u := f.SynthesisUse(); u.ID != "other/voice" || u.APIKey != "its own" {
		t.Errorf("answers are worded by %+v", u)
	}
}

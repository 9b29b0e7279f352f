package httpapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/formation/chat"
	"github.com/agentformation/service/pkg/formation/llm"
	"github.com/agentformation/service/pkg/formation/llm/budget"
	"github.com/agentformation/service/pkg/manifest"
)

func TestUsage_TellsWhatWasUsedWhatItCostAndWhatIsLeft(t *testing.T) {
	t.Parallel()
	money := 0.001
	d := openDoor(t, doorOptions{
		budgets: &manifest.Budgets{
			Formation: manifest.Budget{TokensPerDay: 1000, AmountPerDay: &money}, User: manifest.Budget{TokensPerDay: 500},
		},
		prices: budget.Prices{Currency: "EUR", Models: map[string]manifest.Price{"openai/gpt": {Input: 2, Output: 10, Cached: 0.5}}},
	})
	book := func(model, user string) {
		t.Helper()
		r, err := d.ledger.Reserve(t.Context(), llm.Call{
			ModelID: model, Account: llm.Account{Agent: "poet", User: user, Request: "req_" + user}, Prompt: 60, MaxCompletion: 40,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.Settle(t.Context(), chat.Usage{PromptTokens: 50, CompletionTokens: 30, TotalTokens: 80, CachedTokens: 20})
	}
	for range 2 {
		book("openai/gpt", "ann")
	}
	get := func(query string) any {
		t.Helper()
		res := d.send(t, http.MethodGet, "/v1/usage"+query, "", "X-SVC-Admin-Key", adminKey)
		text, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%d %s, %v", res.StatusCode, text, err)
		}
		var reply struct{ Data map[string]any }
		if err := json.Unmarshal(text, &reply); err != nil {
			t.Fatal(err)
		}
		delete(reply.Data, "from")
		delete(reply.Data, "to")
		for _, b := range reply.Data["budgets"].([]any) {
			delete(b.(map[string]any), "period_start")
		}
		return reply.Data
	}
	equal := func(got any, want string) {
		t.Helper()
		var w any
		if err := json.Unmarshal([]byte(want), &w); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w, got); diff != "" {
			t.Error(diff)
		}
	}
	equal(get("?group_by=model"), `{"group_by": "model",
		"groups": [{"key": "openai/gpt", "requests": 1, "model_calls": 2, "tokens": {"input": 100, "output": 60, "cached": 40},
			"cost": {"amount": 0.00074, "currency": "EUR"}}],
		"totals": {"requests": 1, "model_calls": 2, "tokens": {"input": 100, "output": 60, "cached": 40},
			"cost": {"amount": 0.00074, "currency": "EUR"}},
		"budgets": [
			{"scope": "formation", "id": "`+formationForTest().ID+`", "tokens": {"used": 160, "limit": 1000},
				"amount": {"used": 0.00074, "limit": 0.001}, "state": "ok"},
			{"scope": "user", "id": "ann", "tokens": {"used": 160, "limit": 500}, "amount": {"used": 0.00074, "limit": null}, "state": "ok"}]}`)
	book("local/free", "bob") // has no price, so the cost of all is not known
	equal(get("?group_by=user&user_id=bob"), `{"group_by": "user",
		"groups": [{"key": "bob", "requests": 1, "model_calls": 1, "tokens": {"input": 50, "output": 30, "cached": 20}, "cost": null}],
		"totals": {"requests": 1, "model_calls": 1, "tokens": {"input": 50, "output": 30, "cached": 20}, "cost": null},
		"budgets": [
			{"scope": "formation", "id": "`+formationForTest().ID+`", "tokens": {"used": 240, "limit": 1000},
				"amount": {"used": 0.00074, "limit": 0.001}, "state": "ok"},
			{"scope": "user", "id": "bob", "tokens": {"used": 80, "limit": 500}, "amount": {"used": 0, "limit": null}, "state": "ok"}]}`)
}

package formation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

func TestWithPrompts_ModelsReadValuesAndTheManifestKeepsItsPlaceholders(t *testing.T) {
	t.Parallel()
	m := &manifest.Formation{
		ID: "x", Soul: "Live in ${{ env.TOWN }}.",
		Agents: []manifest.Agent{{
			ID: "a", Name: "A", Description: "Knows ${{ env.TOWN }}", SystemMessage: "As ${{ user.credentials.MAIL }}",
			Specialization: manifest.Specialization{Keywords: []string{"town", "${{ env.TOWN }}"}},
			SystemBehavior: manifest.SystemBehavior{Constraints: []string{"Say ${{ secrets.WORD }}"}},
		}},
	}
	got, err := withPrompts(m, func(kind, name string) (string, bool) {
		v, ok := map[string]string{"env.TOWN": "Ulm", "secrets.WORD": "please"}[kind+"."+name]
		return v, ok
	})
	if err != nil {
		t.Fatal(err)
	}
	a := got.Agents[0]
	texts := []string{got.Soul, a.Description, a.SystemMessage, a.Specialization.Keywords[1], a.SystemBehavior.Constraints[0]}
	want := []string{"Live in Ulm.", "Knows Ulm", "As ${{ user.credentials.MAIL }}", "Ulm", "Say please"}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("what models read (-want +got):\n%s", diff)
	}
	for _, kept := range []string{m.Soul, m.Agents[0].Description, m.Agents[0].Specialization.Keywords[1], m.Agents[0].SystemBehavior.Constraints[0]} {
		if !strings.Contains(kept, "${{ ") {
			t.Errorf("the manifest itself was changed: %q", kept)
		}
	}
}

func TestWithPrompts_AValueThatIsMissingIsAFaultOfTheFormation(t *testing.T) {
	t.Parallel()
	m := &manifest.Formation{Agents: []manifest.Agent{{ID: "a", SystemMessage: "${{ env.GONE }}"}}}
	_, err := withPrompts(m, func(string, string) (string, bool) { return "", false })
	if fault.NameOf(err) != "SecretsError" || !strings.Contains(err.Error(), "env.GONE") || !strings.Contains(err.Error(), "agent a") {
		t.Errorf("error %v", err)
	}
}

package manifest_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/manifest"
)

func resolver(kind, name string) (string, bool) {
	values := map[string]string{
		"secrets.A": "alpha", "env.A": "${{ secrets.A }}", "user.credentials.git-hub": "token", "secrets.EMPTY": "",
	}
	v, ok := values[kind+"."+name]
	return v, ok
}

func TestExpand_ReplacesEveryPlaceholderOnce(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                      "",
		"plain $ {{ x }} ${x}":                  "plain $ {{ x }} ${x}",
		"${{ secrets.A }}":                      "alpha",
		"${{secrets.A}}${{\n\tsecrets.A\r\n}}!": "alphaalpha!",
		"a ${{ env.A }} b":                      "a ${{ secrets.A }} b",
		"${{ user.credentials.git-hub }}":       "token",
		"[${{ secrets.EMPTY }}]":                "[]",
		"}} ${{ secrets.A }} }}":                "}} alpha }}",
	} {
		if got, err := manifest.Expand(in, resolver); err != nil || got != want {
			t.Errorf("Expand(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestExpand_ListsEverythingUnresolved(t *testing.T) {
	t.Parallel()
	_, err := manifest.Expand("${{ secrets.B }} ${{ secrets.A }} ${{ env.C }}", resolver)
	if _, ok := errors.AsType[*manifest.UnresolvedError](err); !ok {
		t.Fatalf("error is %T: %v", err, err)
	}
	want := "no value for ${{ secrets.B }}, ${{ env.C }}"
	if err.Error() != want || strings.Contains(err.Error(), "alpha") {
		t.Errorf("error is %q, want %q", err, want)
	}
}

func TestExpand_RefusesMalformedPlaceholders(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"${{", "${{ secrets.A", "${{ }}", "${{ secrets. }}", "${{ secrets }}", "${{ SECRETS.A }}", "${{ secrets.a-b }}",
		"${{ secrets.A B }}", "${{ data.x }}", "${{ user.credentials }}", "${{ ${{ secrets.A }} }}", "x ${{secrets.é}}",
	} {
		if got, err := manifest.Expand(in, resolver); err == nil {
			t.Errorf("Expand(%q) = %q", in, got)
		}
	}
}

func TestRefs_TellSecretsApart(t *testing.T) {
	t.Parallel()
	f, _, err := manifest.Parse("formation.afs", []byte(mixed))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range f.SecretRefs() {
		got = append(got, r.String())
	}
	want := []string{
		"formation.afs:6:23: ${{ secrets.A }}", "formation.afs:6:48: ${{ secrets.B }}", "formation.afs:10:41: ${{ secrets.OWN }}",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("secret refs (-want +got):\n%s", diff)
	}
	if len(f.Refs()) != len(want) {
		t.Errorf("refs are %v", f.Refs())
	}
}

func TestLiterals_AreTheSecretsThatTheFilesHold(t *testing.T) {
	t.Parallel()
	f, _, err := manifest.Parse("formation.afs", []byte(head+`
llm: {api_keys: {openai: key-in-the-file, google: "${{ secrets.GOOGLE }}"}}
mcp:
  servers:
    - {id: crm, type: http, endpoint: "https://host/mcp", headers: {Authorization: Bearer of-the-file, Accept-Language: de-de}, auth: {type: bearer, token: token-in-the-file}}
    - {id: run, type: command, command: npx, env: {API_TOKEN: of-the-environment, REGION: north-east}}
agents: [{id: a, name: a, description: b}]
`))
	if err != nil {
		t.Fatal(err)
	}
	got := f.Literals()
	slices.Sort(got)
	if diff := cmp.Diff([]string{"Bearer of-the-file", "key-in-the-file", "of-the-environment", "token-in-the-file"}, got); diff != "" {
		t.Error(diff)
	}
}

package secretfile_test

import (
	"testing"

	"github.com/agentformation/service/pkg/secretfile"
)

func TestMask_ShowsWhatTheReferenceAllows(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"":                                  "••••••••",
		"123456":                            "••••••••",
		"sk-123":                            "••••••••",
		"1234567":                           "123••••567",
		"123456789012":                      "123••••012",
		"sk-123456789":                      "sk-••••789",
		"1234567890123":                     "1234••••••••0123",
		"plain-secret-value":                "plai••••••••alue",
		"sk-proj-1234567890":                "sk-pr••••••7890",
		"ghp_abcdefghijklmnop":              "ghp_ab••••••mnop",
		"lin_api_abcdefghijkl":              "lin_ap••••••ijkl",
		"https://user:pw@host.example/path": "https://us•••••••path",
		"postgres://u:p@host":               "post••••••••host",
		"not a scheme://x y z":              "not •••••••• y z",
		"täglich-日本-geheim":                 "tägl••••••••heim",
	} {
		if got := secretfile.Mask(value); got != want {
			t.Errorf("Mask(%q) = %q, want %q", value, got, want)
		}
	}
}

package secretfile_test

import (
	"regexp"
	"testing"

	"github.com/agentformation/service/pkg/secretfile"
)

func TestNormalize_MakesOneFormOfAName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"OPENAI_API_KEY":     "OPENAI_API_KEY",
		"openai-api key":     "OPENAI_API_KEY",
		"__a..b//c__":        "A_B_C",
		"key1":               "KEY1",
		"1st":                "1ST",
		"größe":              "GR_E",
		"ſtraße":             "TRA_E",
		"":                   "",
		"-_-":                "",
		"\xff\xfea":          "A",
		" spaced\tout\nname": "SPACED_OUT_NAME",
	} {
		if got := secretfile.Normalize(in); got != want {
			t.Errorf("Normalize(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzNormalize(f *testing.F) {
	for _, seed := range []string{"", "A", "a-b", "__x__", "\xff", "ümläut", "A\x00B"} {
		f.Add(seed)
	}
	valid := regexp.MustCompile(`^[A-Z0-9]+(_[A-Z0-9]+)*$`)
	f.Fuzz(func(t *testing.T, name string) {
		got := secretfile.Normalize(name)
		if got != "" && !valid.MatchString(got) {
			t.Errorf("Normalize(%q) = %q", name, got)
		}
		if again := secretfile.Normalize(got); again != got {
			t.Errorf("Normalize(%q) = %q, again %q", name, got, again)
		}
	})
}

package secretfile_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/secretfile"
)

func TestParseEnv_ReadsWhatPeopleWrite(t *testing.T) {
	t.Parallel()
	got, err := secretfile.ParseEnv("\ufeff# keys\n\nPLAIN=abc\r\n export my-key = two words  # why\nHASH=a#b\nEMPTY=\nQUOTED=\"a\\n\\\"b\\\" $HOME \\$x \\q\" # c\n" +
		"RAW='a\\n$b'\nPEM=\"-----BEGIN\nline\n-----END\"\nEQ=a=b=c\nPLAIN=last\nexported=1\nCOMMENT=# nothing\nEND=no newline")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"PLAIN": "last", "MY_KEY": "two words", "HASH": "a#b", "EMPTY": "", "QUOTED": "a\n\"b\" $HOME $x \\q", "RAW": `a\n$b`,
		"PEM": "-----BEGIN\nline\n-----END", "EQ": "a=b=c", "EXPORTED": "1", "COMMENT": "", "END": "no newline",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseEnv_NamesTheLineAndNotItsContent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"A=1\nprivate-text\n":               "line 2: this is no NAME=VALUE",
		"A=1\n\n=private-text":              "line 3: what stands before = is no name: use letters, digits and _",
		"private text=1":                    "line 1: what stands before = is no name: use letters, digits and _",
		"A='1\n2'\nB=\"private-text":        "line 3: the quote is not closed",
		"A='private-text' private-text":     "line 1: there is something behind the closing quote",
		"A=\xff":                            "this is not UTF-8 text",
		strings.Repeat("A=1\n", 1<<21) + "": "8388608 bytes are over the limit of 8388608",
	} {
		_, err := secretfile.ParseEnv(text)
		if len(text) == secretfile.MaxFile {
			if err != nil {
				t.Errorf("at the limit: %v", err)
			}
			_, err = secretfile.ParseEnv(text + "#")
			want = "8388609 bytes are over the limit of 8388608"
		}
		if fault.NameOf(err) != "SecretsError" || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func FuzzParseEnv(f *testing.F) {
	for _, s := range []string{"A=1\n", "export A='x\ny'\n# c\n", "A=\"\\\"", "=", "A='", "A=\\", "\ufeff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		values, err := secretfile.ParseEnv(text)
		if (err == nil) == (values == nil) {
			t.Fatalf("%v and %v", values, err)
		}
		for name := range values {
			if secretfile.Normalize(name) != name || name == "" {
				t.Errorf("the name %q", name)
			}
		}
		// A value that is written in single quotes comes back as it is.
		if strings.ContainsAny(text, "'") {
			return
		}
		again, err := secretfile.ParseEnv("X='" + text + "'")
		if err == nil && again["X"] != text {
			t.Errorf("%q became %q", text, again["X"])
		}
	})
}

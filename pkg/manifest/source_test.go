package manifest_test

import (
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/manifest"
)

func TestParse_ReadsFilesOfOtherEditors(t *testing.T) {
	t.Parallel()
	src := head + "name: ${{ env.NAME }}\nagents: [{id: a, name: a, description: b}]\n"
	for name, text := range map[string]string{
		"byte order mark":  "\ufeff" + src,
		"windows lines":    strings.ReplaceAll(src, "\n", "\r\n"),
		"old mac lines":    strings.ReplaceAll(src, "\n", "\r"),
		"no last line end": strings.TrimSpace(src),
	} {
		f, _, err := manifest.Parse("formation.afs", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r := f.Refs()[0]; r.Line != 4 || r.Col != 7 || f.Description != "x" {
			t.Errorf("%s: reference at %d:%d, description %q", name, r.Line, r.Col, f.Description)
		}
	}
}

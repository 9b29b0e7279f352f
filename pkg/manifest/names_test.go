package manifest_test

import (
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/manifest"
)

func TestCheckName_TellsTheRuleAndANameThatFollowsIt(t *testing.T) {
	t.Parallel()
	tests := []struct{ kind, name, want string }{
		{manifest.FileFormation, "hello-2", ""},
		{manifest.FileFormation, "My Team", `"My Team": a formation id has 3 to 50 of a-z, 0-9 and -, and neither starts nor ends with -; did you mean "my-team"?`},
		{manifest.FileFormation, "admin", `"admin": the formation id "admin" is reserved; choose another`},
		{manifest.FileFormation, "", "a formation id has 3 to 50"},
		{manifest.FileAgent, "a.B_c-1", ""},
		{manifest.FileAgent, "../x", `"../x": an agent id has at most 64 letters, digits and . _ -`},
		{manifest.FileAgent, "my writer", `did you mean "my-writer"?`},
		{manifest.FileAgent, strings.Repeat("a", 65), "an agent id has at most 64"},
		{manifest.FileAgent, "writer.afs", `"writer.afs": a name has no ending of a file; did you mean "writer"?`},
		{manifest.FileMCP, "a/b", "the id of a tool server or service has at most 64"},
		{manifest.FileSkill, "pdf-forms", ""},
		{manifest.FileSkill, "PDF Forms", `the name of a skill has a-z, 0-9 and -; did you mean "pdf-forms"?`},
		{manifest.FileSkill, "a", "the name of a skill"},
		{manifest.FileSOP, "a b", "the name of a sop has at most 64 letters"},
		{manifest.FileTrigger, "new_order", ""},
		{manifest.FileTrigger, "new.order", `a trigger's file name has letters, digits, _ and -; did you mean "new-order"?`},
		{manifest.FileTransformer, "/", "the name of a transformer has at most 64 letters"},
		{manifest.FileGroup, "", "the id of a group"},
	}
	for _, c := range tests {
		err := manifest.CheckName(c.kind, c.name)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s %q: %v", c.kind, c.name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s %q: %v, want %s", c.kind, c.name, err, c.want)
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// The formation that is validated: a manifest and 99 files beside it.
const (
	validatedFiles = 100
	brokenAgents   = 20 // of those with a fault each, in the second measurement
)

// aimValidate is the aim for "supervisor validate" with its process.
const aimValidate = 200 * time.Millisecond

// validateResult is how long the command takes from its start to its end.
type validateResult struct {
	valid, broken []time.Duration
}

// measureValidate runs the command as an author does.
func measureValidate(ctx context.Context, p plan, dir, _ string, r *report) error {
	var res validateResult
	for _, c := range []struct {
		name   string
		faults int
		exit   int
		says   string
		took   *[]time.Duration
	}{
		{"valid", 0, 0, fmt.Sprintf(" %d files", validatedFiles), &res.valid},
		{"broken", brokenAgents, 1, "did you mean", &res.broken},
	} {
		at := filepath.Join(dir, c.name)
		if err := writeManyFiles(at, c.faults); err != nil {
			return err
		}
		for range p.starts {
			cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "supervisor"), "validate", at)
			begin := time.Now()
			out, err := cmd.Output()
			*c.took = append(*c.took, time.Since(begin))
			if exit := cmd.ProcessState.ExitCode(); exit != c.exit || !strings.Contains(string(out), c.says) {
				return fmt.Errorf("validate the %s formation: exit code %d, want %d with %q: %w\n%s", c.name, exit, c.exit, c.says, errors.Join(err), out)
			}
		}
	}
	r.validate = &res
	return nil
}

// writeManyFiles makes a formation of validatedFiles files, with a slip in the
// first agents.
func writeManyFiles(dir string, slips int) error {
	const agents, servers, skills, sops, triggers = 40, 20, 15, 12, 12
	files := map[string]string{}
	ids := func(name string, n int) []string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("%s%d", name, i)
		}
		return all
	}
	const prose = "Read what the person wrote, look up what is missing and answer in a few plain sentences.\n"
	for i, id := range ids("agent", agents) {
		role := "specialist"
		if i < slips {
			role = "specalist"
		}
		files["agents/"+id+".afs"] = fmt.Sprintf("schema: \"1.0.0\"\nid: %[1]s\nname: Agent\ndescription: Answers what is asked about subject %[1]s\nrole: %[2]s\n"+
			"specialization:\n  domain: subjects\n  keywords: [one, two, three]\nllm:\n  settings:\n    temperature: 0.2\nsystem_message: |\n%[3]s", id, role, strings.Repeat("  "+prose, 20))
	}
	for _, id := range ids("server", servers) {
		files["mcp/"+id+".afs"] = fmt.Sprintf("schema: \"1.0.0\"\nid: %s\ndescription: Tools\ntype: http\nendpoint: https://tools.example.com/mcp\n"+
			"auth:\n  type: bearer\n  token: ${{ secrets.TOOLS_TOKEN }}\ntools:\n  allow: [read_*, list_*]\n", id)
	}
	for _, id := range ids("skill", skills) {
		files["skills/"+id+"/SKILL.md"] = "---\nname: " + id + "\ndescription: Does it\n---\n" + strings.Repeat(prose, 40)
	}
	for _, id := range ids("sop", sops) {
		files["sops/"+id+".md"] = "---\ntype: sop\ndescription: How it is done\n---\n" + strings.Repeat("1. [agent:agent0] "+prose, 20)
	}
	for _, id := range ids("trigger", triggers) {
		files["triggers/"+id+".md"] = "---\nparse:\n  user_id: $.user.id\n---\nIt happened: ${{ data.event }}\n" + strings.Repeat(prose, 10)
	}
	files["formation.afs"] = fmt.Sprintf("schema: \"1.0.0\"\nid: many\ndescription: Many files\nllm:\n  models:\n    - text: demo/hello\n"+
		"mcp:\n  servers:\n    - %s\nagents:\n  - %s\n", strings.Join(ids("server", servers), "\n    - "), strings.Join(ids("agent", agents), "\n  - "))
	if len(files) != validatedFiles {
		return fmt.Errorf("the formation has %d files, not %d", len(files), validatedFiles)
	}
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			return fmt.Errorf("write the formation: %w", err)
		}
	}
	return nil
}

// writeValidate prints the table.
func writeValidate(b *strings.Builder, v *validateResult) {
	if v == nil {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "supervisor validate, process included\tmedian\tp99\taim\t")
	fmt.Fprintf(w, "formation of %d files\t%s\t%s\t< %s\t\n", validatedFiles, ms(quantile(v.valid, .5)), ms(quantile(v.valid, .99)), ms(aimValidate))
	fmt.Fprintf(w, "with %d faults to show\t%s\t%s\t\t\n", brokenAgents, ms(quantile(v.broken, .5)), ms(quantile(v.broken, .99)))
	_ = w.Flush() // a Builder takes everything
	b.WriteString("\n")
}

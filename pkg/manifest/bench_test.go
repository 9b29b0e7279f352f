package manifest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/manifest"
)

// BenchmarkLoad is part of what a child does between its start and its first
// answer.
func BenchmarkLoad(b *testing.B) {
	dir := filepath.FromSlash("../../deploy/formations/hello")
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := manifest.Load(dir); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLoadHundredFiles is what "supervisor validate" spends on a large
// formation; the aim is less than 200 ms.
func BenchmarkLoadHundredFiles(b *testing.B) {
	dir := b.TempDir()
	put := func(name, text string) {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	var agents, servers []string
	for i := range 20 {
		id := fmt.Sprint("part", i)
		agents, servers = append(agents, id), append(servers, id)
		put("agents/"+id+".afs", "schema: \"1.0.0\"\nid: "+id+"\nname: A\ndescription: Answers\nsystem_message: |\n"+strings.Repeat("  You answer.\n", 40))
		put("mcp/"+id+".afs", "schema: \"1.0.0\"\nid: "+id+"\ndescription: Tools\ntype: command\ncommand: tools\n")
		put("skills/"+id+"/SKILL.md", "---\ndescription: Does it\n---\n"+strings.Repeat("Do it well.\n", 40))
		put("sops/"+id+".md", "---\ntype: sop\ndescription: How it is done\n---\n"+strings.Repeat("1. Ask [agent:"+id+"]\n", 20))
		put("triggers/"+id+".md", "Look at ${{ data.id }}.\n")
	}
	put("formation.afs", head+"llm: {models: [{text: demo/hello}]}\nmcp: {servers: ["+strings.Join(servers, ", ")+"]}\nagents: ["+strings.Join(agents, ", ")+"]\n")
	for b.Loop() {
		if _, _, err := manifest.Load(dir); err != nil {
			b.Fatal(err)
		}
	}
}

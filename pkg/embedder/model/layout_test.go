package model

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentformation/service/pkg/fault"
)

// write lays files into a new directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestPrefix_IsThatOfTheFilesOrTheFamily(t *testing.T) {
	t.Parallel()
	const prompts = "config_sentence_transformers.json"
	tests := map[string]struct {
		id, prompts, task, want string
	}{
		"nomic writes":             {"local/nomic-ai/nomic-embed-text-v1.5", `{"prompts": {}}`, "document", "search_document: "},
		"nomic reads":              {"local/nomic-ai/nomic-embed-text-v1.5:main", `{}`, "query", "search_query: "},
		"nomic clusters":           {"local/nomic-ai/nomic-embed-text-v1.5", `{}`, "clustering", "clustering: "},
		"e5 writes":                {"local/intfloat/multilingual-e5-small", `{}`, "document", "passage: "},
		"e5 reads":                 {"local/intfloat/e5-small-v2", `{"prompts": {"query": "", "document": ""}}`, "query", "query: "},
		"e5 without a task":        {"local/intfloat/e5-small-v2", `{}`, "", "query: "},
		"e5 by instruction":        {"local/intfloat/multilingual-e5-large-instruct", `{}`, "query", ""},
		"no family":                {"local/sentence-transformers/all-MiniLM-L6-v2", `{}`, "query", ""},
		"files before family":      {"local/nomic-ai/nomic-embed-text-v1.5", `{"prompts": {"query": "q: "}}`, "query", "q: "},
		"another word for it":      {"local/a/b", `{"prompts": {"passage": "p: "}}`, "document", "p: "},
		"the default of the files": {"local/a/b", `{"prompts": {"all": "x: "}, "default_prompt_name": "all"}`, "", "x: "},
		"a task of the files":      {"local/a/b", `{"prompts": {"poetry": "p: "}}`, "poetry", "p: "},
		"an empty one of them":     {"local/a/b", `{"prompts": {"poetry": ""}}`, "poetry", ""},
	}
	for name, tt := range tests {
		l, err := readLayout(write(t, map[string]string{prompts: tt.prompts}), tt.id)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.prefix(tt.task); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, tt.want)
		}
	}
	l := layout{}
	if _, err := l.prefix("poetry"); fault.NameOf(err) != NameBadTask {
		t.Errorf("got %v", err)
	}
}

func TestLimit_IsTheLeastThatTheFilesSay(t *testing.T) {
	t.Parallel()
	const config, bert, tok = "config.json", "sentence_bert_config.json", "tokenizer_config.json"
	tests := map[string]struct {
		files map[string]string
		want  int
	}{
		"nothing":            {nil, 0},
		"positions":          {map[string]string{config: `{"max_position_embeddings": 512}`}, 512},
		"offset positions":   {map[string]string{config: `{"max_position_embeddings": 514, "model_type": "mpnet"}`}, 512},
		"shorter by choice":  {map[string]string{config: `{"max_position_embeddings": 512}`, bert: `{"max_seq_length": 256}`}, 256},
		"endless tokenizer":  {map[string]string{tok: `{"model_max_length": 1e30}`, config: `{"max_position_embeddings": 512}`}, 512},
		"null":               {map[string]string{bert: `{"max_seq_length": null}`, tok: `{"model_max_length": 128}`}, 128},
		"nonsense is no use": {map[string]string{bert: `{"max_seq_length": -1}`}, 0},
	}
	for name, tt := range tests {
		l, err := readLayout(write(t, tt.files), "local/a/b")
		if err != nil || l.limit != tt.want {
			t.Errorf("%s: got %d, %v, want %d", name, l.limit, err, tt.want)
		}
	}
	for _, name := range []string{config, bert, tok, "modules.json"} {
		if _, err := readLayout(write(t, map[string]string{name: "{"}), "local/a/b"); err == nil {
			t.Errorf("a broken %s was taken", name)
		}
	}
}

// Command sample copies a sample formation to another directory and, when the
// environment names a model server, makes the copy use it: every "demo/" model
// becomes OPENAI_MODEL, the endpoint OPENAI_BASE_URL, and OPENAI_API_KEY is
// written as the copy's secret. "make run" calls it; nothing imports it.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"

	"github.com/goccy/go-yaml"

	"github.com/agentformation/service/pkg/secretfile"
)

// defaultModel is small, and takes every sampling setting that a formation may name.
const defaultModel = "gpt-4.1-mini"

// secretName is what the copy's manifest refers to.
const secretName = "OPENAI_API_KEY"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sample FROM TO")
		os.Exit(2)
	}
	s := settings{
		key:     os.Getenv("OPENAI_API_KEY"),
		baseURL: os.Getenv("OPENAI_BASE_URL"),
		model:   os.Getenv("OPENAI_MODEL"),
	}
	if err := prepare(os.Args[1], os.Args[2], s); err != nil {
		fmt.Fprintln(os.Stderr, "sample:", err)
		os.Exit(1)
	}
}

// settings name a model server; without key and baseURL the sample keeps its
// offline model.
type settings struct {
	key, baseURL, model string
}

func (s settings) given() bool { return s.key != "" || s.baseURL != "" }

// prepare replaces the directory to by a copy of from that obeys s.
func prepare(from, to string, s settings) error {
	if s.baseURL != "" {
		u, err := url.Parse(s.baseURL)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return errors.New("OPENAI_BASE_URL must be an http or https address, for example http://127.0.0.1:11434/v1")
		}
	}
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("clear the old copy: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return fmt.Errorf("make room for the copy: %w", err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy the sample: %w", err)
	}
	if !s.given() {
		return nil
	}
	if s.model == "" {
		s.model = defaultModel
	}
	if err := replaceModels(to, "openai/"+s.model); err != nil {
		return err
	}
	if err := editManifest(filepath.Join(to, "formation.afs"), s); err != nil {
		return err
	}
	return writeSecret(to, s.key)
}

// demoModel matches a reference to the offline model in a formation's file.
var demoModel = regexp.MustCompile(`\bdemo/[A-Za-z0-9._-]+`)

func replaceModels(dir, model string) error {
	return filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(file) != ".afs" {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a copied file: %w", err)
		}
		if err := os.WriteFile(file, demoModel.ReplaceAllLiteral(text, []byte(model)), 0o600); err != nil {
			return fmt.Errorf("name the model in the copy: %w", err)
		}
		return nil
	})
}

// editManifest sets the key reference and the endpoint of the openai provider.
func editManifest(file string, s settings) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the copied manifest: %w", err)
	}
	var manifest yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(text, &manifest, yaml.UseOrderedMap()); err != nil {
		return fmt.Errorf("read the copied manifest: %w", err)
	}
	llm, ok := get(manifest, "llm").(yaml.MapSlice)
	if !ok {
		llm = yaml.MapSlice{}
	}
	if s.key != "" {
		llm = set(llm, "api_keys", yaml.MapSlice{{Key: "openai", Value: "${{ secrets." + secretName + " }}"}})
	}
	if s.baseURL != "" {
		llm = set(llm, "endpoints", yaml.MapSlice{{Key: "openai", Value: s.baseURL}})
	}
	text, err = yaml.Marshal(set(manifest, "llm", llm))
	if err != nil {
		return fmt.Errorf("write the copied manifest: %w", err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write the copied manifest: %w", err)
	}
	return nil
}

func get(m yaml.MapSlice, key string) any {
	for _, item := range m {
		if item.Key == key {
			return item.Value
		}
	}
	return nil
}

func set(m yaml.MapSlice, key string, value any) yaml.MapSlice {
	for i, item := range m {
		if item.Key == key {
			m[i].Value = value
			return m
		}
	}
	return append(m, yaml.MapItem{Key: key, Value: value})
}

// writeSecret leaves secrets.enc and its key beside the manifest.
func writeSecret(dir, value string) error {
	if value == "" {
		return nil
	}
	key := secretfile.GenerateKey()
	if err := secretfile.SaveKey(filepath.Join(dir, ".key"), key); err != nil {
		return fmt.Errorf("write the secrets key: %w", err)
	}
	if err := secretfile.Save(filepath.Join(dir, "secrets.enc"), key, map[string]string{secretName: value}); err != nil {
		return fmt.Errorf("write the secret: %w", err)
	}
	return nil
}

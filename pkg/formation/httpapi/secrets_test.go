package httpapi_test

import (
	"path/filepath"
	"testing"

	"github.com/agentformation/service/pkg/formation/secrets"
	"github.com/agentformation/service/pkg/manifest"
	"github.com/agentformation/service/pkg/secretfile"
)

// openSecrets returns the secrets of a formation that uses one of two.
func openSecrets(t *testing.T) *secrets.Store {
	t.Helper()
	dir, key := t.TempDir(), secretfile.GenerateKey()
	err := secretfile.Save(filepath.Join(dir, "secrets.enc"), key, map[string]string{
		"CODER_KEY": "sk-proj-1234567890", "WEBHOOK": "https://user:password@host.example/hook",
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := secrets.Open(secrets.Config{Dir: dir, StateDir: t.TempDir(), Key: key.Encode()}, []manifest.Ref{
		{Kind: manifest.KindSecret, Name: "CODER_KEY", File: "agents/coder.afs", Line: 7, Col: 13},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

package formation_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agentformation/service/pkg/secretfile"
	"github.com/agentformation/service/test/fakellm"
)

// withSecrets gives the world secrets of its own, and an admin key.
func (w *world) withSecrets(manifest string, values map[string]string) {
	w.t.Helper()
	text := strings.Replace(manifest, "client_key: fmc_world", "client_key: fmc_world\n    admin_key: fma_world", 1)
	w.check(os.WriteFile(filepath.Join(w.dir, "formation.afs"), []byte(text), 0o600))
	key := secretfile.GenerateKey()
	w.check(secretfile.SaveKey(filepath.Join(w.dir, ".key"), key))
	w.check(secretfile.Save(filepath.Join(w.dir, "secrets.enc"), key, values))
}

func TestSecrets_AChangedModelKeyServesFromTheNextCallOn(t *testing.T) {
	t.Parallel()
	// Wherever the manifest says which key it is.
	for name, models := range map[string]string{
		"of a provider": "  api_keys:\n    openai: ${{ secrets.MODEL_KEY }}\n  models:\n    - text: openai/fake\n",
		"of a model":    "  models:\n    - text: openai/fake\n      api_key: ${{ secrets.MODEL_KEY }}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.fake = fakellm.Start(t, fakellm.Options{Key: "second-key"})
			text := strings.Replace(worldManifest, "  models:\n    - text: openai/fake\n", models, 1)
			w.withSecrets(fmt.Sprintf(text, w.fake.URL())+"overlord:\n  soul: \"${{ secrets.MOTTO }}\"\n",
				map[string]string{"MODEL_KEY": "first-key", "MOTTO": "as it began"})
			f := w.load(w.config("one"))
			w.check(f.Serve(t.Context()))
			c := w.client(true)
			chat := ask{body: `{"message":"hello","agent_id":"writer"}`}
			put := func(name, value string) string {
				t.Helper()
				r := w.must(c, ask{
					method: http.MethodPut, path: "/v1/secrets/" + name, body: fmt.Sprintf(`{"value":%q}`, value),
					header: map[string]string{"X-SVC-Admin-Key": "fma_world"},
				})
				if r.status != http.StatusOK {
					t.Fatalf("%d %s", r.status, r.body)
				}
				return string(r.body)
			}
			if r := w.must(c, chat); r.status == http.StatusOK {
				t.Fatalf("the model took the first key: %s", r.body)
			}
			if body := put("MODEL_KEY", "second-key"); strings.Contains(body, "next one") {
				t.Errorf("a key that serves at once is said to wait: %s", body)
			}
			if r := w.must(c, chat); r.status != http.StatusOK {
				t.Fatalf("with the new key: %d %s", r.status, r.body)
			}
			if body := put("MOTTO", "as it goes on"); !strings.Contains(body, "until the next one") {
				t.Errorf("it is not said that prompts keep the old value: %s", body)
			}
			calls := w.fake.Calls()
			if len(calls) < 2 || calls[0].Authorization != "Bearer first-key" || calls[len(calls)-1].Authorization != "Bearer second-key" {
				t.Errorf("the model was asked with other keys: %+v", calls)
			}
		})
	}
}

package httpapi_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func placeScenes() map[string]scene {
	return map[string]scene{
		"no room for uploads": {play: playNoUploads},
		"in the way":          {play: playInTheWay},
		"no trash":            {play: playNoTrash},
		"no run directory":    {play: playNoRunDirectory},
	}
}

func playNoUploads(a *actor) {
	a.mustDeploy(a.T, "hello", nil)
	a.drafted(a.T, "drafted", nil)
	a.sqlite(a.T, "formations/hello/state/memory.db", "CREATE TABLE t (a)")
	a.block(a.T, "tmp")
	const stored = "cannot be stored"
	other := a.bundled(a.T, "", "", "other", nil)
	other.path = ":other"
	a.refused("500 DirectoryError", stored, other, deployRoutes()...)
	a.refused("500 DirectoryError", stored, a.bundle(map[string]string{"new.txt": "x"}), updateRoutes()...)
	a.refused("500 DirectoryError", stored, call{path: ":drafted", body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	a.refused("500 DirectoryError", "", call{path: "?db=true"}, "GET "+one+"/download")
	a.block(a.T, "formations/.dev")
	a.refused("500 DirectoryError", "state directory", devRun(a.T, "tried", nil).bodyOnly(), "POST /rpc/dev/run")
}

// playInTheWay meets files where directories belong.
func playInTheWay(a *actor) {
	a.block(a.T, "formations/other")
	other := a.bundled(a.T, "", "", "other", nil)
	other.path = ":other"
	a.refused("500 MoveError", "moved into place", other, deployRoutes()[:2]...)
	a.refused("500 CreateError", "directory", call{path: ":other", body: []byte(`{"action": "init", "mode": "new"}`)}, "POST "+one+"/draft/files")
	a.mustDeploy(a.T, "hello", nil)
	a.block(a.T, "formations/hello/versions/2")
	changed := a.bundle(map[string]string{"new.txt": "x"})
	a.refused("500 MoveError", "moved into place", changed, updateRoutes()[0])
	a.drafted(a.T, "drafted", nil)
	a.block(a.T, "formations/drafted/versions")
	a.refused("500 DirectoryError", "exists", call{path: ":drafted", body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
	restore := a.block(a.T, "formations/hello/versions/1")
	a.refused("500 CopyError", "cannot be copied", call{body: []byte(`{"action": "init", "mode": "clone"}`)}, "POST "+one+"/draft/files")
	restore()
	a.post(a.T, "hello/draft/files", `{"action": "init", "mode": "clone"}`)
	a.block(a.T, "formations/hello/versions/3") // the update's number 2 is not given again
	a.writeDraft(a.T, "hello", "new.txt", "x")
	a.refused("500 MoveError", "moved into place", call{body: []byte(`{"action": "deploy"}`)}, "POST "+one+"/draft/files")
}

// playNoTrash meets files that cannot be removed.
func playNoTrash(a *actor) {
	a.mustDeploy(a.T, "hello", nil)
	a.drafted(a.T, "drafted", nil)
	a.block(a.T, "formations/.trash")
	a.refused("500 CleanupError", "could not be removed", call{path: ":drafted", body: []byte(`{"action": "discard"}`)}, "POST "+one+"/draft/files")
	a.refused("500 CleanupError", "could not be removed", call{}, "DELETE "+one)
	a.refused("404 FormationNotFound", "'hello'", call{}, "GET "+one)
	// Until the next start has removed them, the id is not free.
	a.refused("500 CleanupError", "restart the server", a.bundle(nil), deployRoutes()[:2]...)
}

// playNoRunDirectory meets drafts whose run directory cannot be removed.
func playNoRunDirectory(a *actor) {
	a.drafted(a.T, "hello", nil)
	a.drafted(a.T, "again", nil)
	for _, id := range []string{"hello", "again"} {
		run := call{method: "POST", path: "/rpc/dev/run", body: []byte(`{"formation_id": "` + id + `"}`)}
		if got := a.exchange(a.request(a.T, a.Context(), run)); got.status != 200 {
			a.Fatalf("dev run: %s", got.body)
		}
	}
	restore := a.block(a.T, "run")
	a.refused("500 StopError", "could not be stopped", call{body: []byte(`{"formation_id": "hello"}`)}, "POST /rpc/dev/stop")
	a.refused("500 StopError", "could not be stopped", call{path: ":again", body: []byte(`{"action": "discard"}`)}, "POST "+one+"/draft/files")
	restore()
	// Both processes have ended all the same.
	a.refused("404 DraftNotFound", "No draft", call{body: []byte(`{"formation_id": "again"}`)}, "POST /rpc/dev/stop")
	a.post(a.T, "again/draft/files", `{"action": "discard"}`)
}

func TestErrors_AFullDiskIsNamedAndLeavesWhatServesAlone(t *testing.T) {
	dir, done := deploytest.SmallDisk(t, 24<<20)
	if done {
		return
	}
	t.Parallel()
	a := &actor{T: t, door: setupOn(t, dir), seen: &sightings{all: make(map[string]bool)}}
	pid := a.mustDeploy(t, "hello", nil)["pid"]
	a.drafted(t, "drafted", nil)
	free := deploytest.Fill(t, dir)
	const full, files = "no space left", "POST " + one + "/draft/files"
	changed := a.bundle(map[string]string{"new.txt": "x"})
	a.refused("500 DirectoryError", full, changed, updateRoutes()...)
	other := a.bundled(t, "", "", "other", nil)
	other.path = ":other"
	a.refused("500 DirectoryError", full, other, deployRoutes()...)
	write := asJSON(t, map[string]string{"action": "write", "path": "large.txt", "content": string(make([]byte, 64<<10))})
	a.refused("500 WriteError", full, call{path: ":drafted", body: []byte(write)}, files)
	a.refused("500 DirectoryError", full, call{path: ":drafted", body: []byte(`{"action": "deploy"}`)}, files)
	a.refused("500 RegisterError", full, call{}, "POST "+one+"/stop")
	if now := a.data(t, 200, call{method: "GET", path: "/rpc/formations/hello"}); now["pid"] != pid || now["status"] != "running" {
		t.Errorf("on a full disk: %v", now)
	}
	free()
	a.data(t, 200, aimed(changed, "PUT "+one))
	a.writeDraft(t, "drafted", "small.txt", "x")
	if _, err := os.Stat(filepath.Join(dir, "formations/drafted/draft/small.txt")); err != nil {
		t.Error(err)
	}
}

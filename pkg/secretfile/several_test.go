package secretfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentformation/service/pkg/fault"
	"github.com/agentformation/service/pkg/secretfile"
	"github.com/agentformation/service/test/testprogram"
)

func TestOpen_TakesEachKeyOfAPlace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, next := secretfile.GenerateKey(), secretfile.GenerateKey()
	keys := secretfile.Keys{old}.Before(next)
	if err := secretfile.SaveKeys(filepath.Join(dir, ".key"), keys); err != nil {
		t.Fatal(err)
	}
	read, err := secretfile.ReadKeys(filepath.Join(dir, ".key"))
	if err != nil || read.Encode() != next.Encode()+","+old.Encode() {
		t.Fatalf("%d keys, %v", len(read), err)
	}
	if fmt.Sprintf("%v %+v %s", read, read, read) != "[*** ***] [*** ***] [*** ***]" {
		t.Error("keys print")
	}
	want := map[string]string{"A": "1"}
	for _, k := range []secretfile.Key{old, next} {
		path := filepath.Join(t.TempDir(), "secrets.enc")
		if err := secretfile.Save(path, k, want); err != nil {
			t.Fatal(err)
		}
		got, err := secretfile.Open(path, read...)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Error(diff, err)
		}
		if _, err := secretfile.Open(path, secretfile.GenerateKey()); fault.NameOf(err) != "SecretsError" {
			t.Errorf("another key: %v", err)
		}
		if _, err := secretfile.Open(path); fault.NameOf(err) != "SecretsError" {
			t.Errorf("no key: %v", err)
		}
	}
}

func TestParseKeys_RefusesWhatAreNoKeys(t *testing.T) {
	t.Parallel()
	k := secretfile.GenerateKey().Encode()
	for _, text := range []string{"", " \n", "private-text", k + ",private-text", strings.Repeat(k+"\n", secretfile.MaxKeys+1)} {
		if _, err := secretfile.ParseKeys(text); fault.NameOf(err) != "SecretsError" || strings.Contains(err.Error(), "private-text") {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
	var keys secretfile.Keys
	for range secretfile.MaxKeys + 2 {
		keys = keys.Before(secretfile.GenerateKey())
	}
	path := filepath.Join(t.TempDir(), ".key")
	if err := secretfile.SaveKeys(path, keys); err != nil || len(keys) != secretfile.MaxKeys {
		t.Errorf("%d keys, %v", len(keys), err)
	}
	if got, err := secretfile.ReadKeys(path); err != nil || len(got) != len(keys) {
		t.Errorf("%d keys, %v", len(got), err)
	}
	if err := secretfile.SaveKeys(path, append(keys, keys[0])); fault.NameOf(err) != "SecretsError" {
		t.Errorf("too many: %v", err)
	}
}

func TestLock_WritersTakeTurns(t *testing.T) {
	t.Parallel()
	dir, key := t.TempDir(), secretfile.GenerateKey()
	path := filepath.Join(dir, "secrets.enc")
	if err := secretfile.Save(path, key, map[string]string{}); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	const writers = 8
	for i := range writers {
		all.Go(func() {
			unlock, err := secretfile.Lock(dir, time.Minute)
			if err != nil {
				t.Error(err)
				return
			}
			defer unlock()
			values, err := secretfile.Open(path, key)
			if err == nil {
				values[fmt.Sprintf("NAME_%d", i)] = "x"
				err = secretfile.Save(path, key, values)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if values, err := secretfile.Open(path, key); len(values) != writers || err != nil {
		t.Errorf("%d values, %v", len(values), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	unlock, err := secretfile.Lock(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := secretfile.Lock(dir, 0); fault.KindOf(err) != fault.Conflict {
		t.Errorf("a second lock: %v", err)
	}
	if _, err := secretfile.Lock(filepath.Join(dir, "gone"), 0); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

func TestLock_AProcessThatIsBeingStartedKeepsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := secretfile.Lock(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	testprogram.Fork(t, dir)
	unlock()
	unlock, err = secretfile.Lock(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

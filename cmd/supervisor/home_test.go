package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDefaultHome_IsTheUsersOwnBeforeTheHosts(t *testing.T) {
	t.Parallel()
	user, host := t.TempDir(), t.TempDir()
	own := filepath.Join(user, ".svc", "server")
	a := &app{userHome: user, systemHome: host}
	is := func(want string) {
		t.Helper()
		if got := a.defaultHome(); got != want {
			t.Errorf("the home is %s, want %s", got, want)
		}
	}
	settings := func(dir string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "config.yaml"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is(own) // a directory alone is no home, as in a container whose user lives there
	settings(host)
	is(host)
	a.systemHome = "" // the program is not installed
	is(own)
	a.systemHome = host
	settings(own)
	is(own)
}

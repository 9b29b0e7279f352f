// Package npm finds what the tests take from npm: real tool servers, readers of
// event streams, and the conformance suite of MCP. scripts/deps-npm.sh leaves
// them in .make/npm; package.json here pins their versions. Only tests import
// it.
package npm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Module returns the path of a file of an installed package, for example
// Module(t, "@modelcontextprotocol/server-everything/dist/index.js"). A missing
// one ends the test.
func Module(tb testing.TB, path string) string {
	tb.Helper()
	return find(tb, filepath.Join("node_modules", filepath.FromSlash(path)))
}

// Node22 returns a Node of version 22, which the conformance suite needs.
func Node22(tb testing.TB) string {
	tb.Helper()
	return find(tb, filepath.Join("node22", "bin", "node"))
}

// Path is Module for what is no test.
func Path(path string) (string, error) {
	return locate(filepath.Join("node_modules", filepath.FromSlash(path)))
}

func find(tb testing.TB, path string) string {
	tb.Helper()
	full, err := locate(path)
	if err != nil {
		tb.Fatal(err)
	}
	return full
}

func locate(path string) (string, error) {
	_, here, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("the path of this source is unknown")
	}
	full := filepath.Join(filepath.Dir(here), "..", "..", ".make", "npm", path)
	if _, err := os.Stat(full); err != nil {
		return "", fmt.Errorf("%w: run scripts/deps-npm.sh", err)
	}
	return full, nil
}

// Package version is the build stamp that both programs print and report.
package version

// Version is the release of this build. The Makefile sets it through the
// linker; a plain "go build" leaves "dev".
var Version = "dev"

// Commit is the source revision of this build, empty when unknown.
var Commit = ""

// String returns the version and, when known, the commit: "0.1.0 (1a2b3c4)".
func String() string {
	if Commit == "" {
		return Version
	}
	return Version + " (" + Commit + ")"
}

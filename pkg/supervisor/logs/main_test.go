package logs_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if scenario := os.Getenv(fullDiskEnv); scenario != "" {
		os.Exit(onFullDisk(scenario))
	}
	goleak.VerifyTestMain(m)
}

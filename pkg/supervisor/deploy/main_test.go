package deploy_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func TestMain(m *testing.M) {
	deploytest.Main(m, func(m *testing.M) {
		os.Setenv("SECRET_OF_THE_SUPERVISOR", "must not reach a child")
		goleak.VerifyTestMain(m)
	})
}

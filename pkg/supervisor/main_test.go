package supervisor

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/agentformation/service/pkg/supervisor/deploy/deploytest"
)

func TestMain(m *testing.M) {
	deploytest.Main(m, func(m *testing.M) { goleak.VerifyTestMain(m) })
}

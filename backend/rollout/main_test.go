package rollout_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is also the process that TestProcesses starts.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

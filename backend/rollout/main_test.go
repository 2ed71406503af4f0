package rollout_test

import (
	"os"
	"testing"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// The test binary is also the process that TestProcesses starts.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	redistest.Main(m)
}

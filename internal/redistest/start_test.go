package redistest

import (
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTakenPortLeadsToAnother has someone else take the port in the moment
// between the choice and the start, or that of a cluster's bus.
func TestTakenPortLeadsToAnother(t *testing.T) {
	for name, c := range map[string]struct {
		above int
		args  []string
	}{
		"own":     {0, nil},
		"cluster": {10000, []string{"--cluster-enabled", "yes"}},
	} {
		t.Run(name, func(t *testing.T) {
			var taken []int
			server := StartWith(t, func(dir string, port int) []string {
				if len(taken) < 2 {
					taken = append(taken, port)
					listener, err := net.Listen("tcp", loopback(port+c.above))
					require.NoError(t, err)
					t.Cleanup(func() { listener.Close() })
				}
				return append(serverArgs(dir, port), c.args...)
			})
			require.Len(t, taken, 2)
			require.NotContains(t, taken, server.port)
			require.NoError(t, server.Client().Ping(t.Context()).Err())
		})
	}
}

// TestForeignServerIsNotOurs is the same, with a redis-server that answers PING.
func TestForeignServerIsNotOurs(t *testing.T) {
	taken := 0
	server := StartWith(t, func(dir string, port int) []string {
		if taken == 0 {
			taken = port
			startForeign(t, port)
		}
		return serverArgs(dir, port)
	})
	require.NotZero(t, taken)
	require.NotEqual(t, taken, server.port)
}

func startForeign(t *testing.T, port int) {
	t.Helper()
	proc := Spawn(t, exec.Command("redis-server", serverArgs(t.TempDir(), port)...))
	require.Eventually(t, func() bool { return answers(loopback(port), proc.handle.Pid) },
		patience, 5*time.Millisecond)
}

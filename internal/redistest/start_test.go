package redistest

import (
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fatalTB records the message of t.Fatal instead of failing the test.
type fatalTB struct {
	testing.TB
	message string
}

func (f *fatalTB) Fatalf(format string, args ...any) {
	f.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// fatal returns the message with which what f does fails the test.
func fatal(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	tb, done := &fatalTB{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
	}()
	<-done
	require.NotEmpty(t, tb.message)
	return tb.message
}

func TestMissingServerSaysWhatToDo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	message := fatal(t, func(t testing.TB) { Start(t) })
	require.Contains(t, message, "redis-server is not installed")
	require.Contains(t, message, "make redis")
	require.Contains(t, message, "apt-get install redis-server")
}

func TestWrongArgumentShowsTheLog(t *testing.T) {
	message := fatal(t, func(t testing.TB) { Start(t, "--no-such-directive", "1") })
	require.Contains(t, message, "no-such-directive")
}

func TestFaultOfDeadServerFailsTheTest(t *testing.T) {
	require.Contains(t, fatal(t, func(t testing.TB) {
		server := Start(t)
		server.Kill()
		server.Pause()
	}), "which is down")
}

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

// TestPortsAreGivenOnce: the port of a server that is down is free, and still its own.
func TestPortsAreGivenOnce(t *testing.T) {
	given := make(map[int]bool)
	for range 100 {
		port := reservePort(t)
		require.False(t, given[port])
		given[port] = true
	}
}

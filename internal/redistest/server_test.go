package redistest_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// patience bounds every wait for a condition that comes by itself.
const (
	patience = 20 * time.Second
	interval = 5 * time.Millisecond
)

func TestPausedServerIsKilledAtCleanup(t *testing.T) {
	var addr string
	t.Run("server", func(t *testing.T) {
		server := redistest.Start(t)
		addr = server.Addr()
		server.Pause()
	})
	requireRefused(t, addr)
}

// TestServerDiesWithTestBinary kills a test binary that has started a server.
func TestServerDiesWithTestBinary(t *testing.T) {
	const role = "REDISTEST_KILL_ME"
	if os.Getenv(role) != "" {
		_, _ = os.Stdout.WriteString(redistest.Start(t).Addr() + "\n")
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTestBinary$")
	cmd.Env = append(os.Environ(), role+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	require.NoError(t, err)
	requireRefused(t, string(bytes.TrimSpace(buf[:n])))
}

// requireRefused waits until nobody listens at addr.
func requireRefused(t *testing.T, addr string) {
	t.Helper()
	require.True(t, strings.HasPrefix(addr, "127.0.0.1:"), addr)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, patience, interval)
	_, err := net.Dial("tcp", addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

package redistest_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// patience bounds every wait for a condition that comes by itself.
const (
	patience = 20 * time.Second
	interval = 5 * time.Millisecond
)

// impatient makes a client give up soon and never try again.
func impatient(o *redis.Options) {
	o.ReadTimeout = 50 * time.Millisecond
	o.DialerRetries = 1
	o.MaxRetries = -1
}

func TestStart(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t, "--maxmemory", "10mb")
	require.NotEqual(t, a.Addr(), b.Addr())
	client := a.Client(func(o *redis.Options) { o.DB = 3 }, impatient)
	require.NoError(t, client.Set(ctx, "key", "value", 0).Err())
	require.Equal(t, "value", client.Get(ctx, "key").Val())
	require.Zero(t, a.Client().Exists(ctx, "key").Val(), "another database")
	require.Zero(t, b.Client().Exists(ctx, "key").Val())
	for name, want := range map[string]string{"save": "", "appendonly": "no", "maxmemory": "10485760"} {
		require.Equal(t, want, b.Client().ConfigGet(ctx, name).Val()[name])
	}
}

func TestCallsCountCommands(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	require.Zero(t, server.Calls("get", "set"))
	for range 3 {
		require.NoError(t, client.Set(ctx, "key", "value", 0).Err())
	}
	require.NoError(t, client.Get(ctx, "key").Err())
	require.NoError(t, client.Eval(ctx, "for _ = 1, 1e5 do end return 1", nil).Err())

	require.Equal(t, int64(3), server.Calls("set"))
	require.Equal(t, int64(4), server.Calls("GET", "set"))
	require.Equal(t, int64(1), server.Calls("eval", "evalsha"))
	require.Positive(t, server.Busy("eval", "evalsha"))
	require.Zero(t, server.Busy("evalsha"))
	server.ResetStats()
	require.Zero(t, server.Calls("get", "set", "eval"))
	require.Zero(t, server.Busy("eval"))
}

func TestPauseAndResume(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(impatient)
	require.NoError(t, client.Ping(ctx).Err())

	server.Pause()
	require.ErrorIs(t, client.Incr(ctx, "key").Err(), os.ErrDeadlineExceeded)
	server.Resume()
	require.Eventually(t, func() bool { // what was sent is executed late
		return client.Get(ctx, "key").Val() == "1"
	}, patience, interval)
}

func TestPausedServerIsKilledAtCleanup(t *testing.T) {
	var addr string
	t.Run("server", func(t *testing.T) {
		server := redistest.Start(t)
		addr = server.Addr()
		server.Pause()
	})
	requireRefused(t, addr)
}

func TestKillAndRestart(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client(impatient)
	require.NoError(t, client.Set(ctx, "key", "value", 0).Err())

	addr := server.Addr()
	server.Kill()
	server.Kill() // a second one is harmless
	require.ErrorIs(t, client.Ping(ctx).Err(), syscall.ECONNREFUSED)

	server.Restart()
	require.Equal(t, addr, server.Addr())
	require.Zero(t, client.Exists(ctx, "key").Val(), "it comes back empty")
	require.Equal(t, int64(1), server.Calls("exists"))
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
		conn, err := dial(addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, patience, interval)
	_, err := dial(addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestClock(t *testing.T) {
	_, clock := redistest.StartClocked(t)
	for _, ahead := range []time.Duration{0, time.Hour, -time.Minute} {
		clock.Set(ahead)
		require.InDelta(t, ahead, clock.Ahead(), float64(patience))
	}
}

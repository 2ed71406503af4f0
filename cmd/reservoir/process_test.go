package main

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// asCommand is set for a process of this test's own program that shall be the command. So
// nothing has to be built, and it has the race detector where the tests have it.
const asCommand = "RESERVOIR_TEST_AS_COMMAND"

// process is a run of the command in a process of its own, which ends with the
// test at the latest.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

func start(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	path, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.CommandContext(t.Context(), path, args...)}
	p.Env = append(append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=50"), env...) // instead of a second each
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	require.NoError(t, p.Start())
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Wait()
		}
	})
	return p
}

// end waits for the process and returns what it left behind.
func (p *process) end() outcome {
	_ = p.Wait() // the status says it all
	return outcome{p.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
}

// contents is what the server holds for a key, which has one counter at most.
func contents(t *testing.T, s *redistest.Server, key string) backend.Contents {
	t.Helper()
	client := s.Client()
	defer client.Close()
	all, err := redisstore.New(client).Inspect(t.Context(), key)
	require.NoError(t, err)
	require.LessOrEqual(t, len(all), 1)
	return append(all, backend.Contents{})[0]
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, 2*time.Millisecond, what)
}

func TestSignalsEndALoadCleanly(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		key := signal.String()
		var running []*process
		for range 3 {
			running = append(running, start(t, nil, "load", "-store", "redis://"+server.Addr(), "-key", key,
				"-limit", "1000000", "-window", "1h", "-rate", "2000", "-duration", "10m", "-format", "json"))
		}
		eventually(t, "under way", func() bool {
			c := contents(t, server, key)
			return len(c.Clients) == 3 && c.Used > 4000
		})
		var sum, returned int64
		for _, p := range running {
			require.NoError(t, p.Process.Signal(signal))
			r := p.end().report(t)
			requireBalance(t, r)
			require.Zero(t, r.TokensExpired)
			sum += r.TokensSpent
			returned += r.TokensReturned
		}
		require.Positive(t, returned, "there was stock to hand back")
		c := contents(t, server, key)
		require.Equal(t, sum, c.Used, "only what was spent stays charged")
		for _, a := range c.Clients {
			sum -= a.Mine
		}
		require.Zero(t, sum, "and the ledger says so too")
	}
}

package main

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

func TestReadme(t *testing.T) {
	was, now := program.Readme(t, func(command string) string {
		require.Equal(t, "go run ./examples/shards", command)
		out, err := program.Command(t).Output()
		require.NoError(t, err)
		return string(out)
	})
	require.Equal(t, was, now)
}

func TestInterrupted(t *testing.T) {
	program.RequireInterruptible(t) // when all servers are up
}

func TestNoServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cmd := program.Command(t)
	cmd.Stderr = nil
	_, err := cmd.Output()
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed)
	require.Regexp(t, `^shards: .*redis-server is not installed.*\n$`, string(failed.Stderr))
}

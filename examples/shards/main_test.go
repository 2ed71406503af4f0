package main

import (
	"context"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/program"
	"github.com/go-reservoir/reservoir/internal/transcript"
)

func TestMain(m *testing.M) { program.Main(m, main) }

var update = flag.Bool("update", false, "write what the commands of README.md print into it")

func TestReadme(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	got := transcript.Rerun(readme, func(command string) string {
		require.Equal(t, "go run ./examples/shards", command)
		out, err := program.Command(t).Output()
		require.NoError(t, err)
		return string(out)
	})
	if *update {
		require.NoError(t, os.WriteFile("README.md", got, 0o644))
		return
	}
	require.Equal(t, string(readme), string(got))
}

func TestInterrupted(t *testing.T) {
	program.RequireInterruptible(t) // when all servers are up
}

func TestNoServer(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.ErrorContains(t, run(context.Background(), os.Stdout), "is redis-server installed?")
}

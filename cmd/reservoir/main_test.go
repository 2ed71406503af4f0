package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestMain is the command itself in processes that start has started.
func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	redistest.Main(m)
}

// outcome is what a command left behind.
type outcome struct {
	status         int
	stdout, stderr string
}

// invoke runs a command in this process.
func invoke(ctx context.Context, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	status := run(ctx, args, &stdout, &stderr)
	return outcome{status, stdout.String(), stderr.String()}
}

// requireFine is for a command that did as asked.
func (o outcome) requireFine(t *testing.T) {
	t.Helper()
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Empty(t, o.stderr)
}

// report reads the JSON of a load that ran as asked.
func (o outcome) report(t *testing.T) report {
	t.Helper()
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Empty(t, o.stderr)
	var r report
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o.stdout)
	return r
}

// requireOneLine checks the form of every error.
func (o outcome) requireOneLine(t *testing.T) {
	t.Helper()
	require.Regexp(t, `^reservoir: [^\n]+\n$`, o.stderr)
}

func TestHelp(t *testing.T) {
	for _, args := range []string{"help", "-h", "-help", "--help", "load -h", "inspect -help", "tune -h", "help load", "-h reset"} {
		o := invoke(t.Context(), strings.Fields(args)...)
		require.Equal(t, exitOK, o.status, args)
		require.Empty(t, o.stderr, args)
		require.Contains(t, o.stdout, "reservoir", args)
	}
	for _, c := range commands {
		require.Contains(t, invoke(t.Context(), "help").stdout, c.name)
	}
}

func TestReportThatCannotBeWrittenIsAFailure(t *testing.T) {
	for _, args := range []string{"help", "load -h", "load -requests 1", "load -requests 1 -format json"} {
		var stderr bytes.Buffer
		require.Equal(t, exitFailure, run(t.Context(), strings.Fields(args), full{}, &stderr), args)
		require.Equal(t, "reservoir: disk full\n", stderr.String(), args)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("disk\nfull") // which shall be on one line

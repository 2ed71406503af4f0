package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDemo(t *testing.T) {
	o := invoke(t.Context(), "demo", "-duration", "100ms")
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Empty(t, o.stderr)
	for _, want := range []string{
		"with batches", "without batches", "12,500",
		"allowed", "denied", "store calls", "of 40,000", "Refusals come from memory",
	} {
		require.Contains(t, o.stdout, want)
	}
}

func TestDemoCanBeStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := invoke(ctx, "demo", "-duration", "1h")
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Contains(t, o.stdout, "stopped      early: 450,000,000 of 450,000,000 calls were not made")
}

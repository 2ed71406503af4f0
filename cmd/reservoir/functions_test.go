package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

var limitOfTests = backend.Limit{Tokens: 10, Window: time.Minute}

// TestFunctions does with the output what the help says.
func TestFunctions(t *testing.T) {
	o := invoke(t.Context(), "functions")
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Empty(t, o.stderr)
	require.Equal(t, lua.Library(), o.stdout, "and nothing else")

	client := redistest.Start(t).Client()
	name, err := client.FunctionLoad(t.Context(), o.stdout).Result()
	require.NoError(t, err)
	require.Equal(t, lua.LibraryName(), name)
	state, err := redisstore.New(client, redisstore.WithFunctions()).Check(t.Context(), "k", limitOfTests)
	require.NoError(t, err)
	require.EqualValues(t, 10, state.Remaining)

	require.Contains(t, invoke(t.Context(), "functions", "-h").stdout, "FUNCTION LOAD")
	o = invoke(t.Context(), "functions", canary)
	require.Equal(t, exitUsage, o.status)
	require.NotContains(t, o.stderr, canary)
}

package fleet

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// simulate runs a fleet. It depends on seed alone.
func simulate(t *testing.T, s scenario, r rule, seed uint64) outcome {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	o, err := s.run(r, seed)
	require.NoError(t, err)
	require.Zero(t, o.over, "%s: tokens over the limit", r.name)
	return o
}

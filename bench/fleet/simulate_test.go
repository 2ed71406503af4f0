package fleet

import (
	"runtime/debug"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// simulate runs a fleet. It depends on seed alone.
func simulate(t *testing.T, s scenario, r rule, seed uint64) outcome {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	o, err := s.run(r, seed, func(f func()) { synctest.Test(t, func(*testing.T) { f() }) })
	require.NoError(t, err)
	require.Zero(t, o.over, "%s: tokens over the limit", r.name)
	return o
}

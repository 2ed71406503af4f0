package fleet

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/chance"
)

// simulate runs a fleet. It depends on seed alone.
func simulate(t *testing.T, s scenario, r rule, seed uint64) (o outcome) {
	t.Helper()
	defer chance.Seed(seed)()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one order of events
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	var err error
	synctest.Test(t, func(*testing.T) { o, err = run(s, r, seed) })
	require.NoError(t, err)
	require.Zero(t, o.over, "%s: tokens over the limit", r.name)
	return o
}

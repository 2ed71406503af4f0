package docs_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A process that is killed loses what it holds: see docs/choosing.md. The maximum of WithBatch
// bounds a batch, and a process may hold several, for large requests above all.
func TestMostHeld(t *testing.T) {
	const most = 10
	held := func(cost int64) (held int64) {
		synctest.Test(t, func(t *testing.T) {
			limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1_000_000), reservoir.WithBatch(1, most))
			require.NoError(t, err)
			defer limiter.Close(context.Background())
			for range 2000 {
				_, err := limiter.AllowN(t.Context(), "k", cost)
				require.NoError(t, err)
				held = max(held, limiter.Stats().Held)
				time.Sleep(time.Millisecond)
				held = max(held, limiter.Stats().Held)
			}
		})
		return held
	}
	small, large := held(1), held(most)
	t.Logf("held at most: %d with requests for 1, %d with requests for %d", small, large, most)
	require.Greater(t, small, int64(most))
	require.LessOrEqual(t, small, int64(2*most))
	require.EqualValues(t, 5*most, large)
}

package docs_test

import (
	"context"
	"math/rand/v2"
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

// A killed process loses little of a week's limit, but until Monday: see docs/choosing.md.
func TestMostHeldOfAWeek(t *testing.T) {
	const limit, requests, week = 100_000, 150_000, 7 * 24 * time.Hour
	for _, processes := range []int{3, 20} {
		most := int64(0)
		synctest.Test(t, func(t *testing.T) {
			store, random := memstore.New(), rand.New(rand.NewPCG(1, 1))
			var limiters []*reservoir.Limiter
			for range processes {
				l, err := reservoir.New(store, reservoir.PerWeek(limit, nil))
				require.NoError(t, err)
				defer l.Close(context.Background())
				limiters = append(limiters, l)
			}
			for range requests {
				l := limiters[random.IntN(processes)]
				_, err := l.Allow(t.Context(), "k")
				require.NoError(t, err)
				most = max(most, l.Stats().Held)
				time.Sleep(week / requests)
			}
		})
		t.Logf("%d processes: one held at most %.2g %% of the limit", processes, 100*float64(most)/limit)
		require.InDelta(t, limit/20, most, 1)
	}
}

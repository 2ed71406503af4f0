package reservoir

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Who refunds a direct call again and again gives back what its own process has
// used, and nothing of what others have: also when only a part of a Result is left.
func TestRefundOfDirectCallsIsBounded(t *testing.T) {
	for name, x := range map[string]struct {
		others  int64
		mine    []int64 // the last of which is refunded
		refunds int
	}{
		"all of it": {5, []int64{3}, 10},
		"a part":    {10, []int64{3, 5}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				mine, other := open(t, store, PerMinute(20), WithDirect()), open(t, store, PerMinute(20), WithDirect())
				require.True(t, allow(t, other, "k", x.others).Allowed)
				var r Result
				for _, n := range x.mine {
					r = allow(t, mine, "k", n)
					require.True(t, r.Allowed)
				}
				for range x.refunds {
					require.NoError(t, mine.Refund(context.Background(), "k", r))
				}
				assert.EqualValues(t, x.others, used(t, store, "k"))
			})
		})
	}
}

// A request may outlive the memory of its key. What it was charged goes back, and
// none of what later requests were charged is thought to be gone by that.
func TestRefundOfADirectCallBeforeEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := open(t, store, PerMinute(20), WithDirect())
		older := allow(t, l, "k", 5)
		l.rename()
		require.NoError(t, l.evict(context.Background(), func(*entry) bool { return true }))
		require.Nil(t, l.table.find("k"))
		newer := allow(t, l, "k", 3)
		require.EqualValues(t, 8, used(t, store, "k"))
		for range 2 {
			require.NoError(t, l.Refund(context.Background(), "k", newer))
		}
		require.EqualValues(t, 5, used(t, store, "k"))
		require.NoError(t, l.Refund(context.Background(), "k", older))
		assert.Zero(t, used(t, store, "k"))
	})
}

// A refund for which there is no time left is not made, and may be made later.
func TestRefundOfADirectCallUnderAnEndedContext(t *testing.T) {
	store := memstore.New()
	l := open(t, store, PerMinute(20), WithDirect())
	r := allow(t, l, "k", 5)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, l.Refund(ended, "k", r), context.Canceled)
	require.EqualValues(t, 5, used(t, store, "k"))
	require.NoError(t, l.Refund(context.Background(), "k", r))
	assert.Zero(t, used(t, store, "k"))
}

// What comes back is had at once by who waits in this process.
func TestRefundOfADirectCallServesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, memstore.New(), PerHour(10), WithDirect())
		r := allow(t, l, "k", 10)
		require.False(t, allow(t, l, "k", 1).Allowed)
		served := make(chan error)
		go func() { served <- l.Wait(context.Background(), "k") }()
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, l.Refund(context.Background(), "k", r))
		require.NoError(t, <-served)
		assert.Zero(t, time.Since(begin))
	})
}

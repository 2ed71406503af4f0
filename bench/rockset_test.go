package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// counted counts the calls to a store.
type counted struct {
	backend.Store
	takes atomic.Int64
}

func (c *counted) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	c.takes.Add(1)
	return c.Store.Take(ctx, r)
}

// A yardstick that lets too much or too little through would measure nothing.
func TestRocksetAdmitsTheLimit(t *testing.T) {
	for _, listing := range []bool{false, true} {
		testRocksetAdmitsTheLimit(t, &Rockset{Store: memstore.New(), Limit: backend.Limit{Tokens: 5_000, Window: time.Hour}, Batch: 100, Listing: listing})
	}
}

func testRocksetAdmitsTheLimit(t *testing.T, r *Rockset) {
	t.Helper()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 100 {
				ok, err := r.Allow(t.Context(), "k")
				if err != nil {
					t.Error(err)
				}
				if ok {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, admitted.Load(), int64(5_000))
	require.Greater(t, admitted.Load(), int64(4_900), "all but less than a batch")
}

// slow is a store whose calls take a millisecond.
type slow struct{ *counted }

func (s slow) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	time.Sleep(time.Millisecond)
	return s.counted.Take(ctx, r)
}

// 64 callers of a batch of 25: by the listing 24 reserve a place in the batch that one
// fetches, and the 39 for which it is too small make a call each at once: 61 % of all.
// By the rule all wait for the batch first.
func TestRocksetsListingCallsAtOnce(t *testing.T) {
	for listing, length := range map[bool]time.Duration{true: time.Millisecond, false: 2 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			store := slow{&counted{Store: memstore.New()}}
			r := &Rockset{Store: store, Limit: backend.Limit{Tokens: 1_000, Window: time.Hour}, Batch: 25, Listing: listing}
			begin := time.Now()
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					ok, err := r.Allow(t.Context(), "k")
					require.NoError(t, err)
					require.True(t, ok)
				})
			}
			wg.Wait()
			require.Equal(t, length, time.Since(begin))
			require.EqualValues(t, 1+39, store.takes.Load())
		})
	}
}

func TestRocksetFetchesBatches(t *testing.T) {
	store := &counted{Store: memstore.New()}
	r := &Rockset{Store: store, Limit: backend.Limit{Tokens: 1_000, Window: time.Hour}, Batch: 100}
	for range 1_000 {
		ok, err := r.Allow(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Equal(t, int64(10), store.takes.Load(), "a call for each batch")
	ok, err := r.Allow(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, ok)
}

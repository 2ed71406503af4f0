package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
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
	store := &counted{Store: memstore.New()}
	r := NewRockset(store, backend.Limit{Tokens: 5_000, Window: time.Hour}, 100)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 100 {
				ok, err := r.AllowN(t.Context(), "k", 1)
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

func TestRocksetFetchesBatches(t *testing.T) {
	store := &counted{Store: memstore.New()}
	r := NewRockset(store, backend.Limit{Tokens: 1_000, Window: time.Hour}, 100)
	for range 1_000 {
		ok, err := r.AllowN(t.Context(), "k", 1)
		require.NoError(t, err)
		require.True(t, ok)
	}
	require.Equal(t, int64(10), store.takes.Load(), "a call for each batch")
	ok, err := r.AllowN(t.Context(), "other", 101)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, int64(11), store.takes.Load(), "a call for what is larger than a batch")
	ok, err = r.AllowN(t.Context(), "k", 1)
	require.NoError(t, err)
	require.False(t, ok)
}

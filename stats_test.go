package reservoir

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// What is spent never seems to shrink from one look to the next, while batches
// come in: to a metrics system that would be a restart.
func TestSpentNeverGoesBack(t *testing.T) {
	l := open(t, memstore.New(), PerHour(1_000_000), WithBatch(Fixed(100)), WithFetchTimeout(time.Minute))
	var over atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !over.Load() {
				allow(t, l, "k", 7)
			}
		})
	}
	last := l.Stats()
	for range 2_000 {
		now := l.Stats()
		assert.GreaterOrEqual(t, now.Spent, last.Spent)
		assert.GreaterOrEqual(t, now.Taken, last.Taken)
		last = now
	}
	over.Store(true)
	wg.Wait()
	balance(t, l)
}

// Nor do they while keys are evicted that have spent.
func TestSpentNeverGoesBackWithItsKeys(t *testing.T) {
	l := open(t, memstore.New(), PerHour(100), WithBatch(Fixed(1)))
	for i := range 2_000 {
		allow(t, l, strconv.Itoa(i), 1)
	}
	last := l.Stats()
	require.EqualValues(t, 2_000, last.Spent)
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.evict(context.Background(), func(*entry) bool { return true }) })
	for last.Keys > 0 {
		last = l.Stats()
		require.EqualValues(t, 2_000, last.Spent)
	}
	wg.Wait()
	balance(t, l)
}

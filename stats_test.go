package reservoir

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

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

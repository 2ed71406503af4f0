package reservoir

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A clock that goes 500 ppm slower than the server's spends nothing late.
func TestDeadlineAllowsForASlowClock(t *testing.T) {
	w := newWindow(backend.State{Window: 1})
	w.heard(backend.State{Window: 1, Left: time.Hour}, 0, 0)
	over := int64(time.Hour) - int64(time.Hour)/2000 // by the slow clock
	assert.False(t, w.alive(over))
	assert.True(t, w.alive(over-int64(time.Millisecond)))
}

// Who comes again after RetryAfter finds a new window, however long the reply
// that told the end was under way.
func TestRetryAfterIsNeverEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), 20*time.Millisecond)
		l := open(t, net, PerSecond(10), WithBatch(Fixed(10)))
		var r Result
		for r = allow(t, l, "k", 1); r.Allowed; r = allow(t, l, "k", 1) {
		}
		assert.False(t, time.Now().Add(r.RetryAfter).Before(r.Reset), "%v before", time.Until(r.Reset)-r.RetryAfter)
		time.Sleep(r.RetryAfter)
		assert.True(t, allow(t, l, "k", 1).Allowed)
	})
}

// However many spend from a stock at once, they get as much as was in it.
func TestSpendIsExact(t *testing.T) {
	const stock = 2_000_000 // many, to be interrupted in between on a busy machine as well
	w := newWindow(backend.State{Window: 1})
	w.stock.Store(stock)
	var spent atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			n := int64(0)
			for _, ok := w.spend(1); ok; _, ok = w.spend(1) {
				n++
			}
			spent.Add(n)
		})
	}
	wg.Wait()
	assert.EqualValues(t, stock, spent.Load())
	assert.Zero(t, w.stock.Load())
}

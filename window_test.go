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
	w.heard(backend.State{Window: 1, Left: time.Hour}, Limit{}, 0, 0)
	over := int64(time.Hour) - int64(time.Hour)/2000 // by the slow clock
	assert.False(t, w.alive(over))
	assert.True(t, w.alive(over-int64(time.Millisecond)))
}

// The later bound of the end never comes before the earlier one, though the store
// counts in microseconds and its clock may be set back: who waits for the one would
// find the other, and ask again, and again.
func TestBoundsOfTheEndDoNotPassEachOther(t *testing.T) {
	const ms = int64(time.Millisecond)
	w := newWindow(backend.State{Window: 1})
	for _, x := range []struct{ left, now, deadline, ends int64 }{
		{10 * ms, 0, 10*ms - 5000, 10*ms + 5000},
		{1 * ms, 9*ms + 700, 10*ms + 200, 10*ms + 1200}, // heard of 700 ns too late
		{0, 10 * ms, 10*ms + 200, 10*ms + 200},
		{5 * ms, 9 * ms, 14*ms - 2500, 14*ms - 2500}, // the store's clock was set back
	} {
		w.heard(backend.State{Window: 1, Left: time.Duration(x.left)}, Limit{}, x.now, x.now)
		assert.Equal(t, x.deadline, w.deadline.Load())
		assert.Equal(t, x.ends, w.ends.Load())
		assert.True(t, w.alive(x.ends-1) || x.deadline < x.ends)
	}
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

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

// Tokens that come back serve all waiters that they suffice for, not the first
// alone.
func TestReturnedTokensWakeAllTheyCover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10), WithBatch(Fixed(10)))
		three := allow(t, l, "k", 3)
		for allow(t, l, "k", 1).Allowed {
		}
		order, wg := waiters(t, l, ctx, 4)
		begin := time.Now()
		require.NoError(t, l.Refund(ctx, "k", three))
		synctest.Wait()
		assert.ElementsMatch(t, seq(0, 3), order())
		wg.Wait()
		assert.Greater(t, time.Since(begin), 59*time.Second, "the fourth, after the reset")
	})
}

// A place that its caller has left without a look at its outcome keeps none of it
// for the next caller.
func TestPlaceIsEmptyWhenItIsUsedAgain(t *testing.T) {
	var all places
	for range 1000 {
		var q queue
		p := all.get(1, false)
		q.push(p)
		q.settle(p, Result{Allowed: true}, nil, nil)
		all.put(p)
		p = all.get(1, false)
		select {
		case <-p.ready:
			t.Fatal("told before it was served")
		default:
		}
		all.put(p)
	}
}

// While the stock is reserved for the queue the hot path sees none, and refuses
// nobody for that.
func TestNoRefusalWhileStockIsReserved(t *testing.T) {
	l := open(t, memstore.New(), PerMinute(10), WithBatch(Fixed(10)))
	allow(t, l, "k", 7)
	e := l.table.get("k")
	e.mu.Lock() // after the fetch, which answers its callers before it is done
	require.NotZero(t, e.win.Load().quiet.Load(), "the store has no more")
	e.gather()
	var r Result
	decided := e.try(&r, 1)
	e.release()
	e.mu.Unlock()
	assert.False(t, decided)
	assert.True(t, allow(t, l, "k", 3).Allowed)
}

// Who waits for the reset is served after it, though nobody else comes.
func TestLoneWaiterIsServedAfterTheReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10), WithBatch(Fixed(10)))
		allow(t, l, "k", 10)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		begin := time.Now()
		assert.NoError(t, l.Wait(ctx, "k"))
		assert.Less(t, time.Since(begin), 61*time.Second)
	})
}

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

// A grant whose reply is lost is handed over with the next: charged once, all of
// it spendable.
func TestLostReplyLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(40)))
		net.set(func(string) fault { return loseReply })
		for range failuresToOpen - 1 {
			_, err := l.Allow(context.Background(), "k")
			assert.Error(t, err)
		}
		assert.Equal(t, failuresToOpen-1, net.happened(loseReply))
		net.set(nil)
		assert.EqualValues(t, 40, used(t, store, "k"), "told again and again, charged once")
		n := int64(0)
		for allow(t, l, "k", 1).Allowed {
			n++
		}
		assert.EqualValues(t, 100, n)
		assert.EqualValues(t, 40, l.Stats().Recovered)
	})
}

// What a lost reply had granted is handed back on Close too.
func TestCloseRecoversLostGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(40)))
		net.set(func(string) fault { return loseReply })
		_, err := l.Allow(context.Background(), "k")
		require.Error(t, err)
		net.set(nil)
		require.EqualValues(t, 40, used(t, store, "k"))
		require.NoError(t, l.Close(context.Background()))
		assert.Zero(t, used(t, store, "k"))
	})
}

// A direct call that fails is never repeated, and counted as unknown.
func TestLostTakeIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, rtt/2)
		l := open(t, net, PerMinute(100), WithDirect())
		net.set(func(string) fault { return loseReply })
		_, err := l.AllowN(context.Background(), "k", 7)
		require.Error(t, err)
		assert.Equal(t, 1, net.count("take"))
		assert.EqualValues(t, 7, l.Stats().Unknown)
		assert.EqualValues(t, 7, used(t, store, "k"))
	})
}

// When the store has lost a window that still runs, what was granted is charged
// again, before others can have it.
func TestReassertAfterStateLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, empty := memstore.New(), memstore.New()
		net := overNetwork(full, rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(30)))
		r := allow(t, l, "k", 5)
		net.Store = empty
		allow(t, l, "k", 25) // the rest of the stock
		again := allow(t, l, "k", 1)
		assert.True(t, r.Reset.Equal(again.Reset), "the window's end is adopted")
		assert.EqualValues(t, 30, l.Stats().Reasserted)
		assert.GreaterOrEqual(t, used(t, empty, "k"), int64(31))
		n := int64(31)
		for {
			if !allow(t, l, "k", 1).Allowed {
				break
			}
			n++
		}
		assert.EqualValues(t, 100, n, "no second limit")
	})
}

// Who knows that a limit was used up tells a store that has forgotten it, also of
// what others were granted, who may not speak for long.
func TestOneTellsOfAllAfterStateLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, empty := memstore.New(), memstore.New()
		net := overNetwork(full, rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(20)))
		other := open(t, full, PerMinute(100), WithBatch(Fixed(50)))
		allow(t, other, "k", 1)
		for range 50 {
			require.True(t, allow(t, l, "k", 1).Allowed)
		}
		require.False(t, allow(t, l, "k", 1).Allowed)
		calls := net.count("sync")
		net.Store = empty
		for net.count("sync") == calls { // until it looks whether tokens have come back
			time.Sleep(time.Second)
			require.False(t, allow(t, l, "k", 1).Allowed)
		}
		synctest.Wait()
		assert.EqualValues(t, 50, l.Stats().Reasserted)
		assert.EqualValues(t, 100, used(t, empty, "k"), "49 of them are in another's stock")
		time.Sleep(10 * time.Second)
		require.False(t, allow(t, l, "k", 1).Allowed)
	})
}

// What is held when another window turns up in the store is carried into it.
func TestCarryOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full, other := memstore.New(), memstore.New()
		_, err := other.Take(context.Background(), takeOf(10))
		require.NoError(t, err)
		time.Sleep(time.Second)
		net := overNetwork(full, rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(30)))
		allow(t, l, "k", 25)
		net.Store = other
		r := allow(t, l, "k", 10) // 5 in stock
		assert.True(t, r.Allowed)
		n := int64(35)
		for allow(t, l, "k", 1).Allowed {
			n++
		}
		assert.EqualValues(t, 90, n)
		assert.EqualValues(t, 100, used(t, other, "k"))
		assert.EqualValues(t, 30, l.Stats().Reasserted)
	})
}

// A store that lost its data hears how many tokens were charged, not what that is
// under a limit of which it has not been told yet.
func TestUsedIsOfTheLimitThatWasHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, now := range []int64{100, 10_000} {
			c := changingLimit(1000)
			net := overNetwork(memstore.New(), time.Millisecond)
			l := open(t, net, PerMinute(1), WithLimits(c.of), WithBatch(Fixed(250)))
			for range 500 {
				allow(t, l, "k", 1)
			}
			c.Store(now)
			net.set(always(loseRequest))
			_, err := l.Allow(context.Background(), "k")
			require.Error(t, err)
			require.Equal(t, 1, net.happened(loseRequest))
			e := l.table.get("k")
			e.mu.Lock()
			require.Equal(t, now, e.limit().Tokens)
			assert.EqualValues(t, 500, e.statement().Used)
			e.mu.Unlock()
			net.set(nil)
		}
	})
}

// Nor is it thought to be gone when a large request, which would go to the store by
// itself, finds it charged.
func TestLostGrantIsThereForALargeRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, rtt/2)
		l := open(t, net, PerMinute(10), WithBatch(Fixed(4)))
		allow(t, l, "k", 4)
		allow(t, l, "k", 4)
		net.set(always(loseReply))
		_, err := l.Allow(context.Background(), "k")
		require.Error(t, err)
		require.Equal(t, 1, net.happened(loseReply))
		net.set(nil)
		require.EqualValues(t, 10, used(t, store, "k"))
		assert.False(t, allow(t, l, "k", 5).Allowed)
		assert.True(t, allow(t, l, "k", 2).Allowed)
	})
}

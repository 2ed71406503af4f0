package reservoir

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A key is not evicted while its fetch is under way: what the fetch brings beyond
// its caller's need would be in no stock.
func TestNoEvictionDuringAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Minute)
		l := open(t, net, PerHour(10), WithBatch(Fixed(5)), WithIdle(time.Second), WithFetchTimeout(time.Hour))
		assert.True(t, allow(t, l, "k", 1).Allowed)
		assert.EqualValues(t, 1, l.Stats().Spent)
		assert.EqualValues(t, 4, l.Stats().Held)
	})
}

// A process that admits its share by itself remembers how much of it is used, for
// as long as the window runs.
func TestLocalShareIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Millisecond)
		l := open(t, net, PerHour(1000), WithFailure(FailLocal(0.1)))
		net.set(always(loseRequest))
		admitted := 0
		for range 330 {
			if allow(t, l, "k", 1).Allowed {
				admitted++
			}
			time.Sleep(10 * time.Second)
		}
		assert.Positive(t, net.happened(loseRequest))
		assert.Equal(t, 100, admitted)
	})
}

// What was admitted while the store was away is charged when it is back, however
// long that took, if its window still runs.
func TestOwedIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, PerHour(1000), WithFailure(FailOpen))
		net.set(always(loseRequest))
		const n = 120
		for range n {
			assert.True(t, allow(t, l, "k", 1).Allowed)
			time.Sleep(10 * time.Second)
		}
		net.set(nil)
		for range 2 { // the first sends the probe
			allow(t, l, "k", 1)
			time.Sleep(longestPause)
		}
		assert.Zero(t, l.Stats().Owed)
		assert.GreaterOrEqual(t, used(t, store, "k"), int64(n+2))
		assert.EqualValues(t, n+2, l.Stats().Spent)
	})
}

// What could not be told at the end was not charged, and is not counted so.
func TestOwedForEverIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(1)), WithFailure(FailLocal(0.1)))
		allow(t, l, "k", 1)
		net.set(always(loseRequest))
		for range 5 {
			require.True(t, allow(t, l, "k", 1).Allowed)
		}
		require.Error(t, l.Close(context.Background()))
		assert.EqualValues(t, 1, used(t, store, "k"))
		assert.EqualValues(t, 1, l.Stats().Taken)
	})
}

// How the last statement of a key ends is the affair of the shard that the key is
// on by then.
func TestHandBackToAnotherShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := &moving{sharded: sharded{overNetwork(memstore.New(), 0)}}
		net.to.Store("old")
		l := open(t, net, PerMinute(100), WithBatch(Fixed(5)))
		for i := range failuresToOpen {
			allow(t, l, fmt.Sprint(i), 1)
		}
		old := l.shardOf("0")
		net.to.Store("new")
		net.set(always(loseRequest))
		require.Error(t, l.evict(context.Background(), func(*entry) bool { return true }))
		require.Equal(t, failuresToOpen, net.happened(loseRequest))
		assert.False(t, old.open.Load())
		assert.True(t, l.shardOf("0").open.Load())
	})
}

// Of two entries of one key the later never speaks in the name of the earlier, whose
// balance is forgotten: it would be handed over what that one has spent. So no key is
// evicted that came since accounts were last renamed.
func TestSuccessiveEntriesHaveTheirOwnAccounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, 0)
		l := open(t, net, PerHour(10), WithBatch(Fixed(5)))
		idle := func() { _ = l.evict(context.Background(), (*entry).idle) }
		l.rename()
		net.set(always(loseReply)) // a grant that both could be told of
		_, err := l.Allow(context.Background(), "k")
		require.Error(t, err)
		net.set(nil)
		idle()
		idle() // of a sweep that overtakes another
		before := l.table.find("k")
		require.NotNil(t, before)
		l.rename()
		idle()
		require.Nil(t, l.table.find("k"))
		allow(t, l, "k", 1)
		assert.NotEqual(t, before.account.client, l.table.find("k").account.client)
	})
}

// A sweep may take longer than keys may be idle. The next begins after it.
func TestOneSweepAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), 0)
		l := open(t, net, PerHour(1000), WithBatch(Fixed(5)), WithIdle(time.Second), WithFetchTimeout(5*time.Second))
		allow(t, l, "k", 1)
		time.Sleep(1500 * time.Millisecond)
		net.set(always(hang))
		for i := range 4 { // the second sweep hands back the stock of k, in vain
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			_, _ = l.Allow(ctx, fmt.Sprint("new", i))
			cancel()
		}
		require.Positive(t, net.happened(hang))
		assert.EqualValues(t, 3, l.epoch.Load(), "one for New, and two sweeps")
	})
}

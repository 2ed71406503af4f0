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

// This file is about statements of which the limiter does not know whether the
// store has heard them. Each test is a run of TestSeeds, made short.

// What was admitted without the store, and charged by a statement whose reply was
// lost, stays part of the account when the local window is over: otherwise the
// store would take it for a grant that was lost, and hand it over to be spent again.
func TestOwedIsNotHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, PerMinute(10), WithBatch(Fixed(1)), WithFailure(FailOpen))
		net.set(always(loseRequest))
		for range 3 {
			assert.Equal(t, Fallback, allow(t, l, "k", 1).Source)
		}
		time.Sleep(40 * time.Second)
		calls := 0
		net.set(func(string) fault { // the second is the statement of what is owed
			calls++
			return []fault{fine, loseReply, fine}[min(calls, 3)-1]
		})
		assert.Equal(t, Fetched, allow(t, l, "k", 1).Source)
		time.Sleep(30 * time.Second)
		assert.EqualValues(t, 4, used(t, store, "k"))
		for n := 1; ; n++ {
			if !allow(t, l, "k", 1).Allowed {
				assert.Equal(t, 7, n, "of the seven that were left")
				break
			}
		}
	})
}

// A refund of what the store is just being told of takes nothing from the account.
func TestRefundOfWhatIsBeingCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Millisecond)
		l := open(t, net, PerMinute(10), WithBatch(Fixed(1)), WithFailure(FailOpen))
		net.set(always(loseRequest))
		r := allow(t, l, "k", 4)
		require.Equal(t, Fallback, r.Source)
		net.set(nil)
		allow(t, l, "k", 1) // and then it is told
		require.NoError(t, l.Refund(context.Background(), "k", r))
		time.Sleep(time.Second)
		assert.Zero(t, l.Stats().Owed)
		assert.EqualValues(t, 5, l.Stats().Spent)
	})
}

// A refund of what the store was told of, and may have heard, is given back.
func TestRefundOfWhatMayBeCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, PerMinute(10), WithBatch(Fixed(1)), WithFailure(FailOpen))
		allow(t, l, "k", 1)
		net.set(always(loseReply))
		r := allow(t, l, "k", 1)
		require.Equal(t, Fallback, r.Source)
		allow(t, l, "k", 1) // the store is told, and nobody hears of it
		require.NoError(t, l.Refund(context.Background(), "k", r))
		net.set(nil)
		require.NoError(t, l.Close(context.Background()))
		assert.EqualValues(t, 2, used(t, store, "k"))
	})
}

// What was given back by a statement that the store has not heard did not go back.
func TestUnheardGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, PerMinute(1000), WithStranding(0))
		allow(t, l, "k", 1)
		e := l.table.find("k")
		e.mu.Lock()
		w := e.win.Load()
		e.granted += 50
		e.take(50)
		w.stock.Add(50)
		e.learn()
		e.short = true
		net.set(always(loseRequest))
		e.trim(w, l.clock.now())
		e.mu.Unlock()
		time.Sleep(time.Second)
		require.EqualValues(t, 50, l.Stats().Returned)
		_ = l.Close(context.Background())
		assert.Zero(t, l.Stats().Returned)
		assert.EqualValues(t, 50, l.Stats().Expired)
	})
}

// A statement whose connection broke may arrive after a later one, in the next
// window. What it is granted there goes back when the limiter is closed.
func TestLateStatementOfAnotherWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, time.Millisecond)
		l := open(t, net, Limit{Tokens: 10, Window: 50 * time.Millisecond}, WithBatch(Fixed(1)))
		allow(t, l, "k", 1)
		e := l.table.find("k")
		e.mu.Lock()
		late := e.statement()
		e.mu.Unlock()
		late.Want, late.Need, late.Strand = 5, 5, -1
		net.set(always(loseRequest))
		_, err := l.Allow(context.Background(), "k")
		require.Error(t, err)
		time.Sleep(60 * time.Millisecond)
		net.set(nil)
		allow(t, l, "k", 1)
		_, err = store.Sync(context.Background(), late)
		require.NoError(t, err)
		require.EqualValues(t, 5, used(t, store, "k"))
		require.NoError(t, l.Close(context.Background()))
		assert.EqualValues(t, 1, used(t, store, "k"))
	})
}

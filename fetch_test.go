package reservoir

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

const rtt = 2 * time.Millisecond // of the tests' network

// A crowd on a cold key shares calls: each fetch is sized for all that wait.
func TestNoStampede(t *testing.T) {
	for _, n := range []int64{1, 25} { // also requests that overflow the batch
		synctest.Test(t, func(t *testing.T) {
			net := overNetwork(memstore.New(), rtt/2)
			l := open(t, net, PerMinute(100_000), WithBatch(Fixed(10)))
			var wg sync.WaitGroup
			for range 1000 {
				wg.Go(func() { assert.True(t, allow(t, l, "k", n).Allowed) })
			}
			wg.Wait()
			assert.LessOrEqual(t, net.count(""), 3)
			assert.EqualValues(t, 1000*n, l.Stats().Spent)
		})
	}
}

// The same on a window that has less than the crowd wants: the first that fit
// are served, the rest refused there and then.
func TestCrowdOnTheLastTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(500))
		var admitted atomic.Int64
		var wg sync.WaitGroup
		begin := time.Now()
		for range 1000 {
			wg.Go(func() {
				if allow(t, l, "k", 1).Allowed {
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
		assert.EqualValues(t, 500, admitted.Load())
		assert.LessOrEqual(t, net.count(""), 3)
		assert.LessOrEqual(t, time.Since(begin), 3*rtt)
	})
}

// callers asks for tokens one after the other, in order, while a fetch is in
// flight, and returns how each fared.
func callers(t *testing.T, l *Limiter, ctx context.Context, ns ...int64) []func() (Result, error) {
	out := make([]func() (Result, error), len(ns))
	for i, n := range ns {
		var r Result
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, err = l.AllowN(ctx, "k", n)
		}()
		synctest.Wait() // it has its place
		out[i] = func() (Result, error) { <-done; return r, err }
	}
	return out
}

// A partial grant serves the places it can, in order.
func TestPartialGrantServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10), WithBatch(Fixed(5)))
		var got []bool
		for _, f := range callers(t, l, context.Background(), 1, 4, 3, 5, 2, 1) {
			r, err := f()
			require.NoError(t, err)
			got = append(got, r.Allowed)
		}
		// 10 tokens: 1+4+3 are in, 5 does not fit, 2 does, and then none is left.
		assert.Equal(t, []bool{true, true, true, false, true, false}, got)
	})
}

// Newcomers cannot take what is reserved: tokens that a queued caller waits for
// are not on the hot path.
func TestNewcomersDoNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(8), WithBatch(Fixed(8)))
		require.True(t, allow(t, l, "k", 5).Allowed)
		time.Sleep(time.Minute) // 3 in stock, in a window that has just ended
		require.True(t, allow(t, l, "k", 5).Allowed)
		first := callers(t, l, context.Background(), 4) // 3 in stock: it must look for a fourth
		r, err := l.Allow(context.Background(), "k")    // arrives while that is under way
		require.NoError(t, err)
		r1, err := first[0]()
		require.NoError(t, err)
		assert.False(t, r1.Allowed)
		assert.True(t, r.Allowed, "once the first was refused, the stock is for the next")
	})
}

// The fetch belongs to nobody: who started it may leave, and the others are
// served by it all the same.
func TestFetchOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(2)))
		ctx, cancel := context.WithCancel(context.Background())
		starter := callers(t, l, ctx, 1)
		others := callers(t, l, context.Background(), 1, 1)
		begin := time.Now()
		cancel()
		_, err := starter[0]()
		assert.ErrorIs(t, err, context.Canceled)
		assert.Zero(t, time.Since(begin), "at once")
		for _, f := range others {
			r, err := f()
			require.NoError(t, err)
			assert.True(t, r.Allowed)
		}
		assert.EqualValues(t, 2, l.Stats().Spent, "who left was charged nothing")
		assert.LessOrEqual(t, net.count(""), 2)
	})
}

// Where the head of the queue leaves, what it kept others waiting for serves them.
func TestLeavingHeadFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(10), WithBatch(Fixed(5)))
		require.True(t, allow(t, l, "k", 2).Allowed) // 3 in stock
		ctx, cancel := context.WithCancel(context.Background())
		big := callers(t, l, ctx, 4)
		small := callers(t, l, context.Background(), 3)
		cancel()
		synctest.Wait()
		_, err := big[0]()
		assert.ErrorIs(t, err, context.Canceled)
		begin := time.Now()
		r, err := small[0]()
		require.NoError(t, err)
		assert.True(t, r.Allowed)
		assert.Zero(t, time.Since(begin), "from the stock, without waiting for the fetch")
	})
}

// A caller whose context ended has precedence over free tokens.
func TestDeadContext(t *testing.T) {
	l := open(t, memstore.New(), PerMinute(100))
	allow(t, l, "k", 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Allow(ctx, "k")
	assert.ErrorIs(t, err, context.Canceled)
	_, err = l.Key("k").Allow(ctx)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, l.Wait(ctx, "k"), context.Canceled)
	_, err = l.Check(ctx, "k")
	assert.ErrorIs(t, err, context.Canceled)
	assert.EqualValues(t, 1, l.Stats().Spent)
}

// Each waiter learns the outcome of its own fetch, not of another.
func TestEachWaiterLearnsItsOwnFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(2)))
		first := true
		net.set(func(string) fault {
			defer func() { first = false }()
			if first {
				return loseRequest
			}
			return fine
		})
		early := callers(t, l, context.Background(), 1)
		late := callers(t, l, context.Background(), 1, 1)
		_, err := early[0]()
		var failure *StoreError
		assert.ErrorAs(t, err, &failure)
		for _, f := range late {
			r, err := f()
			assert.NoError(t, err)
			assert.True(t, r.Allowed)
		}
		assert.Equal(t, 1, net.happened(loseRequest))
	})
}

// A large request goes to the store by itself and leaves the stock to small ones.
func TestLargeRequestGoesDirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(10)))
		allow(t, l, "k", 1)
		r := allow(t, l, "k", 50)
		assert.True(t, r.Allowed)
		assert.Equal(t, Direct, r.Source)
		assert.EqualValues(t, 49, r.Remaining)
		assert.Equal(t, Local, allow(t, l, "k", 9).Source)
		assert.Equal(t, 1, net.count("take"))

		allow(t, l, "k", 1) // 9 in stock, 30 in the store
		r = allow(t, l, "k", 35)
		assert.True(t, r.Allowed, "stock and store together cover it")
		assert.Equal(t, Fetched, r.Source)
		r = allow(t, l, "k", 5)
		assert.False(t, r.Allowed)
		assert.EqualValues(t, 4, r.Remaining)
		assert.True(t, allow(t, l, "k", 4).Allowed, "a refused large request takes nothing from a small one")
	})
}

// The deadline of stock counts from the sending of the request: a slow reply does
// not lengthen a window.
func TestDeadlineCountsFromSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		net := overNetwork(store, 40*time.Millisecond) // each way
		l := open(t, net, Limit{Tokens: 100, Window: 200 * time.Millisecond},
			WithBatch(Fixed(100)), WithFetchTimeout(time.Second))
		r := allow(t, l, "k", 1)
		require.Equal(t, 40*time.Millisecond, time.Until(r.Reset.Add(-120*time.Millisecond)))
		for begin := time.Now(); time.Since(begin) < time.Second; {
			time.Sleep(3 * time.Millisecond)
			at := time.Now()
			if r = allow(t, l, "k", 1); r.Source == Local {
				assert.True(t, at.Before(r.Reset), "%v spent at %v", r.Reset, at)
			}
		}
		assert.Positive(t, l.Stats().Expired)
	})
}

// A reply on whose way the window ended is followed by a fetch as soon as the next
// one can be open: who came a moment before a reset has its answer a moment after.
func TestReplyAtTheEndOfALongWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerHour(1))
		for range 20 { // by chance one may not have waited for long
			first := allow(t, l, "k", 1)
			time.Sleep(time.Until(first.Reset) - rtt*9/10)
			begun := time.Now()
			require.True(t, allow(t, l, "k", 1).Allowed)
			require.Less(t, time.Since(begun), 3*rtt)
			time.Sleep(2 * time.Hour)
		}
	})
}

// A network slower than the window is an error, not an endless loop.
func TestNetworkSlowerThanWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), 20*time.Millisecond)
		l := open(t, net, Limit{Tokens: 100, Window: 10 * time.Millisecond}, WithFetchTimeout(time.Second))
		_, err := l.Allow(context.Background(), "k")
		assert.ErrorIs(t, err, errTooSlow)
		assert.Equal(t, 3, net.count("sync"))
		assert.Zero(t, l.Stats().Spent)
	})
}

// A fetch that was told of a window just ending holds callers up until that is over,
// and not in the next window, which a direct call may have heard of first.
func TestFetchAtTheEndOfAWindowHoldsUpNobodyInTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), 10*time.Millisecond) // each way
		l := open(t, net, Limit{Tokens: 100, Window: 200 * time.Millisecond}, WithBatch(Fixed(10)))
		allow(t, l, "k", 10)
		time.Sleep(175 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 12*time.Millisecond)
		defer cancel()
		_, err := l.Allow(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(9 * time.Millisecond) // its fetch has come back, with tokens that are dead
		require.Positive(t, l.Stats().Expired)

		r := allow(t, l, "k", 50)
		require.Equal(t, Direct, r.Source)
		require.True(t, allow(t, l, "k", 1).Allowed)
	})
}

// A window never gives its tokens to the next one.
func TestStockDiesWithItsWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := open(t, store, PerSecond(100), WithBatch(Fixed(60)))
		for i := range 10 {
			allow(t, l, "k", 1)
			assert.EqualValues(t, 60, used(t, store, "k"))
			assert.EqualValues(t, 59, l.Stats().Held)
			time.Sleep(time.Second + time.Millisecond)
			assert.Zero(t, l.Stats().Held)
			assert.EqualValues(t, 59*(i+1), l.Stats().Expired)
			balance(t, l)
		}
	})
}

func takeOf(n int64) backend.TakeRequest {
	return backend.TakeRequest{Key: "k", Limit: PerMinute(100), Tokens: n}
}

// A caller that leaves just as it is served puts its tokens back, for the next.
func TestLeavingWinnerPutsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10), WithBatch(Fixed(5)))
		ctx, cancel := context.WithCancel(context.Background())
		e, err := l.entry("k")
		require.NoError(t, err)
		e.mu.Lock()
		p, err, again := e.enqueue(ctx, 3, false, l.clock.now())
		e.mu.Unlock()
		require.NoError(t, err)
		require.False(t, again)
		<-p.ready // it has won
		require.EqualValues(t, 3, l.Stats().Spent)
		cancel()
		e.leave(p)
		assert.Zero(t, l.Stats().Spent)
		assert.EqualValues(t, 5, l.Stats().Held)
		assert.Equal(t, Local, allow(t, l, "k", 5).Source)
	})
}

// A key is not evicted from under the callers that wait for it.
func TestNoEvictionWhileCallersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Minute)
		l := open(t, net, PerHour(10), WithIdle(time.Second), WithFetchTimeout(time.Hour))
		r := allow(t, l, "k", 1)
		assert.True(t, r.Allowed)
		assert.Equal(t, 1, net.count(""))
		assert.EqualValues(t, 1, l.Stats().Spent)
	})
}

// While tokens are on their way from a reply through the queue into the stock,
// no newcomer is refused for not seeing them.
func TestNoFalseRefusalBetweenReplyAndStock(t *testing.T) {
	for range 300 {
		const limit = 40
		l := open(t, memstore.New(), PerHour(limit), WithBatch(Ladder(1, 100)), WithFetchTimeout(time.Minute))
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 1000 {
					if !allow(t, l, "k", 1).Allowed {
						return
					}
					admitted.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, limit, admitted.Load())
	}
}

package reservoir

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// waiters start one after the other and append their index to the result when
// they are served.
func waiters(t *testing.T, l *Limiter, ctx context.Context, n int) (order func() []int, wg *sync.WaitGroup) {
	var mu sync.Mutex
	var got []int
	wg = new(sync.WaitGroup)
	for i := range n {
		wg.Go(func() {
			if err := l.Wait(ctx, "k"); err == nil {
				mu.Lock()
				got = append(got, i)
				mu.Unlock()
			}
		})
		synctest.Wait()
	}
	return func() []int {
		mu.Lock()
		defer mu.Unlock()
		return append([]int(nil), got...)
	}, wg
}

func TestWaitThroughResetsInOrder(t *testing.T) {
	defer chance.Seed(1)() // probes come at random
	for name, opt := range policies() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := overNetwork(memstore.New(), rtt/2)
				l := open(t, net, PerSecond(10), opt)
				begin := time.Now()
				order, wg := waiters(t, l, context.Background(), 35)
				time.Sleep(500 * time.Millisecond)
				assert.Len(t, order(), 10)
				wg.Wait()
				assert.InDelta(t, 3, time.Since(begin).Seconds(), 0.1, "in the fourth window")
				assert.ElementsMatch(t, seq(0, 10), order()[:10])
				assert.ElementsMatch(t, seq(10, 20), order()[10:20])
				assert.ElementsMatch(t, seq(20, 30), order()[20:30])
				assert.LessOrEqual(t, net.count(""), 4*(probes+3), "no herd: some calls at each reset, and probes")
			})
		})
	}
}

func seq(from, to int) (s []int) {
	for i := from; i < to; i++ {
		s = append(s, i)
	}
	return s
}

func TestWaitKnowsWhenItIsHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10))
		for allow(t, l, "k", 1).Allowed {
		}
		begin := time.Now()
		short, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		assert.ErrorIs(t, l.Wait(short, "k"), ErrDeadline)
		assert.ErrorIs(t, l.Wait(short, "k"), context.DeadlineExceeded)
		assert.Zero(t, time.Since(begin), "at once")

		// Behind ten others the next window is not enough either.
		long, cancel := context.WithTimeout(context.Background(), 90*time.Second)
		defer cancel()
		order, wg := waiters(t, l, context.Background(), 10)
		assert.ErrorIs(t, l.Wait(long, "k"), ErrDeadline)
		assert.Zero(t, time.Since(begin))
		wg.Wait()
		assert.ElementsMatch(t, seq(0, 10), order())
	})
}

// A waiter learns that it is hopeless also from the reply that says so.
func TestWaitLearnsThatItIsHopeless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := open(t, store, PerMinute(10)), open(t, overNetwork(store, rtt/2), PerMinute(10))
		for allow(t, a, "k", 1).Allowed {
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		assert.ErrorIs(t, b.Wait(ctx, "k"), ErrDeadline)
		assert.Equal(t, rtt, time.Since(begin))
	})
}

func TestCancelledWaiterFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10))
		for allow(t, l, "k", 1).Allowed {
		}
		ctx, cancel := context.WithCancel(context.Background())
		gone := make(chan error)
		go func() { gone <- l.WaitN(ctx, "k", 10) }()
		synctest.Wait()
		order, wg := waiters(t, l, context.Background(), 10)
		begin := time.Now()
		cancel()
		assert.ErrorIs(t, <-gone, context.Canceled)
		assert.Zero(t, time.Since(begin))
		wg.Wait()
		assert.Less(t, time.Since(begin), 61*time.Second, "in the next window")
		assert.Len(t, order(), 10)
	})
}

// Tokens that come back serve waiters before newcomers, and at once.
func TestRefundServesWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10))
		var all []Result
		for r := allow(t, l, "k", 1); r.Allowed; r = allow(t, l, "k", 1) {
			all = append(all, r)
		}
		order, wg := waiters(t, l, ctx, 2)
		begin := time.Now()
		require.NoError(t, l.Refund(ctx, "k", all[0]))
		require.NoError(t, l.Refund(ctx, "k", all[1]))
		wg.Wait()
		assert.Zero(t, time.Since(begin))
		assert.Len(t, order(), 2)
		assert.False(t, allow(t, l, "k", 1).Allowed)
	})
}

// A large waiter does not keep tokens from small requests that it cannot use.
func TestBlockedWaiterLetsSmallOnesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := open(t, overNetwork(memstore.New(), rtt/2), PerMinute(10))
		require.True(t, allow(t, l, "k", 6).Allowed)
		done := make(chan error)
		go func() { done <- l.WaitN(ctx, "k", 8) }()
		time.Sleep(10 * rtt)
		begin := time.Now()
		for range 4 {
			assert.True(t, allow(t, l, "k", 1).Allowed)
		}
		assert.False(t, allow(t, l, "k", 1).Allowed)
		assert.NoError(t, <-done)
		assert.Less(t, time.Since(begin), 61*time.Second, "and is served after the reset")
		assert.True(t, allow(t, l, "k", 2).Allowed)
		assert.False(t, allow(t, l, "k", 1).Allowed)
	})
}

// Who comes at the very instant of the reset, as a test on a virtual clock does,
// is served in the new window: the old one is not over for the store until then.
func TestAtTheInstantOfTheReset(t *testing.T) {
	for name, opt := range map[string]Option{"adaptive": WithBatch(Adaptive(1, 0)), "fixed": WithBatch(Fixed(3)), "direct": WithDirect()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := open(t, memstore.New(), PerMinute(10), opt)
				for range 5 {
					r := allow(t, l, "k", 10)
					assert.True(t, r.Allowed)
					time.Sleep(time.Until(r.Reset))
					_, err := l.Allow(context.Background(), "k")
					assert.NoError(t, err)
					time.Sleep(time.Minute + time.Second)
				}
			})
		})
	}
}

// A deadline as far away as time goes is no hurry.
func TestWaitWithAFarDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, memstore.New(), PerMinute(1), WithBatch(Fixed(1)))
		allow(t, l, "k", 1)
		require.False(t, allow(t, l, "k", 1).Allowed)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), math.MaxInt64)
		defer cancel()
		assert.NoError(t, l.Wait(ctx, "k"))
	})
}

// Among very many processes each one's turn to probe a long window may lie beyond
// all time. It does not come back as a time that is past.
func TestTurnsOfManyProcesses(t *testing.T) {
	month := Limit{Tokens: 10, Window: 30 * 24 * time.Hour}
	l := open(t, memstore.New(), month, WithBatch(Fixed(1)))
	allow(t, l, "k", 10)
	e := l.table.get("k")
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.win.Load()
	now := l.clock.now()
	for _, clients := range []int32{1, 100, 1 << 17, math.MaxInt32} {
		e.clients = clients
		for range 100 {
			e.hush(w, now)
			require.GreaterOrEqual(t, e.quiet, now, clients)
			require.LessOrEqual(t, e.quiet, w.ends.Load(), clients)
		}
	}
	assert.Equal(t, w.ends.Load(), e.quiet)
}

package reservoir

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// changing is a limit per minute for WithLimits that a test sets.
type changing struct{ atomic.Int64 }

func (c *changing) of(string) Limit { return PerMinute(c.Load()) }

func changingLimit(tokens int64) *changing {
	c := new(changing)
	c.Store(tokens)
	return c
}

// drain asks until refused and returns how many were admitted.
func drain(t *testing.T, l *Limiter) (n int64) {
	t.Helper()
	for allow(t, l, "k", 1).Allowed {
		n++
	}
	return n
}

// A limit that is raised in mid-window is there within a twentieth of it, though
// the key was refused; one that is lowered stops grants at once. Over two
// processes what is admitted comes to the new limit, or to what was charged.
func TestLimitChangesInMidWindow(t *testing.T) {
	for name, opt := range map[string]Option{"adaptive": WithBatch(Adaptive(1, 0)), "fixed": WithBatch(Fixed(10)), "direct": WithDirect()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := changingLimit(100)
				store := memstore.New()
				a := open(t, store, PerMinute(1), WithLimits(c.of), opt)
				b := open(t, store, PerMinute(1), WithLimits(c.of), opt)
				assert.EqualValues(t, 100, drain(t, a)+drain(t, b))
				c.Store(150)
				time.Sleep(time.Minute/probes + time.Second)
				assert.EqualValues(t, 50, drain(t, a)+drain(t, b))
				r := allow(t, a, "k", 1)
				assert.EqualValues(t, 150, r.Limit)
				assert.Zero(t, r.Remaining)
				c.Store(20)
				time.Sleep(time.Minute/probes + time.Second)
				assert.Zero(t, drain(t, a)+drain(t, b))
				time.Sleep(time.Until(r.Reset) + time.Second)
				assert.EqualValues(t, 20, drain(t, a)+drain(t, b), "the next window")
			})
		})
	}
}

// A limit that is lowered below what was charged admits no more than that.
func TestLimitLoweredWithStockAtHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := changingLimit(100)
		store := memstore.New()
		l := open(t, store, PerMinute(1), WithLimits(c.of), WithBatch(Fixed(30)))
		allow(t, l, "k", 1)
		require.EqualValues(t, 30, used(t, store, "k"))
		c.Store(10)
		assert.EqualValues(t, 29, drain(t, l), "charged before")
		assert.EqualValues(t, 30, used(t, store, "k"))
	})
}

// Who waits for more than a lowered limit is told, and the others are served.
func TestLimitLoweredUnderWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := changingLimit(100)
		l := open(t, memstore.New(), PerMinute(1), WithLimits(c.of))
		require.True(t, allow(t, l, "k", 100).Allowed)
		big, small := make(chan error, 1), make(chan error, 1)
		go func() { big <- l.WaitN(context.Background(), "k", 50) }()
		synctest.Wait()
		go func() { small <- l.WaitN(context.Background(), "k", 5) }()
		synctest.Wait()
		c.Store(10)
		assert.ErrorIs(t, <-big, ErrExceedsLimit)
		assert.NoError(t, <-small)
	})
}

// Where that leaves nobody who waits, the key has no traffic any more.
func TestLimitLoweredLeavesNoTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := changingLimit(100)
		l := open(t, memstore.New(), PerMinute(1), WithLimits(c.of), WithDirect())
		require.True(t, allow(t, l, "k", 100).Allowed)
		big := make(chan error, 1)
		go func() { big <- l.WaitN(context.Background(), "k", 50) }()
		synctest.Wait()
		e := l.table.get("k")
		require.NotSame(t, &calm, e.traffic)
		c.Store(10)
		require.NoError(t, e.relimit()) // as a direct call does
		assert.ErrorIs(t, <-big, ErrExceedsLimit)
		e.mu.Lock()
		defer e.mu.Unlock()
		assert.Same(t, &calm, e.traffic)
	})
}

// A limit that goes out of range is the error of the key's next fetch, of nobody
// who has stock, and not for good.
func TestLimitGoesBad(t *testing.T) {
	for name, opt := range map[string]Option{"fixed": WithBatch(Fixed(2)), "direct": WithDirect()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := changingLimit(100)
				l := open(t, memstore.New(), PerMinute(1), WithLimits(c.of), opt, WithFailure(FailOpen))
				allow(t, l, "k", 1)
				c.Store(-1)
				if name == "fixed" {
					assert.Equal(t, Local, allow(t, l, "k", 1).Source)
				}
				_, err := l.Allow(context.Background(), "k")
				assert.ErrorIs(t, err, ErrLimit)
				c.Store(100)
				assert.True(t, allow(t, l, "k", 1).Allowed)
			})
		})
	}
}

// A request that was too large before the limit was raised is not too large for
// ever, also where all of the old limit is used.
func TestRaisedLimitServesLargerRequests(t *testing.T) {
	for name, opt := range map[string]Option{"adaptive": WithBatch(Adaptive(1, 0)), "fixed": WithBatch(Fixed(1)), "direct": WithDirect()} {
		for _, before := range []int64{1, 10} {
			t.Run(fmt.Sprintf("%s/%d used", name, before), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := changingLimit(10)
					l := open(t, memstore.New(), PerMinute(1), WithLimits(c.of), opt)
					for range before {
						allow(t, l, "k", 1)
					}
					assert.Equal(t, before < 10, allow(t, l, "k", 1).Allowed)
					_, err := l.AllowN(context.Background(), "k", 50)
					require.ErrorIs(t, err, ErrExceedsLimit)
					c.Store(100)
					assert.True(t, allow(t, l, "k", 50).Allowed)
				})
			})
		}
	}
}

// A reply that was asked for under the limit as it was does not speak of what has been
// raised since.
func TestRaisedLimitBehindAnOlderFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := changingLimit(100)
		net := overNetwork(memstore.New(), rtt/2)
		l := open(t, net, PerMinute(1), WithLimits(c.of), WithBatch(Fixed(10)))
		older := callers(t, l, context.Background(), 1)
		c.Store(1000)
		r, err := l.AllowN(context.Background(), "k", 150)
		require.NoError(t, err)
		assert.True(t, r.Allowed)
		_, err = older[0]()
		require.NoError(t, err)
	})
}

// When a waiter is sent away because a limit was lowered, the next one has what was
// reserved for it.
func TestLoweredLimitServesTheNextWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := changingLimit(100)
		l := open(t, memstore.New(), PerHour(1), WithLimits(func(string) Limit { return PerHour(c.Load()) }), WithBatch(Fixed(30)))
		allow(t, l, "k", 90)
		require.False(t, allow(t, l, "k", 11).Allowed)
		large, small := make(chan error, 1), make(chan error, 1)
		go func() { large <- l.WaitN(context.Background(), "k", 50) }()
		synctest.Wait()
		go func() { small <- l.WaitN(context.Background(), "k", 5) }()
		synctest.Wait()
		require.Empty(t, small)
		c.Store(40)
		begin := time.Now()
		_, err := l.AllowN(context.Background(), "k", 101)
		require.ErrorIs(t, err, ErrExceedsLimit)
		require.ErrorIs(t, <-large, ErrExceedsLimit)
		require.NoError(t, <-small)
		assert.Zero(t, time.Since(begin))
	})
}

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

	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// From stock a group costs no store call and no allocation, and so does its
// refusal; the answer is that of the limit which has least left.
func TestGroupFromStock(t *testing.T) {
	net := overNetwork(memstore.New(), 0)
	user := open(t, net, PerHour(10_000), WithBatch(Fixed(5000)))
	org := open(t, net, PerHour(100_000), WithBatch(Fixed(50_000)))
	all := open(t, net, PerHour(1_000_000), WithBatch(Fixed(500_000)))
	g := NewGroup(user, org, all)
	ctx := context.Background()
	_, err := g.Allow(ctx, "user", "org", "all")
	require.NoError(t, err)
	calls := net.count("")
	require.Equal(t, 3, calls)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if r, err := g.Allow(ctx, "user", "org", "all"); err != nil || !r.Allowed || r.Limiter != 0 {
			t.Error(r, err)
		}
	}))
	assert.Equal(t, calls, net.count(""))
	for _, l := range g.limiters {
		assert.EqualValues(t, 102, l.Stats().Spent)
	}
	for allow(t, org, "org", 1000).Allowed {
	}
	for allow(t, org, "org", 1).Allowed {
	}
	calls = net.count("")
	spent := user.Stats().Spent
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if r, err := g.Allow(ctx, "user", "org", "all"); err != nil || r.Allowed || r.Limiter != 1 || r.RetryAfter <= 0 {
			t.Error(r, err)
		}
	}))
	assert.Equal(t, calls, net.count(""))
	assert.Equal(t, spent, user.Stats().Spent)
	assert.EqualValues(t, 102, all.Stats().Spent)
}

// A refusal by the last that only the store knows of leaves the first two as they
// were, counted in a real Redis.
func TestGroupRefusalChargesNobody(t *testing.T) {
	server := redistest.Start(t)
	store := redisstore.New(server.Client())
	for name, opt := range map[string]Option{"batches": WithBatch(Fixed(10)), "direct": WithDirect()} {
		t.Run(name, func(t *testing.T) {
			first := open(t, store, PerHour(100), opt, WithFetchTimeout(time.Minute))
			second := open(t, store, PerHour(100), opt, WithFetchTimeout(time.Minute))
			last := open(t, store, PerHour(10), opt, WithFetchTimeout(time.Minute))
			g := NewGroup(first, second, last)
			keys := []string{name + " first", name + " second", name + " last"}
			other := open(t, store, PerHour(10), WithDirect(), WithFetchTimeout(time.Minute))
			require.True(t, allow(t, other, keys[2], 9).Allowed)

			r, err := g.Allow(t.Context(), keys...)
			require.NoError(t, err)
			require.True(t, r.Allowed)
			before := []int64{used(t, store, keys[0]), used(t, store, keys[1])}
			r, err = g.AllowN(t.Context(), 2, keys...)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			assert.Equal(t, 2, r.Limiter)
			assert.Equal(t, before, []int64{used(t, store, keys[0]), used(t, store, keys[1])})
			for i, l := range g.limiters[:2] {
				assert.EqualValues(t, 1, l.Stats().Spent-l.Stats().Refunded, i)
			}
		})
	}
}

// Limits that must ask the store do so at the same time.
func TestGroupAsksAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), rtt/2)
		var limiters []*Limiter
		keys := []string{"a", "b", "c", "d", "e", "f"}
		for range keys {
			limiters = append(limiters, open(t, net, PerMinute(10)))
		}
		g := NewGroup(limiters...)
		begin := time.Now()
		r, err := g.Allow(t.Context(), keys...)
		require.NoError(t, err)
		assert.True(t, r.Allowed)
		assert.Equal(t, rtt, time.Since(begin))
		require.NoError(t, g.Refund(t.Context(), r, keys...))
		for _, l := range limiters {
			assert.Zero(t, l.Stats().Spent-l.Stats().Refunded)
		}
	})
}

// After an error none is charged either.
func TestGroupErrorChargesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		well, sick := overNetwork(memstore.New(), 0), overNetwork(memstore.New(), 0)
		sick.set(always(loseRequest))
		a, b := open(t, well, PerMinute(10)), open(t, sick, PerMinute(10))
		g := NewGroup(a, b)
		_, err := g.Allow(t.Context(), "a", "b")
		var failure *StoreError
		require.ErrorAs(t, err, &failure)
		assert.Zero(t, a.Stats().Spent-a.Stats().Refunded)
		_, err = g.Allow(t.Context(), "a")
		require.ErrorIs(t, err, ErrOption)
		_, err = g.AllowN(t.Context(), 0, "a", "b")
		require.ErrorIs(t, err, ErrTokens)
		_, err = g.AllowN(t.Context(), 11, "a", "b")
		require.ErrorIs(t, err, ErrExceedsLimit)
		require.ErrorIs(t, g.Refund(t.Context(), GroupResult{}, "a"), ErrOption)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = g.Allow(ctx, "a", "b")
		require.ErrorIs(t, err, context.Canceled)
		assert.Zero(t, a.Stats().Spent-a.Stats().Refunded)
	})
}

// Under a crowd exactly as many pass as the tightest limit has, and what each
// limit was charged is what passed.
func TestGroupIsAllOrNothing(t *testing.T) {
	store := memstore.New()
	wide := open(t, store, PerHour(10_000))
	tight := open(t, store, PerHour(777))
	g := NewGroup(wide, tight)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 200 {
				r, err := g.Allow(t.Context(), "wide", "tight")
				assert.NoError(t, err)
				if r.Allowed {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, 777, passed.Load())
	for _, l := range g.limiters {
		s := l.Stats()
		assert.EqualValues(t, 777, s.Spent-s.Refunded)
	}
}

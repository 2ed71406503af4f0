package reservoir_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// A group that asks for more of one limit than it has can never pass: the same limiter and the
// same key, several times. It is an error before anything is charged, whatever memory knows, and a
// Wait ends at once. As much as the limit has passes.
func TestGroupOfOneLimitTwice(t *testing.T) {
	for name, opts := range map[string][]reservoir.Option{
		"batches": nil, "direct": {reservoir.WithDirect()}, "no memory": {reservoir.WithMaxKeys(0)},
		"limits":              {changingLimit(10).option()},
		"limits without room": {changingLimit(10).option(), reservoir.WithMaxKeys(0)},
	} {
		for _, others := range []int{1, 9} { // up to four limits, and more
			inBubble(t, fmt.Sprint(name, "/", others), func(t *testing.T) {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerMinute(10), opts...)
				limiters, keys := []*reservoir.Limiter{l, l}, []string{"k", "k"}
				for i := range others {
					limiters = append(limiters, l)
					keys = append(keys, fmt.Sprint(i))
				}
				g := reservoir.NewGroup(limiters...)
				cost := func(a, b int64) []int64 { return append([]int64{a, b}, make([]int64, others)...) }
				begin := time.Now()
				for range 3 { // the key is in memory then
					for _, c := range [][]int64{cost(6, 5), cost(1, 10), cost(math.MaxInt64, math.MaxInt64)} {
						_, err := g.AllowEach(bg, c, keys...)
						require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
						_, err = g.WaitEach(bg, c, keys...)
						require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
					}
					_, err := g.AllowN(bg, 6, keys...)
					require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
				}
				require.Less(t, time.Since(begin), time.Second)
				require.Equal(t, l.Stats().Spent, l.Stats().Refunded)
				if name != "limits" && name != "limits without room" {
					require.Zero(t, net.Count(""), "nothing is charged")
				}
				require.Zero(t, used(t, net, "k")-l.Stats().Held)
				time.Sleep(time.Minute)
				r, err := g.WaitEach(bg, cost(4, 6), keys...)
				require.NoError(t, err)
				require.True(t, r.Allowed)
				r, err = g.AllowN(bg, 5, append([]string{"a", "b"}, keys[2:]...)...)
				require.True(t, err == nil && r.Allowed)
			})
		}
	}
}

// The number that a group can never have is the present limit's, and of other limiters no sum is made.
func TestGroupOfOneLimitTwiceWhoseLimitChanges(t *testing.T) {
	for name, opts := range map[string][]reservoir.Option{"batches": nil, "direct": {reservoir.WithDirect()}} {
		inBubble(t, name, func(t *testing.T) {
			net, limit := testnet.Far(time.Millisecond), changingLimit(10)
			l := open(t, net, reservoir.PerMinute(10), append(opts, limit.option())...)
			g := reservoir.NewGroup(l, l)
			r, err := g.AllowN(bg, 5, "k", "k")
			require.True(t, err == nil && r.Allowed)
			limit.Store(20)
			r, err = g.AllowN(bg, 6, "k", "k")
			require.NoError(t, err, "the limit was raised")

			var waited error
			go func() { _, waited = g.WaitEach(bg, []int64{10, 10}, "k", "k") }()
			time.Sleep(time.Second)
			synctest.Wait()
			require.NoError(t, waited)
			limit.Store(15)
			time.Sleep(time.Minute)
			synctest.Wait()
			require.ErrorIs(t, waited, reservoir.ErrExceedsLimit, "it was lowered under a waiter")
			require.NoError(t, err)

			limit.Store(20)
			time.Sleep(time.Minute)
			other := open(t, net, reservoir.PerMinute(20), reservoir.WithName("other"))
			r, err = reservoir.NewGroup(l, other).AllowN(bg, 20, "k", "k")
			require.True(t, err == nil && r.Allowed)
		})
	}
	for name, opt := range map[string]reservoir.Option{
		"shadow":    reservoir.WithShadow(),
		"unlimited": reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.Unlimited() }),
		"blocked":   reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.Limit{} }),
	} {
		inBubble(t, name, func(t *testing.T) {
			l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), opt)
			for range 3 {
				r, err := reservoir.NewGroup(l, l).AllowN(bg, 60, "k", "k")
				require.NoError(t, err)
				require.Equal(t, name != "blocked", r.Allowed)
			}
		})
	}
}

// What is wrong with a request to a group is said whatever the limits say: also if one of them is
// used up, in memory or in the store, and wherever the fault is.
func TestFaultsOfAGroupComeFirst(t *testing.T) {
	for _, knows := range []bool{true, false} {
		for name, opts := range map[string][]reservoir.Option{"one limit": nil, "limits": {changingLimit(10).option()}} {
			inBubble(t, fmt.Sprint(name, "/", knows), func(t *testing.T) {
				net := testnet.Far(time.Millisecond)
				full := open(t, net, reservoir.PerMinute(10), reservoir.WithName("full"))
				l := open(t, net, reservoir.PerMinute(10), opts...)
				require.EqualValues(t, 10, drain(t, full, "k", 1))
				if knows {
					allow(t, l, "k", 1)
				}
				spent := l.Stats().Spent
				for _, c := range []struct {
					cost int64
					key  string
					want error
				}{
					{-1, "k", reservoir.ErrTokens}, {math.MinInt64, "k", reservoir.ErrTokens}, {11, "k", reservoir.ErrExceedsLimit}, {1, "", reservoir.ErrKey},
				} {
					short, cancel := context.WithTimeout(bg, time.Minute)
					for _, order := range []bool{true, false} {
						g, costs, keys := reservoir.NewGroup(full, l), []int64{1, c.cost}, []string{"k", c.key}
						if !order {
							g, costs, keys = reservoir.NewGroup(l, full), []int64{c.cost, 1}, []string{c.key, "k"}
						}
						r, err := g.AllowEach(short, costs, keys...)
						require.ErrorIs(t, err, c.want)
						require.False(t, r.Allowed)
						begin := time.Now()
						_, err = g.WaitEach(short, costs, keys...)
						require.ErrorIs(t, err, c.want)
						require.Less(t, time.Since(begin), time.Second)
					}
					cancel()
				}
				_, err := reservoir.NewGroup(full, l).AllowN(bg, 0, "k", "k")
				require.ErrorIs(t, err, reservoir.ErrTokens)
				r, err := reservoir.NewGroup(full, l).AllowEach(bg, []int64{1, 0}, "k", "")
				require.True(t, err == nil && !r.Allowed, "a limit that costs nothing is not asked")
				require.Equal(t, spent, l.Stats().Spent)
			})
		}
	}
}

// A group of one limiter many times allocates for each limit what a small one does.
func TestAllocationsOfALargeGroup(t *testing.T) {
	limits := reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.PerHour(1_000_000) })
	l := open(t, testnet.Far(0), reservoir.PerHour(1_000_000), reservoir.WithBatch(reservoir.Fixed(500_000)), patient, reservoir.WithName("name"), limits)
	for range 2 {
		allow(t, l, "k", 1)
	}
	allocs := func(n int) float64 {
		limiters, keys := make([]*reservoir.Limiter, n), make([]string, n)
		for i := range n {
			limiters[i], keys[i] = l, "k"
		}
		g := reservoir.NewGroup(limiters...)
		return testing.AllocsPerRun(20, func() {
			r, err := g.Allow(bg, keys...)
			assert.True(t, err == nil && r.Allowed)
		})
	}
	assert.Zero(t, allocs(4))
	assert.LessOrEqual(t, allocs(400), 20*max(allocs(40), 1))
}

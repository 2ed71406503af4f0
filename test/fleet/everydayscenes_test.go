package fleet

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

const apart = time.Millisecond // one way to the store

// scene is what came of a limit: the tokens spent at the first refusal or, in a storm, at
// its end; and those spent in all while demand went on.
type scene struct{ first, admitted int64 }

// TestMixedFleet: one process makes direct calls beside 19 that batch. The limit is used up, and before a refusal nearly
// all of it.
func TestMixedFleet(t *testing.T) {
	for _, tokens := range []int64{60, 300, 1000} {
		var first float64
		for i := range 10 {
			s := besideBatches(t, tokens, *seed+uint64(i))
			require.Equal(t, tokens, s.admitted, "limit %d", tokens)
			first += sim.Ratio(s.first, tokens) / 10
		}
		require.GreaterOrEqual(t, first, 0.995, "limit %d", tokens)
	}
}

// TestStorm: many callers of a cold key at once get the whole limit, also in a group with other limits.
func TestStorm(t *testing.T) {
	for _, also := range [][]int64{nil, {100}, {150}, {10_000}} {
		require.Equal(t, scene{100, 100}, storm(t, also...), "also %v", also)
	}
}

// besideBatches has one process make direct calls, and 19 batch. Half as many requests more
// come than the limit has tokens.
func besideBatches(t *testing.T, tokens int64, seed uint64) (s scene) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net, r := testnet.Far(apart), random(seed, 3)
		var all []*reservoir.Limiter
		for i := range 20 {
			option := byDefault
			if i == 0 {
				option = reservoir.WithDirect()
			}
			l, err := reservoir.New(net.Port(i, 0), reservoir.Limit{Tokens: tokens, Window: time.Minute}, option)
			require.NoError(t, err)
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			all = append(all, l)
		}
		s.first = -1
		for range tokens * 3 / 2 {
			time.Sleep(10 * time.Millisecond)
			l := all[0]
			if r.IntN(2) > 0 {
				l = all[1+r.IntN(19)]
			}
			switch got, err := l.Allow(context.Background(), "shared"); {
			case err != nil:
				require.NoError(t, err)
			case got.Allowed:
				s.admitted++
			case s.first < 0:
				s.first = s.admitted
			}
		}
	})
	return s
}

// storm has 720 requests come at once to groups at three processes, and 99 more within the
// next second. The groups have a limit of 100 an hour, and others as large as also says. No
// process knows a window yet.
func storm(t *testing.T, also ...int64) (s scene) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		net, groups := testnet.Far(apart), []*reservoir.Group(nil)
		var keys []string
		for i := range 3 {
			var limiters []*reservoir.Limiter
			keys = nil
			for j, tokens := range append([]int64{100}, also...) {
				keys = append(keys, fmt.Sprint("key-", j))
				l, err := reservoir.New(net.Port(i, 0), reservoir.Limit{Tokens: tokens, Window: time.Hour})
				require.NoError(t, err)
				t.Cleanup(func() { _ = l.Close(context.Background()) })
				limiters = append(limiters, l)
			}
			groups = append(groups, reservoir.NewGroup(limiters...))
		}
		var admitted atomic.Int64
		ask := func(each int) {
			var asking sync.WaitGroup
			for _, g := range groups {
				for range each {
					asking.Go(func() {
						if r, err := g.Allow(context.Background(), keys...); err == nil && r.Allowed {
							admitted.Add(1)
						}
					})
				}
			}
			asking.Wait()
		}
		ask(240)
		s.first = admitted.Load()
		for range 11 {
			time.Sleep(90 * time.Millisecond)
			ask(3)
		}
		s.admitted = admitted.Load()
	})
	return s
}

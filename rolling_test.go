package reservoir_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/invariant"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// What a rolling limit promises, and what it costs. The judges know nothing of buckets, only of times and tokens.

// unused are the ways in which tokens that were charged turn out not to be used. Each charges n tokens and returns how many of them were
// used.
var unused = map[string]func(t *testing.T, net *testnet.Network, l *reservoir.Limiter, n int64) (used int64){
	"refunded": func(t *testing.T, _ *testnet.Network, l *reservoir.Limiter, n int64) int64 {
		var results []reservoir.Result
		for range n {
			r := allow(t, l, "k", 1)
			require.True(t, r.Allowed)
			results = append(results, r)
		}
		for _, r := range results {
			require.NoError(t, l.Refund(bg, r))
		}
		return 0
	},
	"settled": func(t *testing.T, _ *testnet.Network, l *reservoir.Limiter, n int64) int64 {
		var results []reservoir.Result
		for range n / 20 {
			r := allow(t, l, "k", 20)
			require.True(t, r.Allowed)
			results = append(results, r)
		}
		time.Sleep(time.Second)
		for _, r := range results {
			require.NoError(t, l.Settle(bg, r, 2))
		}
		return n / 20 * 2
	},
	"given up": func(t *testing.T, _ *testnet.Network, l *reservoir.Limiter, n int64) int64 {
		crowd(int(n), func(int) {
			ctx, cancel := context.WithTimeout(bg, rtt/4)
			defer cancel()
			_, err := l.Allow(ctx, "k")
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
		return 0
	},
	"a group's": func(t *testing.T, net *testnet.Network, l *reservoir.Limiter, n int64) int64 {
		other, mine := open(t, net, reservoir.PerHour(1)), open(t, net, reservoir.PerHour(1))
		g := reservoir.NewGroup(l, mine)
		for i := range n {
			full := fmt.Sprintf("%p %d", l, i)
			require.True(t, allow(t, other, full, 1).Allowed)
			r, err := g.Allow(bg, "k", full)
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Equal(t, 1, r.Limiter)
		}
		return 0
	},
}

// TestRollingUnusedTokens: tokens that were charged and not used can be used by another process, soon and in all of the window, and
// so can all of the limit later.
func TestRollingUnusedTokens(t *testing.T) {
	for what, leave := range unused {
		for _, c := range []struct {
			tokens    int64
			processes int
		}{{1000, 1}, {60, 3}} {
			for how, opt := range twoWays {
				for _, later := range []time.Duration{4 * time.Second, 39 * time.Second, 95 * time.Second} {
					inBubble(t, fmt.Sprintf("%s/%d/%s/%v", what, c.tokens, how, later), func(t *testing.T) {
						net, limit := testnet.Far(rtt/2), reservoir.PerMinute(c.tokens).Rolling()
						all := fleetOn(t, c.processes+1, net, limit, opt)
						used := int64(0)
						for _, l := range all[:c.processes] {
							used += leave(t, net, l, c.tokens/int64(c.processes))
						}
						time.Sleep(later)
						if later > time.Minute {
							used = 0
						}
						got := drain(t, all[c.processes], "k", 1)
						t.Logf("%d of %d", got, c.tokens-used)
						assert.Equal(t, c.tokens-used, got)
					})
				}
			}
		}
	}
}

// TestRollingWaitersComeInTurn: eight processes wait for the eight tokens of each of many keys. Who looks whether something has come
// back, just when a token is free that was promised to another, does not take it, or nobody would come for its own, and the last one
// would wait for a whole window more.
func TestRollingWaitersComeInTurn(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		keys, processes := 3000, 8
		if invariant.Enabled { // the race detector takes its time
			keys = 300
		}
		net, limit := testnet.Far(rtt/2), reservoir.PerMinute(int64(processes)).Rolling()
		first := open(t, net.Port(99, 0), limit)
		for range processes {
			for i := range keys {
				require.True(t, allow(t, first, fmt.Sprint(i), 1).Allowed)
			}
			time.Sleep(4 * time.Second)
		}
		all := fleetOn(t, processes, net, limit)
		crowd(keys*processes, func(i int) {
			ctx, cancel := context.WithTimeout(bg, 64*time.Second)
			defer cancel()
			_, err := all[i%processes].Wait(ctx, fmt.Sprint(i/processes))
			assert.NoError(t, err)
		})
	})
}

// TestRollingWaits: whoever waits is served when a log of all charges would serve it, or at most a twentieth of the window later, and
// nobody is told too early that its deadline cannot be met.
func TestRollingWaits(t *testing.T) {
	const waiters = 8
	wait := func(t *testing.T, all []*reservoir.Limiter, n int64, timeout time.Duration) (served []time.Duration) {
		var mu sync.Mutex
		start := time.Now()
		crowd(waiters, func(i int) {
			ctx, cancel := context.WithTimeout(bg, timeout)
			defer cancel()
			_, err := all[i%len(all)].WaitN(ctx, "k", n)
			mu.Lock()
			defer mu.Unlock()
			if assert.NoError(t, err, "after %v", time.Since(start)) {
				served = append(served, time.Since(start))
			}
		})
		t.Log(served)
		slices.Sort(served)
		return served
	}
	for _, processes := range []int{1, waiters} {
		inBubble(t, fmt.Sprintf("some are free/%d", processes), func(t *testing.T) {
			net, limit := testnet.Far(rtt/2), reservoir.PerMinute(60).Rolling()
			require.True(t, allow(t, open(t, net.Port(99, 0), limit), "k", 50).Allowed)
			for i, at := range wait(t, fleetOn(t, processes, net, limit), 2, 65*time.Second) {
				if i < 5 {
					assert.Less(t, at, time.Second)
				} else {
					assert.Less(t, at, 64*time.Second)
				}
			}
		})
		inBubble(t, fmt.Sprintf("one by one/%d", processes), func(t *testing.T) {
			net, limit := testnet.Far(rtt/2), reservoir.PerMinute(waiters).Rolling()
			for l := open(t, net.Port(99, 0), limit); allow(t, l, "k", 1).Allowed; time.Sleep(4 * time.Second) {
			}
			served := wait(t, fleetOn(t, processes, net, limit), 1, 95*time.Second)
			require.Len(t, served, waiters)
			for i, at := range served {
				free := time.Minute - time.Duration(waiters-i)*4*time.Second
				assert.Greater(t, at, free-rtt)
				assert.Less(t, at, free+3*time.Second+500*time.Millisecond)
			}
		})
	}
}

// twoWays are the ways to ask for tokens of a rolling limit that differ most.
var twoWays = map[string]reservoir.Option{"adaptive": reservoir.WithBatch(1, 0), "direct": reservoir.WithDirect()}

// TestRollingResetOfAResult: Reset says when all of the limit is free again.
func TestRollingResetOfAResult(t *testing.T) {
	how := everyPolicy()
	how["no room"] = reservoir.WithMaxKeys(0)
	inBubbles(t, "", how, func(t *testing.T, _ string, opt reservoir.Option) {
		limit := reservoir.PerMinute(100).Rolling()
		l := open(t, testnet.Far(rtt/2), limit, opt)
		time.Sleep(1700 * time.Millisecond)
		for range 60 {
			require.True(t, allow(t, l, "k", 1).Allowed)
			time.Sleep(500 * time.Millisecond)
		}
		drain(t, l, "k", 1)
		r := allow(t, l, "k", 1)
		require.False(t, r.Allowed)
		require.LessOrEqual(t, r.RetryAfter, 64*time.Second)
		time.Sleep(r.RetryAfter + 3*time.Microsecond)
		require.True(t, allow(t, l, "k", 1).Allowed)
		r = allow(t, l, "k", 1)
		time.Sleep(time.Until(r.Reset))
		require.EqualValues(t, 100, drain(t, l, "k", 1))
	})
}

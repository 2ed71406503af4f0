package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// What a rolling limit promises, and what it costs. The judges know nothing of buckets, only of times and tokens.

// spends is a list of admissions.
type spends struct {
	sync.Mutex
	all     []spend
	refused []time.Time
}

type spend struct {
	at   time.Time
	used int64
}

func (s *spends) add(r reservoir.Result, used int64) {
	s.Lock()
	defer s.Unlock()
	if r.Allowed {
		s.all = append(s.all, spend{time.Now(), used})
	} else {
		s.refused = append(s.refused, time.Now())
	}
}

// most is the largest number of tokens used in any interval of a length.
func (s *spends) most(length time.Duration) (most int64) {
	from, n := 0, int64(0)
	for _, x := range s.all { // in order, because they were added in it
		n += x.used
		for x.at.Sub(s.all[from].at) >= length {
			n -= s.all[from].used
			from++
		}
		most = max(most, n)
	}
	return most
}

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

// TestRollingStockOfWhoLeaves: a process holds much of a limit, and is closed, or forgets the key. The next one gets all of it at once.
func TestRollingStockOfWhoLeaves(t *testing.T) {
	for what, leave := range map[string]func(l *reservoir.Limiter){
		"Close":    func(l *reservoir.Limiter) { _ = l.Close(bg) },
		"eviction": func(*reservoir.Limiter) {},
	} {
		for _, after := range []time.Duration{5 * time.Second, 30 * time.Second, 50 * time.Second} {
			inBubble(t, fmt.Sprint(what, "/", after), func(t *testing.T) {
				net, limit, idle := testnet.Far(rtt/2), reservoir.PerMinute(500).Rolling(), time.Hour
				if what == "eviction" {
					idle = after / 3
				}
				l := open(t, net.Port(0, 0), limit, reservoir.WithFixedBatch(500), reservoir.WithIdle(idle))
				allow(t, l, "k", 1)
				require.EqualValues(t, 499, l.Stats().Held)
				begun := time.Now()
				time.Sleep(after)
				for leave(l); l.Stats().Held > 0; time.Sleep(time.Second) {
					require.Less(t, time.Since(begun), 2*after)
				}
				got := drain(t, open(t, net.Port(1, 0), limit), "k", 1)
				t.Logf("%d of 499, %v after they were granted", got, time.Since(begun).Round(time.Second))
				assert.EqualValues(t, 499, got)
			})
		}
	}
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

// TestRollingAfterAnOutage: what a failure policy has admitted is over and done with. When the store is back, all of the limit is there,
// whatever has become of the calls.
func TestRollingAfterAnOutage(t *testing.T) {
	for what, policy := range map[string]reservoir.Option{"open": reservoir.WithFailOpen(), "local": reservoir.WithFailLocal(0.1)} {
		for how, opt := range twoWays {
			for name, fault := range map[string]testnet.Fault{"refused": testnet.Refuse, "request lost": testnet.LoseRequest, "reply lost": testnet.LoseReply, "late": testnet.ArriveLate} {
				for _, known := range []bool{false, true} {
					inBubble(t, fmt.Sprintf("%s/%s/%s/known=%t", what, how, name, known), func(t *testing.T) {
						net, limit := testnet.Far(rtt/2), reservoir.PerMinute(1000).Rolling()
						all := fleetOn(t, 2, net, limit, opt, policy)
						if known {
							require.NoError(t, all[0].Refund(bg, allow(t, all[0], "k", 10)))
							time.Sleep(10 * time.Second) // they go back
						}
						net.Always(fault)
						r := allow(t, all[0], "k", 100)
						require.True(t, r.Allowed)
						require.Equal(t, reservoir.Fallback, r.Source)
						require.EqualValues(t, 100, all[0].Stats().Overdrawn)
						require.Positive(t, net.Happened(fault))
						repair(t, all[0], net, "k", 1)
						time.Sleep(5 * time.Second)
						got := drain(t, all[1], "k", 1)
						t.Logf("%d of 999", got)
						assert.EqualValues(t, 999, got)
					})
				}
			}
		}
	}
}

// twoWays are the ways to ask for tokens of a rolling limit that differ most.
var twoWays = map[string]reservoir.Option{"adaptive": reservoir.WithBatch(1, 0), "direct": reservoir.WithDirect()}

// TestRollingReset: after a Reset all processes admit all of the limit at once, whether they refused, held stock or have a Wait in line, and
// no more than that in a window.
func TestRollingReset(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net, limit := testnet.Far(rtt/2), reservoir.PerHour(600).Rolling()
		all := fleetOn(t, 4, net, limit, opt)
		old := allow(t, all[3], "k", 1)
		exhaust(t, all[:3], "k")
		require.False(t, allow(t, all[1], "k", 1).Allowed)
		waited := make(chan time.Time, 1)
		go func() {
			assert.NoError(t, waitFor(bg, all[2], "k", 1))
			waited <- time.Now()
		}()
		synctest.Wait()
		require.NoError(t, all[0].Reset(bg, "k"))
		reset := time.Now()
		time.Sleep(5 * rtt)
		require.NoError(t, all[3].Refund(bg, old), "it is void")
		fresh := int64(0)
		for range limit.Tokens {
			for _, l := range all {
				if allow(t, l, "k", 1).Allowed {
					fresh++
				}
			}
		}
		require.LessOrEqual(t, (<-waited).Sub(reset), 5*rtt)
		require.Equal(t, limit.Tokens-1, fresh)
		require.EqualValues(t, limit.Tokens, usedOf(t, net, "k", limit))
	})
}

// TestRollingShadow: requests above a limit in shadow pass, and are not charged.
func TestRollingShadow(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net, limit := testnet.Far(rtt/2), inShadow(reservoir.PerMinute(30).Rolling())
		l := open(t, net, limit, opt)
		for i := range 50 {
			r := allow(t, l, "k", 1)
			require.True(t, r.Allowed)
			require.Equal(t, i >= 30, r.Shadowed)
		}
		require.NoError(t, waitFor(bg, l, "k", 1), "nobody waits")
		s := l.Stats()
		require.EqualValues(t, []int64{30, 21, 21}, []int64{s.Spent, s.Denied, s.Shadowed})
		require.EqualValues(t, 30, used(t, net, "k"))
	})
}

// TestRollingGroup: a rolling and a fixed limit in a group: a request is charged to both or to none, and waits for both.
func TestRollingGroup(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(rtt / 2)
		rolling, fixed := reservoir.PerMinute(20).Rolling(), reservoir.PerHour(35)
		both := []*reservoir.Limiter{open(t, net, rolling, opt), open(t, net, fixed, opt)}
		g := reservoir.NewGroup(both...)
		admitted := 0
		for range 30 {
			r, err := g.Allow(bg, "k", "k")
			require.NoError(t, err)
			if r.Allowed {
				admitted++
			} else {
				require.Zero(t, r.Limiter, "the rolling one refuses")
			}
		}
		require.Equal(t, 20, admitted)
		start := time.Now()
		r, err := g.Wait(bg, "k", "k")
		require.NoError(t, err)
		require.Less(t, time.Since(start), 94*time.Second)
		require.NoError(t, g.Settle(bg, r, []int64{0, 1}), "the rolling one is not used")
		time.Sleep(35 * time.Second)
		require.EqualValues(t, 14, func() (n int64) { // what is left of the fixed one
			for {
				if r, err := g.Allow(bg, "k", "k"); err != nil || !r.Allowed {
					require.NoError(t, err)
					require.Equal(t, 1, r.Limiter, "the fixed one refuses")
					return n
				}
				n++
			}
		}())
		require.EqualValues(t, 6, drain(t, both[0], "k", 1), "nothing of the rolling one is lost")
	})
}

// TestRollingRefresh: all processes hear of another number of tokens, which counts what was spent before, of a block and of its end.
func TestRollingRefresh(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net, limit := testnet.Far(rtt/2), planned(reservoir.PerHour(100).Rolling())
		all := fleetOn(t, 3, net, reservoir.PerMinute(1), limit.option(), opt)
		change := func(to reservoir.Limit) {
			limit.set(to)
			require.NoError(t, all[0].Refresh(bg, "k"))
			time.Sleep(10 * rtt)
		}
		admitted := func() (n int64) {
			for _, l := range all {
				n += drain(t, l, "k", 1)
			}
			return n
		}
		allow(t, all[1], "k", 1)
		require.EqualValues(t, 99, admitted())
		change(reservoir.PerHour(150).Rolling())
		require.EqualValues(t, 50, admitted())
		change(reservoir.Block())
		require.Zero(t, admitted())
		change(reservoir.PerHour(120).Rolling())
		require.Zero(t, admitted())
		change(reservoir.PerHour(160).Rolling())
		require.EqualValues(t, 10, admitted())
		require.EqualValues(t, 160, used(t, net, "k"))
	})
}

// TestRollingIdleTokensAreCalled: what other processes hold comes back before a caller is refused, to the token.
func TestRollingIdleTokensAreCalled(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		for _, tokens := range []int64{60, 300, 3000} {
			net, limit := testnet.Far(rtt/2), reservoir.PerMinute(tokens).Rolling()
			all := fleetOn(t, 5, net, limit, opt)
			admitted := int64(0)
			for range 2 * time.Second / (10 * time.Millisecond) {
				for _, l := range all[:4] {
					if n := max(tokens/3000, 1); admitted < tokens/2 && allow(t, l, "k", n).Allowed {
						admitted += n
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
			begun := time.Now()
			admitted += drain(t, all[4], "k", 1)
			t.Logf("%d of %d", admitted, tokens)
			assert.GreaterOrEqual(t, admitted, tokens*97/100)
			require.Less(t, time.Since(begun), 2*time.Duration(tokens)*rtt)
			time.Sleep(4 * time.Second)
			admitted += drain(t, all[4], "k", 1)
			require.Equal(t, tokens, admitted)
		}
	})
}

// TestRollingReturnedTokens: tokens that come back to a limit that is used up are found by those who were refused, long before
// what was spent counts no more.
func TestRollingReturnedTokens(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		all := fleetOn(t, 8, testnet.Far(rtt/2), reservoir.PerMinute(600).Rolling(), opt)
		large := allow(t, all[0], "k", 300)
		require.True(t, large.Allowed)
		exhaust(t, all[1:], "k")
		require.NoError(t, all[0].Refund(bg, large))
		admitted, begun := int64(0), time.Now()
		for ; admitted < 300; time.Sleep(50 * time.Millisecond) {
			require.Less(t, time.Since(begun), 30*time.Second, "%d of 300", admitted) // they probe at random
			for _, l := range all[1:] {
				admitted += drain(t, l, "k", 1)
			}
		}
		t.Log(time.Since(begun))
	})
}

// TestRollingFailLocal: while the store is away, each process admits its share, and no more. By default callers get an error.
func TestRollingFailLocal(t *testing.T) {
	inBubbles(t, "", twoWays, func(t *testing.T, _ string, opt reservoir.Option) {
		net, limit := testnet.Far(rtt/2), reservoir.PerMinute(100).Rolling()
		local, closed := open(t, net.Port(0, 0), limit, opt, reservoir.WithFailLocal(0.2)), open(t, net.Port(1, 0), limit, opt)
		net.Always(testnet.Refuse)
		require.EqualValues(t, 20, drain(t, local, "k", 1))
		_, err := closed.Allow(bg, "k")
		failure, ok := errors.AsType[*reservoir.StoreError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, backend.Unavailable, failure.Class)
		require.EqualValues(t, 20, local.Stats().Overdrawn)
		net.Faults(nil)
		time.Sleep(5 * time.Second)
	})
}

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

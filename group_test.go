package reservoir_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// A Group charges a request to all its limits or to none.

// A Group asks all its limits at once, and charges all or none: of a crowd exactly as
// many pass as the tightest limit has. From stock it costs neither call nor memory.
func TestGroup(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		wide, tight := open(t, net, reservoir.PerHour(10_000), opt), open(t, net, reservoir.PerHour(777), opt)
		g := reservoir.NewGroup(wide, tight)
		begin := time.Now()
		first, err := g.Allow(bg, "wide", "tight")
		require.NoError(t, err)
		assert.Equal(t, 2*time.Millisecond, time.Since(begin))
		assert.Equal(t, 1, first.Limiter)
		var passed atomic.Int64
		crowd(16, func(int) {
			for range 60 {
				r, err := g.Allow(bg, "wide", "tight")
				assert.NoError(t, err)
				if r.Allowed {
					passed.Add(1) // which is the tightest depends on how the crowd's spends interleave
				} else {
					assert.Equal(t, 1, r.Limiter)
				}
			}
		})
		assert.EqualValues(t, 776, passed.Load())
		require.NoError(t, g.Refund(bg, first))
		net.OnKey("sick", testnet.LoseRequest)
		_, err = g.AllowEach(bg, []int64{2, 2}, "wide", "sick")
		require.ErrorIs(t, err, testnet.ErrCut)
		_, err = g.AllowEach(bg, []int64{778, 778}, "wide", "tight")
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		_, err = g.Allow(bg, "wide")
		require.ErrorIs(t, err, reservoir.ErrOption)
		for _, l := range []*reservoir.Limiter{wide, tight} {
			assert.EqualValues(t, 776, l.Stats().Spent-l.Stats().Refunded)
		}
	})
	var limiters [3]*reservoir.Limiter
	net := testnet.Far(0)
	for i := range limiters {
		limiters[i] = open(t, net, reservoir.PerHour(10_000), reservoir.WithFixedBatch(5000), patient)
	}
	g, keys := reservoir.NewGroup(limiters[:]...), []string{"a", "b", "c"}
	_, _ = g.Allow(bg, keys...)
	calls := net.Count("")
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = g.Allow(bg, keys...) }))
	drain(t, limiters[1], "b", 1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = g.Allow(bg, keys...) }))
	assert.LessOrEqual(t, net.Count(""), calls+6)
}

// What is wrong with a request to a group is an error before anything is charged, whatever the
// limits say, in memory or in the store, and wherever the fault is. A Wait ends at once. What the
// same limiter and key can never have together is such a fault; as much as the limit has passes.
func TestFaultsOfAGroup(t *testing.T) {
	for name, opts := range map[string][]reservoir.Option{
		"batches": nil, "direct": {reservoir.WithDirect()}, "no room": {reservoir.WithMaxKeys(0)}, "limits": {planned(reservoir.PerMinute(10)).option()},
	} {
		for _, knows := range []bool{true, false} {
			for _, more := range []int{0, 9} { // up to four limits, and more
				inBubble(t, fmt.Sprint(name, "/", knows, "/", more), func(t *testing.T) {
					net := testnet.Far(time.Millisecond)
					full := open(t, net, reservoir.PerMinute(10), reservoir.WithName("full"))
					l := open(t, net, reservoir.PerMinute(10), opts...)
					require.EqualValues(t, 10, drain(t, full, "k", 1))
					if knows {
						allow(t, l, "k", 1)
					}
					spent := l.Stats().Spent
					for _, c := range []struct {
						one, two int64
						key      string
						want     error
					}{
						{-1, 0, "k", backend.ErrTokens}, {math.MinInt64, 0, "k", backend.ErrTokens}, {11, 0, "k", reservoir.ErrExceedsLimit}, {1, 0, "", reservoir.ErrKey},
						{6, 5, "k", reservoir.ErrExceedsLimit}, {1, 10, "k", reservoir.ErrExceedsLimit}, {math.MaxInt64, math.MaxInt64, "k", reservoir.ErrExceedsLimit},
					} {
						limiters, costs, keys := []*reservoir.Limiter{full, l, l}, []int64{1, c.one, c.two}, []string{"k", c.key, "k"}
						for range more {
							limiters, costs, keys = append(limiters, l), append(costs, 0), append(keys, "other")
						}
						for range 2 { // in two orders
							g := reservoir.NewGroup(limiters...)
							r, err := g.AllowEach(bg, costs, keys...)
							require.ErrorIs(t, err, c.want)
							require.False(t, r.Allowed)
							begin := time.Now()
							_, err = g.WaitEach(bg, costs, keys...)
							require.ErrorIs(t, err, c.want)
							require.Less(t, time.Since(begin), time.Second)
							slices.Reverse(limiters)
							slices.Reverse(costs)
							slices.Reverse(keys)
						}
					}
					for _, bad := range [][]int64{nil, {1}, {1, 2, 3}} {
						_, err := reservoir.NewGroup(full, l).AllowEach(bg, bad, "k", "k")
						require.ErrorIs(t, err, reservoir.ErrOption)
						_, err = reservoir.NewGroup(full, l).WaitEach(bg, bad, "k", "k")
						require.ErrorIs(t, err, reservoir.ErrOption)
						require.ErrorIs(t, reservoir.NewGroup(full, l).Settle(bg, reservoir.GroupResult{}, bad), reservoir.ErrOption)
					}
					r, err := reservoir.NewGroup(full, l).AllowEach(bg, []int64{1, 0}, "k", "")
					require.True(t, err == nil && !r.Allowed, "a limit that costs nothing is not asked")
					require.Equal(t, spent, l.Stats().Spent-l.Stats().Refunded)
					time.Sleep(time.Minute)
					r, err = reservoir.NewGroup(l, l).WaitEach(bg, []int64{4, 6}, "k", "k")
					require.True(t, err == nil && r.Allowed)
				})
			}
		}
	}
}

// What a group can never have depends on the present limit, and not if that is special.
func TestGroupOfALimitThatChanges(t *testing.T) {
	inBubbles(t, "", map[string]reservoir.Option{"batches": reservoir.WithBatch(1, 0), "direct": reservoir.WithDirect()}, func(t *testing.T, _ string, opt reservoir.Option) {
		limit := planned(reservoir.PerMinute(10))
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), opt, limit.option())
		g := reservoir.NewGroup(l, l)
		pass := func(n int64) {
			r, err := g.AllowEach(bg, []int64{n, n}, "k", "k")
			require.True(t, err == nil && r.Allowed)
		}
		pass(5)
		limit.set(reservoir.PerMinute(20))
		require.NoError(t, take(g.AllowEach(bg, []int64{6, 6}, "k", "k")), "it was raised")
		var waited error
		go func() { waited = take(g.WaitEach(bg, []int64{10, 10}, "k", "k")) }()
		time.Sleep(time.Second)
		limit.set(reservoir.PerMinute(15))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.ErrorIs(t, waited, reservoir.ErrExceedsLimit, "it was lowered under a waiter")
		limit.set(reservoir.Unlimited())
		pass(60)
		limit.set(reservoir.Limit{Tokens: 10, Window: time.Minute, Shadow: true})
		pass(60)
	})
}

// A Group charges each limit its own cost, or none of them; what was used is settled for
// each. The result is that of the tightest.
func TestGroupWithACostPerLimit(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		requests, tokens := open(t, net, reservoir.PerMinute(100), opt), open(t, net, reservoir.PerMinute(10_000), opt)
		g := reservoir.NewGroup(requests, tokens)
		var used int64
		for range 20 {
			r, err := g.AllowEach(bg, []int64{1, 1000}, "r", "t")
			require.NoError(t, err)
			require.Equal(t, 1, r.Limiter)
			if !r.Allowed {
				require.ErrorContains(t, g.Refund(bg, r), "another limiter")
				break
			}
			used += 500
			require.NoError(t, g.Settle(bg, r, []int64{1, 500}))
		}
		s, of := requests.Stats(), tokens.Stats()
		assert.Equal(t, used/500, s.Spent-s.Refunded)
		assert.Equal(t, used, of.Spent-of.Refunded)
		assert.EqualValues(t, 9500, used, "half of each charge came back")
		for _, ask := range []func(context.Context, []int64, ...string) (reservoir.GroupResult, error){g.AllowEach, g.WaitEach} {
			free, err := ask(bg, []int64{1, 0}, "r", "t")
			assert.True(t, err == nil && free.Allowed && free.Limiter == 0 && free.Limit == 100)
			require.NoError(t, g.Settle(bg, free, []int64{2, 0}))
		}
		assert.Equal(t, of.Spent, tokens.Stats().Spent, "what costs nothing is not asked")

		net.Faults(func(c *testnet.Call) testnet.Fault {
			if c.Op == "settle" || c.Key == "new" {
				return testnet.Hang
			}
			return testnet.Fine
		})
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		require.Error(t, take(g.Allow(ctx, "r", "new")))
		assert.LessOrEqual(t, time.Since(begin), 15*time.Millisecond, "nor does it wait for what it undoes")
	})
}

// Waiting for several limits, a caller holds none of them while it waits for another.
// Everybody comes to be served, within all limits, through resets and an outage.
func TestGroupWaits(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		second, minute := open(t, net, reservoir.PerSecond(10), opt), open(t, net, reservoir.PerMinute(150), opt)
		g := reservoir.NewGroup(second, minute)
		net.Always(testnet.LoseRequest)
		time.AfterFunc(3*time.Second, func() { net.Faults(nil) })
		begin := time.Now()
		var last time.Duration
		done := make(chan time.Duration, 200)
		for range 200 {
			go func() {
				r, err := g.Wait(bg, "s", "m")
				assert.NoError(t, err)
				assert.True(t, r.Allowed)
				done <- time.Since(begin)
			}()
		}
		for range 200 {
			last = max(last, <-done)
		}
		assert.Greater(t, last, time.Minute, "the minute's limit was waited for")
		assert.Less(t, last, 90*time.Second)
		for _, l := range []*reservoir.Limiter{second, minute} {
			s := l.Stats()
			assert.EqualValues(t, 200, s.Spent-s.Refunded)
			balance(t, l)
		}
		short, cancel := context.WithTimeout(bg, 100*time.Millisecond)
		defer cancel()
		require.NoError(t, take(g.WaitEach(bg, []int64{10, 1}, "s", "m")))
		require.ErrorIs(t, take(g.WaitEach(short, []int64{10, 1}, "s", "m")), context.DeadlineExceeded)
		assert.EqualValues(t, 201, minute.Stats().Spent-minute.Stats().Refunded, "what the deadline ended is charged to none")
	})
}

// Of tells of each limit what the request has left, also after a refusal by another, for as many limits as there are.
// A limit that was not asked is there as memory has it, and is not settled.
func TestGroupTellsOfEachLimit(t *testing.T) {
	type each struct {
		allowed            bool
		limit, left, reset int64 // reset in minutes, from the beginning; 0 = no window is known
	}
	for _, extra := range []int{0, 3} { // more limits than a GroupResult has room for
		inBubbles(t, fmt.Sprint(2+extra, " limits"), map[string]reservoir.Option{"batched": patient, "direct": reservoir.WithDirect()}, func(t *testing.T, _ string, opt reservoir.Option) {
			begin, net := time.Now(), testnet.Far(time.Millisecond)
			limits := reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.PerMinute(10) })
			limiters := []*reservoir.Limiter{open(t, net, reservoir.PerHour(3), reservoir.WithName("hour"), opt), open(t, net, reservoir.PerMinute(10), reservoir.WithName("minute"), opt, limits)}
			for i := range extra {
				limiters = append(limiters, open(t, net, reservoir.PerHour(1e6), reservoir.WithName(fmt.Sprint(i)), opt))
			}
			g := reservoir.NewGroup(limiters...)
			var last reservoir.GroupResult
			for i, step := range []struct {
				hour, minute string
				cost         []int64
				want         [2]each
			}{
				{"a", "a", []int64{1, 0}, [2]each{{true, 3, 2, 60}, {true, 10, 0, 0}}}, // nothing is known of the second
				{"a", "a", []int64{1, 4}, [2]each{{true, 3, 1, 60}, {true, 10, 6, 1}}},
				{"b", "a", []int64{0, 1}, [2]each{{true, 3, 0, 0}, {true, 10, 5, 1}}},
				{"a", "", []int64{1, 0}, [2]each{{true, 3, 0, 60}, {true, 0, 0, 0}}}, // such a key has no limit
				{"a", "a", []int64{1, 4}, [2]each{{false, 3, 0, 60}, {true, 10, 5, 1}}},
				{"b", "a", []int64{1, 6}, [2]each{{true, 3, 3, 60}, {false, 10, 5, 1}}}, // what the first was charged is back
				{"a", "c", []int64{1, 4}, [2]each{{false, 3, 0, 60}, {true, 10, 0, 0}}}, // the second was not asked
				{"c", "d", []int64{1, 0}, [2]each{{true, 3, 2, 60}, {true, 10, 0, 0}}},
			} {
				cost, keys := step.cost, []string{step.hour, step.minute}
				for range extra {
					cost, keys = append(cost, 1), append(keys, "k")
				}
				synctest.Wait() // what is on its way is in neither stock nor store
				r, err := g.AllowEach(bg, cost, keys...)
				require.NoError(t, err)
				for j, want := range step.want {
					of := r.Of(j)
					got := each{of.Allowed, of.Limit, of.Remaining, 0}
					if !of.Reset.IsZero() {
						got.reset = int64(of.Reset.Sub(begin).Round(time.Minute) / time.Minute)
					}
					require.Equal(t, want, got, "step %d, limit %d", i, j)
				}
				if last = r; !r.Allowed {
					require.Equal(t, r.Result, r.Of(r.Limiter))
					require.ErrorContains(t, g.Refund(bg, r), "another limiter")
				}
			}
			used := make([]int64, 2+extra)
			used[1] = 9
			require.NoError(t, g.Settle(bg, last, used))
			hour, minute := limiters[0].Stats(), limiters[1].Stats()
			require.EqualValues(t, 3, hour.Spent-hour.Refunded)
			require.EqualValues(t, 5, minute.Spent-minute.Refunded+minute.Debt)
		})
	}
}

// A group of one limiter many times allocates for each limit what a small one does.
func TestAllocationsOfALargeGroup(t *testing.T) {
	limits := reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.PerHour(1_000_000) })
	l := open(t, testnet.Far(0), reservoir.PerHour(1_000_000), reservoir.WithFixedBatch(500_000), patient, reservoir.WithName("name"), limits)
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

// countdown is a context that ends when it was asked too often.
type countdown struct {
	context.Context
	left *atomic.Int64
}

func (c countdown) Err() error {
	if c.left.Add(-1) < 0 {
		return context.Canceled
	}
	return c.Context.Err()
}

// A Wait for limits that are known to be used up, which FailOpen lets pass each by itself,
// does not spin.
func TestGroupDoesNotSpin(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		a := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("a"), reservoir.WithFailOpen())
		b := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("b"), reservoir.WithFailOpen())
		for _, l := range []*reservoir.Limiter{a, b} {
			drain(t, l, "k", 1)
		}
		net.Always(testnet.Refuse)
		for _, l := range []*reservoir.Limiter{a, b} {
			for i := range toOpen {
				allow(t, l, fmt.Sprint(i), 1)
			}
		}
		ctx, cancel := context.WithTimeout(bg, 5*time.Minute)
		defer cancel()
		var asked atomic.Int64
		asked.Store(10_000)
		_, err := reservoir.NewGroup(a, b).Wait(countdown{ctx, &asked}, "k", "k")
		require.NoError(t, err)
		assert.Positive(t, asked.Load())
		assert.Positive(t, net.Happened(testnet.Refuse))
	})
}

// The result is that of the tightest limit. The others are shadowed, blocked in shadow, unlimited, or were not asked.
func TestGroupTightest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		blocked := open(t, net, inShadow(reservoir.Block()), reservoir.WithName("b"))
		unlimited := open(t, net, reservoir.Unlimited(), reservoir.WithName("u"))
		counted := open(t, net, reservoir.PerHour(10), reservoir.WithName("c"))
		for i, row := range []struct {
			of       []*reservoir.Limiter
			cost     []int64
			tightest int
			shadowed bool
		}{
			{[]*reservoir.Limiter{unlimited, counted}, []int64{1, 1}, 1, false},
			{[]*reservoir.Limiter{counted, unlimited}, []int64{1, 1}, 0, false},
			{[]*reservoir.Limiter{unlimited, blocked}, []int64{1, 1}, 1, true},
			{[]*reservoir.Limiter{blocked, counted}, []int64{1, 1}, 0, true},
			{[]*reservoir.Limiter{counted, unlimited}, []int64{0, 1}, 1, false},
		} {
			r, err := reservoir.NewGroup(row.of...).AllowEach(bg, row.cost, "k", "k")
			require.NoError(t, err)
			assert.True(t, r.Allowed && r.Limiter == row.tightest && r.Shadowed == row.shadowed, "row %d: %+v", i, r)
		}
	})
}

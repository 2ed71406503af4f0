package reservoir_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/testnet"
	"github.com/go-reservoir/reservoir/metrics"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestBadRequestsNeverReachTheStore(t *testing.T) {
	ctx := context.Background()
	net := testnet.Far(0)
	l := open(t, net, reservoir.PerMinute(10), reservoir.WithLimits(func(key string) reservoir.Limit {
		if key == "bad limit" {
			return reservoir.PerMinute(-1)
		}
		return reservoir.PerMinute(10)
	}))
	for _, c := range []struct {
		key string
		n   int64
		err error
	}{
		{"", 1, reservoir.ErrKey},
		{strings.Repeat("x", backend.MaxKeyLen+1), 1, reservoir.ErrKey},
		{strings.Repeat("x", 1<<20), 1, reservoir.ErrKey},
		{"k", 0, backend.ErrTokens},
		{"k", -5, backend.ErrTokens},
		{"k", math.MinInt64, backend.ErrTokens},
		{"k", 11, reservoir.ErrExceedsLimit},
		{"k", math.MaxInt64, reservoir.ErrExceedsLimit},
		{"bad limit", 1, reservoir.ErrLimit},
	} {
		_, err := l.AllowN(ctx, c.key, c.n)
		assert.ErrorIs(t, err, c.err)
		assert.ErrorIs(t, waitFor(ctx, l, c.key, c.n), c.err)
		_, err = l.Key(c.key).AllowN(ctx, c.n)
		assert.ErrorIs(t, err, c.err)
		assert.NotContains(t, err.Error(), "xxx")
	}
	_, err := l.Check(ctx, "")
	assert.ErrorIs(t, err, reservoir.ErrKey)
	assert.ErrorContains(t, l.Refund(ctx, reservoir.Result{}), "another limiter")
	assert.Zero(t, net.Count(""))
	assert.Zero(t, l.Stats().Taken)
}

// All of the limit is admitted, and not a token more, by any policy and in requests
// of any size; refusals after that cost no call.
func TestExactlyTheLimit(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, n := range []int64{1, 3, 100} {
			inBubble(t, fmt.Sprintf("%s/n=%d", name, n), func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				l := open(t, net, reservoir.PerMinute(1000*n), opt)
				var admitted atomic.Int64
				ask := func(int) {
					for range 100 {
						if allow(t, l, "k", n).Allowed {
							admitted.Add(n)
						}
					}
				}
				crowd(20, ask)
				assert.Equal(t, 1000*n, admitted.Load())
				assert.Equal(t, 1000*n, l.Stats().Spent)
				assert.Equal(t, 1000*n, used(t, net, "k"))
				assert.EqualValues(t, 1000, l.Stats().Denied)
				balance(t, l)
				calls := net.Count("")
				crowd(20, ask)
				assert.Equal(t, calls, net.Count(""))
			})
		}
	}
}

func TestResultFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), reservoir.WithFixedBatch(4))
		var reset time.Time
		for i := range 10 {
			r := allow(t, l, "k", 1)
			assert.True(t, r.Allowed)
			assert.EqualValues(t, 10, r.Limit)
			assert.EqualValues(t, 9-i, r.Remaining)
			assert.Zero(t, r.RetryAfter)
			if i == 0 {
				reset = r.Reset
				assert.Equal(t, reservoir.Fetched, r.Source)
				assert.LessOrEqual(t, time.Until(reset), time.Minute)
				assert.Greater(t, time.Until(reset), 58*time.Second)
			} else {
				assert.Contains(t, []reservoir.Source{reservoir.Local, reservoir.Fetched}, r.Source)
			}
			assert.True(t, reset.Equal(r.Reset), r.Reset)
			time.Sleep(time.Second)
		}
		r := allow(t, l, "k", 1)
		assert.False(t, r.Allowed)
		assert.Equal(t, reservoir.Local, r.Source)
		assert.Zero(t, r.Remaining)
		assert.True(t, reset.Equal(r.Reset))
		assert.InDelta(t, time.Until(reset), r.RetryAfter, float64(10*time.Millisecond))
		time.Sleep(r.RetryAfter)
		r = allow(t, l, "k", 1)
		assert.True(t, r.Allowed, "who obeys RetryAfter is served")
		assert.True(t, r.Reset.After(reset))
	})
}

// requireFair checks what every Result promises, to the millisecond in which windows
// end.
func requireFair(t *testing.T, r reservoir.Result, l reservoir.Limit) {
	t.Helper()
	left := time.Until(r.Reset)
	require.LessOrEqual(t, r.Remaining, r.Limit)
	require.GreaterOrEqual(t, r.Remaining, int64(0))
	require.LessOrEqual(t, r.RetryAfter, max(left, 0)+time.Millisecond)
	require.LessOrEqual(t, left, l.Window+time.Millisecond)
	require.Equal(t, !r.Allowed, r.RetryAfter > 0)
}

// Remaining is at most the limit, and RetryAfter at most the time until Reset, at any
// moment of a window of any length, while limits change and tokens come back.
func TestResultsAgreeWithThemselves(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, window := range []time.Duration{1500 * time.Millisecond, time.Minute, time.Hour, 24 * time.Hour} {
			inBubble(t, fmt.Sprint(name, "/", window), func(t *testing.T) {
				limit := reservoir.Limit{Tokens: 1000, Window: window}
				var now atomic.Int64 // tokens
				now.Store(limit.Tokens)
				store := memstore.New()
				changes := reservoir.WithLimits(func(string) reservoir.Limit {
					return reservoir.Limit{Tokens: now.Load(), Window: window}
				})
				l, other := open(t, store, limit, opt, changes), open(t, store, limit, opt, changes)
				for round := range 400 {
					for _, l := range []*reservoir.Limiter{l, other} {
						r, err := l.AllowN(bg, "k", int64(1+round%10))
						require.NoError(t, err)
						requireFair(t, r, limit)
						if round%7 == 0 && r.Allowed {
							require.NoError(t, l.Refund(bg, r))
						}
					}
					if round%50 == 49 {
						now.Store([]int64{10, 5000, 1000}[round/50%3])
					}
					time.Sleep(window / 97)
					r, err := l.Check(bg, "k")
					require.NoError(t, err)
					require.LessOrEqual(t, r.Remaining, r.Limit)
					require.LessOrEqual(t, r.RetryAfter, max(time.Until(r.Reset), 0)+time.Millisecond)
				}
			})
		}
	}
}

// A key may lie in a buffer that the caller uses again: the limiter has its own.
func TestKeyIsTheCallersBuffer(t *testing.T) {
	buffer := []byte("user-1")
	key := unsafe.String(&buffer[0], len(buffer))
	l := open(t, memstore.New(), reservoir.PerHour(100), reservoir.WithFixedBatch(10))
	require.Equal(t, reservoir.Fetched, allow(t, l, key, 1).Source)
	buffer[5] = '2'
	require.Equal(t, reservoir.Fetched, allow(t, l, key, 1).Source)
	assert.Equal(t, reservoir.Local, allow(t, l, "user-1", 1).Source)
	assert.Equal(t, reservoir.Local, allow(t, l, "user-2", 1).Source)

	full := open(t, memstore.New(), reservoir.PerHour(100), reservoir.WithMaxKeys(0))
	r := allow(t, full, key, 10)
	buffer[5] = '3'
	require.NoError(t, full.Settle(bg, r, 15))
	check, err := full.Check(bg, "user-2")
	require.NoError(t, err)
	assert.EqualValues(t, 85, check.Remaining)
}

// Past its bound on keys the limiter forgets nothing that it holds, and stays exact.
func TestMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := open(t, memstore.New(), reservoir.PerMinute(3), reservoir.WithMaxKeys(2), reservoir.WithIdle(10*time.Minute))
		allow(t, l, "a", 1)
		allow(t, l, "b", 1)
		for i, want := range []bool{true, true, true, false} {
			r := allow(t, l, "c", 1)
			assert.Equal(t, want, r.Allowed, i)
			assert.Equal(t, reservoir.Direct, r.Source)
			assert.EqualValues(t, max(2-i, 0), r.Remaining)
		}
		_, err := l.AllowN(ctx, "c", 4)
		assert.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		assert.Equal(t, 2, l.Stats().Keys)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		assert.ErrorIs(t, waitFor(short, l, "c", 1), reservoir.ErrDeadline)
		assert.NoError(t, waitFor(ctx, l, "c", 1), "through the reset")
		balance(t, l)
		time.Sleep(20*time.Minute + time.Second)
		assert.Zero(t, l.Stats().Keys, "idle ones make room")
		assert.NotEqual(t, reservoir.Direct, allow(t, l, "c", 1).Source)
	})
}

func TestFaultyOptions(t *testing.T) {
	for i, opt := range []reservoir.Option{
		reservoir.WithFailLocal(math.NaN()), reservoir.WithFailLocal(-0.1), reservoir.WithFailLocal(1.1),
		reservoir.WithFetchTimeout(0), reservoir.WithFetchTimeout(math.MaxInt64), reservoir.WithMaxKeys(-1), reservoir.WithIdle(0), reservoir.WithFixedBatch(0),
	} {
		_, err := reservoir.New(memstore.New(), reservoir.PerMinute(1), opt)
		assert.ErrorIs(t, err, reservoir.ErrOption, i)
	}
	_, err := reservoir.New(nil, reservoir.PerMinute(1))
	require.ErrorIs(t, err, reservoir.ErrOption)
	_, err = reservoir.New(memstore.New(), reservoir.Limit{Tokens: 1})
	require.ErrorIs(t, err, reservoir.ErrLimit)
}

// A key that has no limit, as by a typo in a map of plans, is an error and not a ban; so is a Key that
// no limiter has made.
func TestNoLimitAndNoKey(t *testing.T) {
	plans := map[string]reservoir.Limit{"free": reservoir.PerMinute(1), "banned": reservoir.Block()}
	l := open(t, memstore.New(), reservoir.PerMinute(1), reservoir.WithLimits(func(key string) reservoir.Limit { return plans[key] }))
	_, err := l.Allow(bg, "fre")
	assert.ErrorIs(t, err, reservoir.ErrLimit)
	_, err = l.Check(bg, "fre")
	assert.ErrorIs(t, err, reservoir.ErrLimit)
	assert.Equal(t, reservoir.Result{}, allow(t, l, "banned", 1), "no waiting helps")
	var none reservoir.Key
	_, err = none.Allow(bg)
	assert.ErrorIs(t, err, reservoir.ErrKey)
	_, err = none.AllowN(bg, 0)
	assert.ErrorIs(t, err, reservoir.ErrKey)
}

// Check charges nothing, and counts the stock at hand as there to be had.
func TestCheck(t *testing.T) {
	for name, opt := range everyPolicy() {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			l := open(t, store, reservoir.PerHour(100), opt)
			r, err := l.Check(bg, "k")
			require.NoError(t, err)
			require.Equal(t, reservoir.Result{Allowed: true, Limit: 100, Window: time.Hour, Remaining: 100, Source: reservoir.Direct}, r)
			allow(t, l, "k", 60)
			r, err = l.Check(bg, "k")
			require.NoError(t, err)
			require.EqualValues(t, 40, r.Remaining)
			require.EqualValues(t, 40, drain(t, l, "k", 1))
			r, err = l.Check(bg, "k")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Positive(t, r.RetryAfter)
			_, err = l.Check(bg, "")
			require.ErrorIs(t, err, reservoir.ErrKey)
		})
	}
}

// A caller whose context has ended gets its error, whatever there is to be had.
func TestDeadContext(t *testing.T) {
	l := open(t, memstore.New(), reservoir.PerMinute(100))
	allow(t, l, "k", 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Allow(ctx, "k")
	assert.ErrorIs(t, err, context.Canceled)
	_, err = l.Key("k").Allow(ctx)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, waitFor(ctx, l, "k", 1), context.Canceled)
	_, err = l.Check(ctx, "k")
	assert.ErrorIs(t, err, context.Canceled)
	assert.EqualValues(t, 1, l.Stats().Spent)
}

// The hook is told of each call and what it asked for and got.
func TestHooksSeeEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		net := testnet.Far(0)
		l := open(t, net, reservoir.PerMinute(100), reservoir.WithFixedBatch(10), d.keep())
		ctx := context.Background()
		allow(t, l, "k", 1)
		synctest.Wait() // the hook is told after who waited was served
		_, err := l.Check(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, l.Close(ctx))
		synctest.Wait()
		calls := d.all()
		require.Len(t, calls, 3)
		assert.Equal(t, reservoir.StoreCall{Op: "sync", Cause: "wait", Reason: "fixed", Want: 10, Granted: 10}, calls[0].StoreCall)
		assert.Equal(t, "check", calls[1].Op)
		assert.Equal(t, "sync", calls[2].Op)
		assert.EqualValues(t, 3, l.Stats().StoreCalls)
		assert.Equal(t, 3, net.Count(""))
	})
}

// Hooks of several WithHooks are called in order.
func TestHooksAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []int
		hooks := func(i int) reservoir.Option {
			return reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) {
				assert.NotEmpty(t, c.Op)
				order = append(order, i)
			}})
		}
		l, err := reservoir.New(memstore.New(), reservoir.PerMinute(1), hooks(1), reservoir.WithHooks(reservoir.Hooks{}), hooks(2), hooks(3), reservoir.WithMaxKeys(0))
		require.NoError(t, err)
		_, err = l.Allow(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
		assert.Equal(t, []int{1, 2, 3}, order)
	})
}

// A slow hook delays nobody who waits for tokens, and does not look like a slow store.
func TestSlowHook(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		var told atomic.Int64
		slow := reservoir.WithHooks(reservoir.Hooks{StoreCall: func(reservoir.StoreCall) {
			time.Sleep(50 * time.Millisecond)
			told.Add(1)
		}})
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(600_000), opt, slow)
		begin := time.Now()
		crowd(5, func(int) { assert.True(t, allow(t, l, "k", 1).Allowed) })
		if name != "direct" { // whose caller makes the call, and tells of it
			assert.LessOrEqual(t, time.Since(begin), 3*rtt)
		}
		time.Sleep(time.Second)
		assert.Positive(t, told.Load())
	})
	inBubble(t, "the lead time", func(t *testing.T) {
		calls := map[bool]int{}
		for _, slow := range []bool{false, true} {
			net := testnet.Far(rtt / 2)
			hook := reservoir.WithHooks(reservoir.Hooks{StoreCall: func(reservoir.StoreCall) {
				if slow {
					time.Sleep(50 * time.Millisecond)
				}
			}})
			l := open(t, net, reservoir.PerMinute(600_000), reservoir.WithBatch(1, 200), hook)
			every(t, l, 1, time.Millisecond, time.Now().Add(20*time.Second), nil)
			calls[slow] = net.Count("")
		}
		assert.InDelta(t, calls[false], calls[true], float64(calls[false])/10, "a re-order point too high orders more often")
	})
}

// counters are the fields of Stats that never go down.
var counters = slices.DeleteFunc(metrics.All(), func(m metrics.Metric) bool { return m.Gauge })

// requireGrowth checks that no counter has gone back.
func requireGrowth(t *testing.T, was, is reservoir.Stats) {
	for _, m := range counters {
		if m.Value(&is) < m.Value(&was) {
			t.Helper()
			require.Failf(t, "a counter went back", "%s from %d to %d", m.Name, m.Value(&was), m.Value(&is))
		}
	}
}

// A key is Exhausted if the store has too little for a request, though a smaller one passes,
// and if it has nothing, though this process still holds tokens; no longer after the reset.
func TestExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, memstore.New(), reservoir.PerMinute(10), reservoir.WithFixedBatch(10))
		exhausted := func(key string) bool {
			for k, s := range l.Keys() {
				if k == key {
					return s.Exhausted
				}
			}
			return false
		}
		require.True(t, allow(t, l, "small", 8).Allowed)
		require.False(t, allow(t, l, "small", 5).Allowed)
		require.True(t, exhausted("small"))
		require.True(t, allow(t, l, "small", 1).Allowed)

		require.True(t, allow(t, l, "held", 1).Allowed)
		require.True(t, exhausted("held"), "the store has granted all ten")
		time.Sleep(time.Minute + time.Second)
		require.False(t, exhausted("small"))
	})
}

// A key that was used once and lies idle takes at most 320 bytes, all counted.
func TestMemoryOfAnIdleKey(t *testing.T) {
	const keys = 8_000
	l := open(t, new(lavish), reservoir.PerHour(1000), reservoir.WithFetchTimeout(time.Hour))
	heap := func() (m runtime.MemStats) { runtime.GC(); runtime.GC(); runtime.ReadMemStats(&m); return m }
	before := heap()
	for i := range keys {
		allow(t, l, strings.Clone(fmt.Sprintf("user:%015d", i)), 1)
	}
	each := float64(heap().HeapAlloc-before.HeapAlloc) / keys
	t.Logf("%.0f bytes a key", each)
	assert.LessOrEqual(t, each, 320.0)
	assert.Equal(t, keys, l.Stats().Keys)
}

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

// The tightest is told, among shadowed, blocked in shadow, unlimited and unasked ones.
func TestGroupTightest(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		blockedInShadow := open(t, net, inShadow(reservoir.Block()), reservoir.WithName("b"))
		unlimited := open(t, net, reservoir.Unlimited(), reservoir.WithName("u"))
		counted := open(t, net, reservoir.PerHour(10), reservoir.WithName("c"))
		r, err := reservoir.NewGroup(unlimited, counted).Allow(bg, "k", "k")
		require.NoError(t, err)
		assert.Equal(t, 1, r.Limiter)
		r, err = reservoir.NewGroup(counted, unlimited).Allow(bg, "k", "k")
		require.NoError(t, err)
		assert.Equal(t, 0, r.Limiter)
		r, err = reservoir.NewGroup(unlimited, blockedInShadow).Allow(bg, "k", "k")
		require.NoError(t, err)
		assert.True(t, r.Allowed)
		assert.True(t, r.Shadowed, "the limit would have refused it: %+v", r)
		r, err = reservoir.NewGroup(blockedInShadow, counted).Allow(bg, "k", "k")
		require.NoError(t, err)
		assert.True(t, r.Shadowed, "the limit would have refused it: %+v", r)
		r, err = reservoir.NewGroup(counted, unlimited).AllowEach(bg, []int64{0, 1}, "k", "k")
		require.NoError(t, err)
		assert.Equal(t, 1, r.Limiter)
		assert.True(t, r.Limit == reservoir.Unlimited().Tokens)
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

// Close hands back what is held, sends waiters away, and is the end of every door. A
// second one costs nothing.
func TestCloseHandsBack(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt)
		for i := range 100 {
			allow(t, l, fmt.Sprint(i), 2)
		}
		drain(t, l, "full", 1)
		ended := make(chan error, 4)
		go func() { ended <- waitFor(bg, l, "full", 100) }()
		for range 3 {
			go func() { _, err := l.Allow(bg, "cold"); ended <- err }()
		}
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, l.Close(bg))
		assert.LessOrEqual(t, time.Since(begin), 50*time.Millisecond, "many at a time")
		for range 4 {
			if err := <-ended; name != "direct" {
				assert.ErrorIs(t, err, reservoir.ErrClosed)
			}
		}
		assert.LessOrEqual(t, time.Since(begin), 50*time.Millisecond)
		for i := range 100 {
			require.EqualValues(t, 2, used(t, net, fmt.Sprint(i)))
		}
		calls := net.Count("")
		require.NoError(t, l.Close(bg))
		for _, key := range []string{"1", "new"} {
			_, err := l.Allow(bg, key)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			_, err = l.Key(key).Allow(bg)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			_, err = l.Check(bg, key)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			assert.ErrorIs(t, waitFor(bg, l, key, 1), reservoir.ErrClosed)
		}
		assert.Equal(t, calls, net.Count(""))
	})
}

// Each Close ends with its own context, whatever another one waits for, and one whose
// context has ended says nothing about the store. What could not be handed back
// expires, and what a reply brings later is nobody's to spend.
func TestCloseIsBounded(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, name string, opt reservoir.Option) {
		net, heard := testnet.Far(time.Millisecond), new(states)
		l := open(t, net, reservoir.PerHour(1000), opt, heard.option(), reservoir.WithFetchTimeout(time.Minute))
		for i := range 300 {
			for range 10 {
				allow(t, l, fmt.Sprint(i), 1)
			}
		}
		held := l.Stats().Held
		net.MoveTo(10 * time.Second)
		go func() { _, _ = l.Allow(bg, "late") }()
		synctest.Wait()
		k := l.Key("late")
		first := make(chan error, 1)
		long, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		go func() { first <- l.Close(long) }()
		synctest.Wait()
		for range 3 {
			short, cancel := context.WithTimeout(bg, 10*time.Millisecond)
			begin := time.Now()
			assert.ErrorIs(t, l.Close(short), context.DeadlineExceeded)
			assert.Equal(t, 10*time.Millisecond, time.Since(begin))
			cancel()
		}
		require.Error(t, <-first)
		time.Sleep(2 * time.Minute)
		_, err := k.Allow(bg)
		assert.ErrorIs(t, err, reservoir.ErrClosed)
		s := l.Stats()
		assert.EqualValues(t, 3000, s.Spent)
		assert.LessOrEqual(t, held, s.Expired+s.Returned)
		assert.Empty(t, heard.told())
	})
}

func TestCloseWithAnEndedContext(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net, heard := testnet.Far(time.Millisecond), new(states)
		l := open(t, net, reservoir.PerHour(1000), opt, heard.option())
		for i := range 300 {
			for range 10 {
				allow(t, l, fmt.Sprint(i), 1)
			}
		}
		ended, cancel := context.WithCancel(bg)
		cancel()
		begin := time.Now()
		_ = l.Close(ended)
		assert.Zero(t, time.Since(begin))
		time.Sleep(time.Minute)
		assert.Empty(t, heard.told())
	})
}

// Neither Close nor Check waits in an outage, nor asks for each key.
func TestCloseAndCheckInAnOutage(t *testing.T) {
	for how, f := range map[string]testnet.Fault{"hangs": testnet.Hang, "lost": testnet.LoseRequest} {
		inBubbles(t, how, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(1000), opt)
			for i := range 1000 {
				allow(t, l, fmt.Sprint(i), 1)
			}
			breakdown(t, l, net, f)
			calls, begin := net.Count(""), time.Now()
			for range 20 {
				_, err := l.Check(bg, "1")
				var failure *reservoir.StoreError
				assert.ErrorAs(t, err, &failure)
			}
			assert.LessOrEqual(t, time.Since(begin), 100*time.Millisecond, "one, which a replica might have answered")
			assert.LessOrEqual(t, net.Count("")-calls, 2)
			_ = l.Close(bg)
			assert.LessOrEqual(t, time.Since(begin), time.Second)
			assert.LessOrEqual(t, net.Count("")-calls, 150)
		})
	}
}

// hurried is a context that ends after the first look at it, so its caller gets what memory has
// or nothing, and takes no lock.
type hurried struct {
	context.Context
	looks int
}

func (c *hurried) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

// A handle spends from the stock whenever Close is about to take it: the rest goes back all the
// same.
func TestCloseWhileAHandleSpends(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		var k *reservoir.Key // set when Close begins
		var looks, spent int64
		net := testnet.Far(time.Millisecond)
		shards := sharded{net, func() string { // a statement is being written
			if k != nil {
				looks++
				if r, err := k.Allow(&hurried{Context: bg}); err == nil && r.Allowed {
					spent++
				}
			}
			return ""
		}}
		l := open(t, shards, reservoir.PerHour(1000), reservoir.WithFixedBatch(500))
		handle := l.Key("k")
		_, err := handle.AllowN(bg, 7)
		require.NoError(t, err)
		k = handle
		require.NoError(t, l.Close(bg))
		require.Positive(t, looks)
		assert.EqualValues(t, 7+spent, used(t, net, "k"))
		assert.Zero(t, l.Stats().Expired)
	})
}

// Whichever of the first four statements of Close fail, and however, the fifth hands back what is
// held, and debt is charged once.
func TestEachStatementOfCloseFails(t *testing.T) {
	for _, f := range []testnet.Fault{testnet.LoseReply, testnet.LoseRequest, testnet.ArriveLate, testnet.Repeat, testnet.Refuse} {
		inBubbles(t, fmt.Sprint("kind=", f), batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			for failing := range 16 { // a bit for each statement
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerHour(1000), opt)
				require.NoError(t, l.Settle(bg, allow(t, l, "k", 100), 150))
				before := failing
				net.Faults(func(*testnet.Call) testnet.Fault {
					defer func() { before >>= 1 }()
					if before&1 == 1 {
						return f
					}
					return testnet.Fine
				})
				require.NoError(t, l.Close(bg))
				require.True(t, failing&1 == 0 || net.Happened(f) > 0)
				require.EqualValues(t, 150, used(t, net, "k"), "failing: %b", failing)
			}
		})
	}
}

// The stock of a key that has left a shard goes back at Close, though that shard is away.
func TestCloseOfAKeyThatHasMoved(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		on := "old"
		net := sharded{testnet.Far(time.Millisecond), func() string { return on }}
		l := open(t, net, reservoir.PerHour(1000), opt)
		for range 70 {
			allow(t, l, "k", 1)
		}
		require.Positive(t, l.Stats().Held)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if strings.HasPrefix(c.Key, "old:") {
				return testnet.Refuse
			}
			return testnet.Fine
		})
		for i := range toOpen {
			_, err := l.Allow(bg, fmt.Sprint("old:", i))
			require.Error(t, err)
		}
		on = "new"
		_ = l.Close(bg)
		require.Positive(t, net.Happened(testnet.Refuse))
		assert.EqualValues(t, 70, used(t, net, "k"))
	})
}

// Traffic that runs on while the limiter closes gets tokens or ErrClosed, and what was
// spent is what stays charged.
func TestCloseUnderLoad(t *testing.T) {
	for name, opt := range everyPolicy() {
		t.Run(name, func(t *testing.T) {
			for range 4 {
				store := memstore.New()
				l := open(t, store, reservoir.PerHour(100_000_000), opt, patient)
				crowd(8, func(i int) {
					for j := 0; ; j++ {
						if i == 0 && j == 500 {
							assert.NoError(t, l.Close(bg))
						}
						if _, err := l.AllowN(bg, "k", int64(j%9+1)); err != nil {
							assert.ErrorIs(t, err, reservoir.ErrClosed)
							return
						}
					}
				})
				require.NoError(t, l.Close(bg))
				balance(t, l)
				require.Equal(t, l.Stats().Spent, used(t, store, "k"))
			}
		})
	}
}

var bg = context.Background()

// patient rides out a busy machine where a test counts and does not time.
var patient = reservoir.WithFetchTimeout(time.Minute)

// inspected is a store that tests can look into.
type inspected interface {
	backend.Store
	backend.Inspector
}

// open returns a limiter over s that is closed, and checked to balance, at the end.
func open(t testing.TB, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	lim, err := reservoir.New(s, l, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = lim.Close(context.Background())
		balance(t, lim)
		require.Zero(t, lim.Stats().Held)
	})
	return lim
}

// fleet returns so many limiters over s, each as of a process of its own.
func fleet(t testing.TB, processes int, s backend.Store, l reservoir.Limit, opts ...reservoir.Option) []*reservoir.Limiter {
	t.Helper()
	all := make([]*reservoir.Limiter, processes)
	for i := range all {
		all[i] = open(t, s, l, opts...)
	}
	return all
}

// balance checks that every token is accounted for, once. It holds while no call
// is under way.
func balance(t testing.TB, l *reservoir.Limiter) {
	t.Helper()
	s := l.Stats()
	require.Equal(t, s.Taken+s.Refunded, s.Spent+s.Returned+s.Expired+s.Held, "%+v", s)
	for _, n := range []int64{s.Taken, s.Refunded, s.Spent, s.Returned, s.Expired, s.Held} {
		require.GreaterOrEqual(t, n, int64(0), "%+v", s)
	}
}

// allow asks for n tokens and fails the test on an error. Helper and require take longer than
// the request, so only an error pays for them.
func allow(t testing.TB, l *reservoir.Limiter, key string, n int64) reservoir.Result {
	r, err := l.AllowN(context.Background(), key, n)
	if err != nil {
		t.Helper()
		require.NoError(t, err)
	}
	return r
}

// drain asks for n tokens again and again until one request is refused. It returns
// the tokens that were admitted.
func drain(t testing.TB, l *reservoir.Limiter, key string, n int64) (admitted int64) {
	t.Helper()
	for allow(t, l, key, n).Allowed {
		admitted += n
	}
	return admitted
}

// used is what the store has charged to key in all windows that are open.
func used(t testing.TB, s backend.Inspector, key string) (n int64) {
	t.Helper()
	counters, err := s.Inspect(context.Background(), key)
	require.NoError(t, err)
	for _, c := range counters {
		n += c.Used
	}
	return n
}

// contents is what the store holds of key in the window that is open, which is of one counter at most.
func contents(t testing.TB, s backend.Inspector, key string) (c backend.Contents) {
	t.Helper()
	all, err := s.Inspect(context.Background(), key)
	require.NoError(t, err)
	require.LessOrEqual(t, len(all), 1, "counters of %s", key)
	if len(all) == 1 {
		c = all[0]
	}
	return c
}

// crowd calls f n times at once and returns when all calls have.
func crowd(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// waitFor is Limiter.WaitN.
func waitFor(ctx context.Context, l *reservoir.Limiter, key string, n int64) error {
	_, err := l.WaitN(ctx, key, n)
	return err
}

// take is the error of a call.
func take[T any](_ T, err error) error { return err }

// batches are the policies that hold stock, and everyPolicy adds the ones that hold
// none.
func batches() map[string]reservoir.Option {
	return map[string]reservoir.Option{
		"fixed=64": reservoir.WithFixedBatch(64),
		"ladder":   reservoir.WithLadder(1, 100),
		"adaptive": reservoir.WithBatch(1, 0),
	}
}

func everyPolicy() map[string]reservoir.Option {
	all := batches()
	all["fixed=1"] = reservoir.WithFixedBatch(1)
	all["direct"] = reservoir.WithDirect()
	return all
}

// smallBatches are the policies that differ under the small limits of these tests: of larger
// batches the store grants what it has.
func smallBatches() map[string]reservoir.Option {
	few := everyPolicy()
	delete(few, "fixed=64")
	delete(few, "ladder")
	return few
}

// rtt is the distance of stores where nothing else is said.
const rtt = 2 * time.Millisecond

// inBubble runs f as a subtest on virtual time.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// inBubbles is a bubble for each case.
func inBubbles[C any](t *testing.T, prefix string, cases map[string]C, f func(t *testing.T, name string, c C)) {
	for name, c := range cases {
		inBubble(t, strings.TrimPrefix(prefix+"/"+name, "/"), func(t *testing.T) { f(t, name, c) })
	}
}

// every asks for n tokens again and again, at random times that are interval apart on
// average, until end. It tells each when a request was made and what came of it.
func every(t *testing.T, l *reservoir.Limiter, n int64, interval time.Duration, end time.Time, each func(at time.Time, r reservoir.Result)) {
	rnd := rand.New(rand.NewPCG(uint64(interval), uint64(n)))
	for {
		time.Sleep(time.Duration(rnd.ExpFloat64() * float64(interval)))
		at := time.Now()
		if !at.Before(end) {
			return
		}
		r := allow(t, l, "k", n)
		if each != nil {
			each(at, r)
		}
	}
}

// stats adds up what limiters have counted.
func stats(all ...*reservoir.Limiter) (sum reservoir.Stats) {
	for _, l := range all {
		s := l.Stats()
		sum.StoreCalls += s.StoreCalls
		sum.Spent += s.Spent
		sum.Probes += s.Probes
		sum.Denied += s.Denied
		sum.Held += s.Held
		sum.Overdrawn += s.Overdrawn
	}
	return sum
}

// diary is what a hook was told of store calls.
type diary struct {
	mu    sync.Mutex
	calls []diaryEntry
}

// afterFailedPrefetch is how many prefetches failed, and after how many of them a
// caller had to wait for the next call.
func (d *diary) afterFailedPrefetch() (failed, byCaller int) {
	calls := d.all()
	for i, c := range calls[:len(calls)-1] {
		if c.Err != nil && c.Cause == "prefetch" {
			failed++
			if calls[i+1].Cause == "wait" {
				byCaller++
			}
		}
	}
	return failed, byCaller
}

func (d *diary) keep() reservoir.Option {
	return reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) {
		d.mu.Lock()
		defer d.mu.Unlock()
		e := diaryEntry{c, time.Now().Add(-c.Duration), time.Now()}
		e.Duration = 0
		d.calls = append(d.calls, e)
	}})
}

// all lists the calls so far.
func (d *diary) all() []diaryEntry {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]diaryEntry(nil), d.calls...)
}

type diaryEntry struct {
	reservoir.StoreCall
	begun, ended time.Time
}

// crowdOnce has so many callers ask for n tokens at once, and returns how many were
// admitted and how many got an error.
func crowdOnce(l *reservoir.Limiter, callers int, n int64) (admitted, failed int64) {
	var ok, bad atomic.Int64
	crowd(callers, func(int) {
		switch r, err := l.AllowN(context.Background(), "k", n); {
		case err != nil:
			bad.Add(1)
		case r.Allowed:
			ok.Add(1)
		}
	})
	return ok.Load(), bad.Load()
}

// exhaust uses up the limit of key through the limiters in turn.
func exhaust(t *testing.T, all []*reservoir.Limiter, key string) {
	t.Helper()
	for _, l := range all {
		drain(t, l, key, 1)
	}
}

// heap is what is in use after all garbage is gone.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // of what finalizers and pools still held
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// states records what the hooks are told of shards.
type states struct {
	mu  sync.Mutex
	all []reservoir.ShardState
}

func (s *states) hooks() reservoir.Hooks {
	return reservoir.Hooks{ShardState: func(state reservoir.ShardState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, state)
	}}
}

func (s *states) option() reservoir.Option { return reservoir.WithHooks(s.hooks()) }

func (s *states) told() []reservoir.ShardState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]reservoir.ShardState(nil), s.all...)
}

// away reports whether the last that was told of shard is that it does not answer.
func (s *states) away(shard string) (away bool) {
	for _, state := range s.told() {
		if state.Shard == shard {
			away = state.Away
		}
	}
	return away
}

// sharded is a network whose shards are named by what stands before the colon of a
// key, and by name for keys without one.
type sharded struct {
	*testnet.Network
	name func() string
}

func (s sharded) Shard(key string) string {
	if name, _, ok := strings.Cut(key, ":"); ok || s.name == nil {
		return name
	}
	return s.name()
}

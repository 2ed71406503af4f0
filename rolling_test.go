package reservoir_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// TestRolling: a used-up rolling limit gives back what was spent a window ago, slice by slice.
func TestRolling(t *testing.T) {
	for _, direct := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var opts []reservoir.Option
			if direct {
				opts = append(opts, reservoir.WithDirect())
			}
			l, err := reservoir.New(memstore.New(), reservoir.PerMinute(100).Rolling(), opts...)
			require.NoError(t, err)
			defer func() { require.NoError(t, l.Close(t.Context())) }()
			for range 50 {
				r, err := l.Allow(t.Context(), "k")
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
			time.Sleep(30 * time.Second)
			for range 50 {
				r, err := l.Allow(t.Context(), "k")
				require.NoError(t, err)
				require.True(t, r.Allowed)
			}
			r, err := l.Allow(t.Context(), "k")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			assert.InDelta(t, 35, r.RetryAfter.Seconds(), 6)
			start := time.Now()
			r, err = l.Wait(t.Context(), "k")
			require.NoError(t, err)
			require.True(t, r.Allowed)
			assert.InDelta(t, 35, time.Since(start).Seconds(), 6)
		})
	}
}

// TestRollingCheck: RetryAfter of a Check is true, also where it is longer than the window, because
// a call may take long and counts in the slice in which it ends at the latest.
func TestRollingCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, memstore.New(), reservoir.PerMinute(10).Rolling(), reservoir.WithDirect(), reservoir.WithFetchTimeout(time.Minute))
		require.Equal(t, time.Minute, allow(t, l, "k", 10).Window)
		r, err := l.Check(bg, "k")
		require.NoError(t, err)
		require.Greater(t, r.RetryAfter, 70*time.Second)
		require.Equal(t, r.RetryAfter, allow(t, l, "k", 1).RetryAfter)
		time.Sleep(r.RetryAfter - time.Millisecond)
		require.False(t, allow(t, l, "k", 1).Allowed)
		time.Sleep(time.Millisecond)
		require.True(t, allow(t, l, "k", 1).Allowed)
	})
}

// TestChangeOfKind: a limit that becomes another kind under the same name conflicts while its key
// is in memory. The key still leaves that when it is idle, and hands back what it holds.
func TestChangeOfKind(t *testing.T) {
	plain, rolling := reservoir.PerMinute(100), reservoir.PerMinute(100).Rolling()
	for name, kinds := range map[string][2]reservoir.Limit{"to rolling": {plain, rolling}, "to plain": {rolling, plain}} {
		inBubble(t, name, func(t *testing.T) {
			net, now := testnet.Far(time.Millisecond), kinds[0]
			l := open(t, net, now, reservoir.WithIdle(10*time.Second), reservoir.WithLimits(func(string) reservoir.Limit { return now }))
			for range 20 {
				allow(t, l, "k", 1)
				time.Sleep(time.Second)
			}
			require.Positive(t, l.Stats().Held)
			now = kinds[1]
			_, err := l.AllowN(bg, "k", 50)
			require.ErrorIs(t, err, reservoir.ErrConflict)
			time.Sleep(21 * time.Second) // twice WithIdle
			synctest.Wait()
			assert.Zero(t, l.Stats().Keys)
			assert.Zero(t, l.Stats().Held)
			assert.Positive(t, l.Stats().Returned)
			balance(t, l)
			time.Sleep(time.Minute)
			allow(t, l, "k", 1)
		})
	}
}

// TestRollingSilent: a process that has fallen silent soon keeps no tokens that another one is
// refused, and makes no calls for them.
func TestRollingSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := open(t, store, reservoir.PerMinute(100).Rolling()), open(t, store, reservoir.PerMinute(100).Rolling())
		for range 90 {
			allow(t, a, "k", 1)
			time.Sleep(time.Second)
		}
		require.NotZero(t, a.Stats().Held)
		admitted := 0
		for range 120 {
			if allow(t, b, "k", 1).Allowed {
				admitted++
			}
			time.Sleep(time.Second / 2)
		}
		assert.LessOrEqual(t, a.Stats().Held, int64(1))
		calls := a.Stats().StoreCalls
		time.Sleep(5 * time.Minute)
		assert.LessOrEqual(t, a.Stats().StoreCalls, calls+1)
		assert.Greater(t, admitted, 80, "what was spent before counts for a while")
	})
}

// interval is when an admission began and ended, by the one clock of all processes and the store.
type interval struct{ from, to time.Time }

// TestRollingNeverOver drives limiters of one key at random over a network that loses, delays and
// repeats calls, while the store's clock steps back and processes end. Whatever happens, no
// interval of a window has more than the limit. A request counts in it if it began and ended in it. Refunded
// requests do not count.
func TestRollingNeverOver(t *testing.T) {
	runs := 60
	if testing.Short() {
		runs = 20
	}
	worst := []testnet.Fault{testnet.LoseRequest, testnet.LoseReply, testnet.Hang, testnet.ArriveLate, testnet.Repeat, testnet.Refuse}
	var over, reached, faults, stepped int
	for seed := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 28))
			window := []time.Duration{time.Second, 5 * time.Second, time.Minute}[r.IntN(3)]
			limit := reservoir.Limit{Tokens: []int64{5, 30, 60, 300, 2000}[r.IntN(5)], Window: window}.Rolling()
			processes := 1 + r.IntN(8)
			net := testnet.Far(time.Duration(1+r.IntN(20)) * time.Millisecond)
			var mu sync.Mutex
			draw := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return r.IntN(n)
			}
			bad := []int{0, 10, 30}[r.IntN(3)]
			net.Faults(func(c *testnet.Call) testnet.Fault {
				if f := worst[draw(len(worst))]; draw(100) < bad && !(f == testnet.Repeat && c.Op == "settle") { // which is sent once
					return f
				}
				return testnet.Fine
			})
			ctx, stop := context.WithTimeout(t.Context(), 5*window)
			defer stop()
			var admitted []interval
			var all sync.WaitGroup
			for who := range processes {
				all.Go(func() {
					opts := []reservoir.Option{reservoir.WithIdle(window)}
					if draw(4) == 0 {
						opts = append(opts, reservoir.WithDirect())
					}
					l, err := reservoir.New(net.Port(who, 0), limit, opts...)
					if !assert.NoError(t, err) {
						return
					}
					defer func() { _ = l.Close(bg) }()
					mean := float64(window) / float64(limit.Tokens) * float64(processes) / []float64{0.5, 1.5, 5}[draw(3)]
					for ctx.Err() == nil {
						n := int64(1)
						if draw(10) == 0 {
							n = 1 + int64(draw(int(min(limit.Tokens, 9))))
						}
						began := time.Now()
						got, err := l.AllowN(ctx, "k", n)
						switch {
						case err != nil || !got.Allowed:
						case draw(10) == 0:
							_ = l.Refund(ctx, got)
						default:
							mu.Lock()
							for range n {
								admitted = append(admitted, interval{began, time.Now()})
							}
							mu.Unlock()
						}
						mu.Lock()
						pause := time.Duration(r.ExpFloat64() * mean)
						mu.Unlock()
						if draw(200) == 0 {
							pause = window * time.Duration(draw(15)) / 10
						}
						time.Sleep(pause)
					}
				})
			}
			if seed%3 == 0 {
				time.Sleep(window * 7 / 3)
				net.Skew(-window * time.Duration(1+draw(30)) / 10)
				stepped++
			}
			all.Wait()
			most := mostIn(admitted, window)
			if most > int(limit.Tokens) {
				over++
				t.Errorf("seed %d: %d of %d in a window of %v, %d processes, %d %% faults", seed, most, limit.Tokens, window, processes, bad)
			}
			if most == int(limit.Tokens) {
				reached++
			}
			for _, f := range worst {
				faults += net.Happened(f)
			}
		})
	}
	t.Logf("%d runs: %d over, %d reached the limit, %d faults, %d clocks stepped back", runs, over, reached, faults, stepped)
	assert.Greater(t, reached, runs/4)
	assert.NotZero(t, faults)
	assert.NotZero(t, stepped)
}

// mostIn is how many of the admissions began and ended within less than a window, at the most.
func mostIn(all []interval, window time.Duration) (most int) {
	slices.SortFunc(all, func(a, b interval) int { return a.to.Compare(b.to) })
	for i, first := range all { // the interval begins with the beginning of one of them
		n := 0
		for _, a := range all[i:] {
			if a.to.Sub(first.from) >= window {
				break
			}
			if !a.from.Before(first.from) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// TestRollingOverload: processes that ask for half as much again as a rolling limit get nearly all of it
// with few calls, also after many windows. 20 parts of 21 are the most, because 21 slices count.
func TestRollingOverload(t *testing.T) {
	for _, row := range []struct {
		processes    int
		share, calls float64 // at least of the limit; at most to what is admitted
	}{{8, 0.93, 0.01}, {100, 0.895, 0.03}} {
		synctest.Test(t, func(t *testing.T) {
			const tokens, warm, end = 60_000, 8 * 63 * time.Second, 11 * 63 * time.Second // a slice counts for 63 s
			net, start := testnet.Far(time.Millisecond), time.Now()
			var admitted, calls atomic.Int64
			var all sync.WaitGroup
			for who := range row.processes {
				l, err := reservoir.New(net.Port(who, 0), reservoir.PerMinute(tokens).Rolling(), reservoir.WithHooks(reservoir.Hooks{
					StoreCall: func(reservoir.StoreCall) {
						if time.Since(start) > warm {
							calls.Add(1)
						}
					},
				}))
				require.NoError(t, err)
				draw := rand.New(rand.NewPCG(1, uint64(who)))
				all.Go(func() {
					pause := float64(row.processes) * float64(time.Minute) / (1.5 * tokens)
					for now := time.Duration(0); now < end; now = time.Since(start) {
						r, err := l.Allow(bg, "k")
						if assert.NoError(t, err); r.Allowed && now > warm {
							admitted.Add(1)
						}
						time.Sleep(time.Duration(draw.ExpFloat64() * pause))
					}
					assert.NoError(t, l.Close(bg))
				})
			}
			all.Wait()
			share, perAdmitted := float64(admitted.Load())/(tokens*(end-warm).Minutes()), float64(calls.Load())/float64(admitted.Load())
			t.Logf("%d processes: %.3f of the limit, %.2f %% calls", row.processes, share, 100*perAdmitted)
			assert.GreaterOrEqual(t, share, row.share)
			assert.LessOrEqual(t, perAdmitted, row.calls)
		})
	}
}

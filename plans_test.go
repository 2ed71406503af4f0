package reservoir_test

import (
	"context"
	"fmt"
	"runtime"
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

// A limit of nothing blocks, and Unlimited passes, without a store call, whatever the key
// was before; and back.
func TestPlans(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		var limit atomic.Value
		limit.Store(reservoir.PerMinute(10))
		l := open(t, net, reservoir.Limit{}, opt, reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
		g := reservoir.NewGroup(l, l)
		for _, key := range []string{"new", "used"} {
			if limit.Store(reservoir.PerMinute(10)); key == "used" {
				drain(t, l, key, 3)
				waiting := make(chan error)
				go func() { waiting <- waitFor(bg, l, key, 9) }()
				synctest.Wait()
				time.AfterFunc(time.Second, func() { limit.Store(reservoir.Unlimited()) })
				require.NoError(t, <-waiting)
			}
			limit.Store(reservoir.Unlimited())
			time.Sleep(5 * time.Second)
			allow(t, l, key, 1)
			time.Sleep(time.Second)
			calls := net.Count("")
			for _, n := range []int64{1, 1000, 1 << 50} {
				r := allow(t, l, key, n)
				assert.True(t, r.Allowed && r.Unlimited())
				require.NoError(t, l.Settle(bg, key, r, 5))
				require.NoError(t, waitFor(bg, l, key, n))
			}
			r, err := g.Allow(bg, key, key)
			assert.True(t, err == nil && r.Allowed && r.Unlimited())
			limit.Store(reservoir.Limit{Window: time.Hour})
			for range 10 {
				r := allow(t, l, key, 1)
				assert.True(t, !r.Allowed && !r.Unlimited() && r.RetryAfter > 0 && r.Remaining == 0, "%s: %+v", key, r)
				assert.Equal(t, r.RetryAfter, time.Until(r.Reset))
				if key == "new" {
					assert.Equal(t, time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC), r.Reset.UTC())
				}
			}
			c, err := l.Check(bg, key)
			assert.True(t, err == nil && !c.Allowed)
			short, cancel := context.WithTimeout(bg, time.Second/2)
			assert.ErrorIs(t, waitFor(short, l, key, 1), context.DeadlineExceeded)
			cancel()
			assert.Equal(t, calls, net.Count(""), key)
			limit.Store(reservoir.PerMinute(20))
			require.NoError(t, waitFor(bg, l, key, 11))
		}
		balance(t, l)
	})
	odd := open(t, testnet.Far(0), reservoir.Unlimited(), reservoir.WithLimits(func(key string) reservoir.Limit {
		if key == "panic" {
			panic("a bad plan")
		}
		return reservoir.Limit{}
	}))
	r := allow(t, odd, "k", 1)
	assert.True(t, !r.Allowed && r.RetryAfter > 0 && r.RetryAfter <= time.Minute)
	assert.Panics(t, func() { _, _ = reservoir.NewGroup(odd, odd).Allow(bg, "panic", "panic") })
	_, err := reservoir.New(testnet.Far(0), reservoir.PerMinute(0))
	assert.ErrorIs(t, err, reservoir.ErrLimit, "nobody wants that")
	_, err = reservoir.New(testnet.Far(0), reservoir.Limit{})
	assert.ErrorIs(t, err, reservoir.ErrLimit)
	_, err = reservoir.New(testnet.Far(0), reservoir.Unlimited())
	assert.NoError(t, err)
}

// In shadow what a limit refuses passes, and says so. Nobody waits, and what passes is not
// charged.
func TestShadow(t *testing.T) {
	for _, perKey := range []bool{false, true} {
		inBubbles(t, fmt.Sprint("key=", perKey), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			opts, net := []reservoir.Option{opt, reservoir.WithShadow()}, testnet.Far(time.Millisecond)
			if perKey {
				opts[1] = reservoir.WithLimits(func(string) reservoir.Limit {
					return reservoir.Limit{Tokens: 10, Window: time.Minute, Shadow: true}
				})
			}
			l := open(t, net, reservoir.PerMinute(10), opts...)
			strict := open(t, net, reservoir.PerMinute(1000), opt, reservoir.WithName("strict"))
			g, key := reservoir.NewGroup(l, strict), l.Key("k")
			var shadowed int64
			for range 20 {
				for _, ask := range []func() (reservoir.Result, error){
					func() (reservoir.Result, error) { return l.Allow(bg, "k") },
					func() (reservoir.Result, error) { return key.Allow(bg) },
					func() (reservoir.Result, error) { return l.Wait(bg, "k") },
					func() (reservoir.Result, error) { return l.AllowN(bg, "k", 11) },
					func() (reservoir.Result, error) { r, err := g.Allow(bg, "k", "k"); return r.Result, err },
				} {
					r, err := ask()
					require.NoError(t, err)
					require.True(t, r.Allowed)
					require.Zero(t, r.RetryAfter)
					if r.Shadowed {
						shadowed++
						require.NoError(t, l.Settle(bg, "k", r, 3))
					}
				}
			}
			s := l.Stats()
			assert.EqualValues(t, 10, s.Spent-s.Refunded)
			assert.EqualValues(t, 20, strict.Stats().Spent-strict.Stats().Refunded, "another limit of the group is charged")
			assert.GreaterOrEqual(t, s.Shadowed, shadowed)
			assert.Greater(t, shadowed, int64(60))
			assert.Less(t, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), 10*time.Second, "nobody waited")
		})
	}
}

// A key that was reset has its whole limit once more, in all processes within a probe's
// time, and never more of the new window than that. Only stock comes on top.
func TestReset(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for what, limit := range map[string]reservoir.Limit{"hour": reservoir.PerHour(600), "minute": reservoir.PerMinute(600), "day": reservoir.PerDay(600, nil)} {
			net := testnet.Far(time.Millisecond)
			all := fleet(t, 3, net, limit, opt)
			require.NoError(t, all[0].Reset(bg, what), "nothing is open")
			exhaust(t, all, what)
			before := allow(t, all[1], what, 1)
			require.False(t, before.Allowed)
			waiting := make(chan error, 1)
			go func() { waiting <- waitFor(bg, all[0], what, 5) }()
			synctest.Wait()
			held := stats(all...).Held
			require.NoError(t, all[0].Key(what).Reset(bg))
			require.NoError(t, <-waiting)
			require.Less(t, time.Until(before.Reset), before.RetryAfter, "at once, not at the reset")
			fresh := map[time.Time]int64{}
			fresh[allow(t, all[0], what, 1).Reset] = 6
			for end := time.Now().Add(min(limit.Window, time.Hour) / 2); time.Now().Before(end); time.Sleep(min(limit.Window, time.Hour) / 1000) {
				for _, l := range all {
					for range 5 {
						if r := allow(t, l, what, 1); r.Allowed && !r.Reset.Equal(before.Reset) {
							fresh[r.Reset]++
						} else if r.Allowed {
							held--
						}
					}
				}
			}
			require.Len(t, fresh, 1)
			require.GreaterOrEqual(t, held, int64(0), "of the old window only what was held")
			for end, n := range fresh {
				require.NotEqual(t, before.Reset, end)
				require.LessOrEqual(t, n, limit.Tokens)
				require.Greater(t, n+stats(all...).Held, limit.Tokens*9/10)
			}
			for _, l := range all {
				balance(t, l)
				require.NoError(t, l.Close(bg))
				require.ErrorIs(t, l.Reset(bg, what), reservoir.ErrClosed)
			}
		}
	})
	l := open(t, testnet.Far(0), reservoir.PerHour(5))
	assert.ErrorIs(t, l.Reset(bg, ""), reservoir.ErrKey)
}

type slowReset struct {
	backend.Store
	late time.Duration
}

func (s slowReset) Reset(ctx context.Context, r backend.ResetRequest) (backend.State, error) {
	reply, err := s.Store.Reset(ctx, r)
	time.Sleep(s.late)
	return reply, err
}

func TestLateReplyToReset(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		l := open(t, slowReset{testnet.Far(0), 20 * time.Millisecond}, reservoir.PerHour(100), opt)
		old := allow(t, l, "k", 1).Reset
		drain(t, l, "k", 1)
		time.Sleep(time.Minute)
		fresh := map[time.Time]int64{}
		go func() { assert.NoError(t, l.Reset(bg, "k")) }()
		for range 4000 {
			time.Sleep(time.Millisecond)
			if r := allow(t, l, "k", 1); r.Allowed && !r.Reset.Equal(old) {
				fresh[r.Reset]++
			}
		}
		for w, n := range fresh {
			assert.LessOrEqual(t, n, int64(100), "%v", w)
		}
		balance(t, l)
	})
}

func TestBlockedStaysBlocked(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		var limit atomic.Value
		limit.Store(reservoir.PerMinute(1000))
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.Limit{}, opt, reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
		r := allow(t, l, "k", 50)
		time.Sleep(5 * time.Second)
		limit.Store(reservoir.Limit{Window: time.Minute})
		drain(t, l, "k", 1)
		require.False(t, allow(t, l, "k", 1).Allowed)
		require.NoError(t, l.Settle(bg, "k", r, 10))
		for i := range 100 {
			require.False(t, allow(t, l, "k", 1).Allowed, i)
			time.Sleep(10 * time.Millisecond)
		}
		balance(t, l)
	})
}

func TestUnlimitedStaysUnlimited(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		var limit atomic.Value
		limit.Store(reservoir.PerMinute(100))
		l := open(t, testnet.Far(20*time.Millisecond), reservoir.PerMinute(1), opt, reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
		drain(t, l, "k", 1)
		limit.Store(reservoir.Unlimited())
		var passed int
		for range 10_000 {
			if allow(t, l, "k", 1).Allowed {
				passed++
			} else {
				require.Zero(t, passed)
			}
			time.Sleep(time.Millisecond)
		}
		require.NotZero(t, passed)
	})
}

func TestRefusalsAreFreeAfterAnothersReset(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for _, limit := range []reservoir.Limit{reservoir.PerDay(100, nil), reservoir.PerHour(100), reservoir.PerMinute(100)} {
			net := testnet.Far(time.Millisecond)
			all := fleet(t, 2, net, limit, opt)
			for _, l := range all {
				allow(t, l, "k", 1)
			}
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, all[0].Reset(bg, "k"))
			drain(t, all[0], "k", 1)
			drain(t, all[1], "k", 1)
			synctest.Wait()
			calls := net.Count("")
			for range 1000 {
				require.False(t, allow(t, all[1], "k", 1).Allowed)
			}
			assert.LessOrEqual(t, net.Count("")-calls, 3, "%v", limit.Window)
			for _, l := range all {
				balance(t, l)
				require.NoError(t, l.Close(bg))
			}
		}
	})
}

func TestShadowedIsOfDenied(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for _, more := range []reservoir.Option{patient, reservoir.WithMaxKeys(0)} {
			l := open(t, testnet.Far(0), reservoir.PerMinute(10), opt, reservoir.WithShadow(), more)
			for range 20 {
				require.True(t, allow(t, l, "k", 11).Shadowed)
				allow(t, l, "k", 1)
				require.NoError(t, waitFor(bg, l, "k", 11))
			}
			s := l.Stats()
			assert.LessOrEqual(t, s.Shadowed, s.Denied)
			assert.EqualValues(t, 10, s.Admitted)
		}
	})
}

// Who waits is never refused, also while a limit is tried in shadow at first, and then is
// in earnest or blocks.
func TestWaitWhenShadowEnds(t *testing.T) {
	for what, to := range map[string]reservoir.Limit{"limit": reservoir.PerMinute(10), "blocked": {Window: time.Minute}} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			var limit atomic.Value
			limit.Store(reservoir.Limit{Tokens: 10, Window: time.Minute, Shadow: true})
			l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(1), opt, reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
			require.True(t, allow(t, l, "k", 10).Allowed)
			require.True(t, allow(t, l, "k", 10).Shadowed)
			limit.Store(to)
			for range 100 {
				ctx, cancel := context.WithTimeout(bg, time.Second)
				r, err := l.WaitN(ctx, "k", 10)
				cancel()
				require.True(t, err != nil || r.Allowed, "%+v", r)
				if err == nil && !r.Shadowed {
					return
				}
				time.Sleep(time.Second)
			}
			require.Zero(t, to.Tokens, "it is served in the end")
		})
	}
}

// "This process serves from the new window at once", also if a request of it is on its way.
func TestResetWithAFetchInFlight(t *testing.T) {
	for _, lead := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
		inBubbles(t, lead.String(), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(2 * time.Millisecond)
			all := fleet(t, 2, net, reservoir.PerHour(100), opt)
			drain(t, all[1], "k", 1)
			go func() { _, _ = all[0].Allow(bg, "k") }()
			time.Sleep(lead)
			require.NoError(t, all[0].Reset(bg, "k"))
			var admitted int64
			for range 50 {
				if allow(t, all[0], "k", 1).Allowed {
					admitted++
				}
				time.Sleep(time.Second)
			}
			assert.EqualValues(t, 50, admitted, "in the first minute after the reset")
		})
	}
}

// The same with a Wait under way, for which the reset is news.
func TestResetFreesWaiters(t *testing.T) {
	for _, lead := range []time.Duration{time.Millisecond, 5 * time.Millisecond} {
		inBubbles(t, lead.String(), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(2 * time.Millisecond)
			all := fleet(t, 2, net, reservoir.PerHour(100), opt)
			drain(t, all[1], "k", 1)
			done := make(chan time.Time, 1)
			go func() { _ = waitFor(bg, all[0], "k", 1); done <- time.Now() }()
			time.Sleep(lead)
			begin := time.Now()
			require.NoError(t, all[0].Reset(bg, "k"))
			assert.Less(t, (<-done).Sub(begin), time.Minute)
		})
	}
}

// The tightest is told, among shadowed, blocked in shadow, unlimited and unasked ones.
func TestGroupTightest(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		blockedInShadow := open(t, net, reservoir.PerHour(10), reservoir.WithName("b"), reservoir.WithShadow(), reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.Limit{} }))
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
		assert.True(t, r.Unlimited())
	})
}

// A function of WithLimits that ends its goroutine made no decision, also in a group.
func TestGroupWhoseLimitsExit(t *testing.T) {
	net := testnet.Far(time.Millisecond)
	a := open(t, net, reservoir.PerMinute(100), reservoir.WithName("a"))
	b := open(t, net, reservoir.PerMinute(100), reservoir.WithName("b"), reservoir.WithLimits(func(string) reservoir.Limit {
		runtime.Goexit()
		return reservoir.Limit{}
	}))
	r, err := reservoir.NewGroup(a, b).Allow(bg, "k", "k")
	assert.Error(t, err)
	assert.False(t, r.Allowed)
	assert.EqualValues(t, 1, a.Stats().Refunded)
}

// A shadowed request for more than the limit tells the same window as all others.
func TestShadowedLargeRequest(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(100), opt, reservoir.WithShadow())
		was := allow(t, l, "k", 10)
		time.Sleep(10 * time.Second)
		r := allow(t, l, "k", 101)
		assert.True(t, r.Allowed && r.Shadowed)
		assert.True(t, was.Reset.Equal(r.Reset), "%v, not %v", was.Reset, r.Reset)
		assert.Equal(t, was.Remaining, r.Remaining)
	})
}

// A caller in line for a limit passes when the limit goes into shadow.
func TestWaitWhenShadowBegins(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		var shadow atomic.Bool
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerDay(1, nil), opt, reservoir.WithLimits(func(string) reservoir.Limit {
			return reservoir.Limit{Tokens: 1, Window: 24 * time.Hour, Shadow: shadow.Load()}
		}))
		first := allow(t, l, "k", 1)
		time.AfterFunc(time.Second, func() { shadow.Store(true) })
		r, err := l.Wait(bg, "k")
		require.NoError(t, err)
		assert.True(t, r.Shadowed)
		assert.True(t, time.Now().Before(first.Reset))
	})
}

// In shadow a request passes too if the limit falls below it while it is in line.
func TestLimitLoweredInShadow(t *testing.T) {
	for what, request := range map[string]func(l *reservoir.Limiter) (reservoir.Result, error){
		"allow": func(l *reservoir.Limiter) (reservoir.Result, error) { return l.AllowN(bg, "k", 50) },
		"wait":  func(l *reservoir.Limiter) (reservoir.Result, error) { return l.WaitN(bg, "k", 50) },
	} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			var calls atomic.Int64
			l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(100), opt, reservoir.WithShadow(), reservoir.WithLimits(func(string) reservoir.Limit {
				if calls.Add(1) == 1 {
					return reservoir.PerMinute(100)
				}
				return reservoir.PerMinute(10)
			}))
			r, err := request(l)
			require.NoError(t, err)
			assert.True(t, r.Allowed && r.Shadowed)
		})
	}
}

// A key is forgotten during its first call, which meets a window of the limit's old length.
func TestOldWindowOfAForgottenKey(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(40 * time.Millisecond)
		other := open(t, net, reservoir.PerHour(100))
		was := allow(t, other, "k", 1)
		l := open(t, net, reservoir.PerHour(100), reservoir.WithDirect(), reservoir.WithIdle(50*time.Millisecond),
			reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.PerMinute(100) }))
		r := allow(t, l, "k", 1)
		assert.True(t, r.Allowed)
		assert.True(t, was.Reset.Equal(r.Reset))
	})
}

// A process that has adopted a window of another length gets the error when another process
// opens one more of that length, though it has stated that length itself. A process that the
// store refuses there is refused until the end.
func TestSecondWindowOfAnotherLength(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		hour := open(t, net, reservoir.PerMinute(1), planned(reservoir.PerHour(100)).option(), opt, reservoir.WithIdle(3*time.Hour))
		second := open(t, net, reservoir.PerMinute(1), planned(reservoir.PerSecond(10)).option(), opt, reservoir.WithIdle(3*time.Hour))
		first := allow(t, hour, "k", 1)
		require.Equal(t, first.Reset, allow(t, second, "k", 1).Reset)
		time.Sleep(time.Until(first.Reset) + 200*time.Millisecond)
		require.Greater(t, time.Until(allow(t, hour, "k", 1).Reset), 59*time.Minute)
		for range 120 {
			if _, err := second.Allow(bg, "k"); err != nil {
				require.ErrorIs(t, err, reservoir.ErrConflict)
				return
			}
			time.Sleep(time.Second)
		}
		t.Fatal("no conflict")
	})
}

// plan is a limit that a test replaces.
type plan struct {
	atomic.Pointer[reservoir.Limit]
}

func planned(l reservoir.Limit) *plan {
	p := new(plan)
	p.Store(&l)
	return p
}

func (p *plan) option() reservoir.Option {
	return reservoir.WithLimits(func(string) reservoir.Limit { return *p.Load() })
}

// A plan is changed to another length in mid-window, and clients come at every full hour, or
// an instant before or after it. The window that was open keeps its end; later ones have
// the ends of the new limit, and none admits more than the larger of the two.
func TestPlanOfAnotherLength(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin") // clocks change on 26 March 2000
	require.NoError(t, err)
	for what, c := range map[string]struct {
		before, after reservoir.Limit
		change        time.Time
		every         time.Duration
		ends          []time.Time // the first ends after the open window's
	}{
		"day to month": {reservoir.PerDay(20, nil), reservoir.PerMonth(1000, nil), at(time.UTC, 4, 15, 13), time.Hour,
			[]time.Time{at(time.UTC, 5, 1, 0), at(time.UTC, 6, 1, 0)}},
		"day to month in which clocks change": {reservoir.PerDay(20, zone), reservoir.PerMonth(100, zone), at(zone, 3, 15, 13), time.Hour,
			[]time.Time{at(zone, 4, 1, 0), at(zone, 5, 1, 0)}},
		"month to day": {reservoir.PerMonth(1000, nil), reservoir.PerDay(20, nil), at(time.UTC, 4, 15, 13), time.Hour,
			[]time.Time{at(time.UTC, 5, 2, 0), at(time.UTC, 5, 3, 0)}},
		"day to hour": {reservoir.Limit{Tokens: 100, Window: 24 * time.Hour}, reservoir.PerHour(100), at(time.UTC, 1, 2, 13), 5 * time.Minute, nil},
		"hour to day": {reservoir.PerHour(100), reservoir.Limit{Tokens: 100, Window: 24 * time.Hour}, at(time.UTC, 1, 2, 13), 5 * time.Minute, nil},
	} {
		for _, off := range []time.Duration{-time.Millisecond, 0, 10 * time.Second} {
			inBubbles(t, fmt.Sprint(what, off), smallBatches(), func(t *testing.T, _ string, opt reservoir.Option) {
				net, limit := testnet.Far(time.Microsecond), planned(c.before)
				time.Sleep(time.Until(c.change.Add(-3 * time.Hour)))
				all := fleet(t, 2, net, reservoir.PerMinute(1), limit.option(), opt, reservoir.WithIdle(72*time.Hour))
				allow(t, all[0], "k", 1)
				time.Sleep(time.Until(c.change))
				open := allow(t, all[1], "k", 1).Reset
				limit.Store(&c.after)
				time.Sleep(off + c.every)
				admitted, ends := map[time.Time]int64{}, []time.Time(nil)
				for i := 0; len(ends) < 4 && i < 3000; i++ {
					for range 40 {
						r := allow(t, all[i%2], "k", 1)
						if len(ends) == 0 || !ends[len(ends)-1].Equal(r.Reset) {
							ends = append(ends, r.Reset)
						}
						if r.Allowed {
							admitted[r.Reset]++
						}
					}
					time.Sleep(c.every)
				}
				require.True(t, open.Equal(ends[0]), "the open window ends at %v, not %v", open, ends[0])
				for i, end := range c.ends {
					require.True(t, end.Equal(ends[i+1]), "%v, want %v", ends[i+1], end)
				}
				for i, end := range ends[1:] {
					if c.ends == nil {
						length := end.Sub(ends[i])
						require.True(t, length >= c.after.Window && length <= c.after.Window+c.every+time.Second, "windows end at %v", ends)
					}
					require.LessOrEqual(t, admitted[end], c.after.Tokens, "%v", end)
				}
				require.Greater(t, len(ends), 2)
				require.LessOrEqual(t, admitted[open], max(c.before.Tokens, c.after.Tokens))
			})
		}
	}
}

// A limit has changed while a process was away: the process that starts with the new one
// goes on in the open window, with WithLimits and without, and opens windows of the new
// length afterwards.
func TestPlanOfAnotherLengthAfterARestart(t *testing.T) {
	for _, own := range []bool{true, false} {
		inBubbles(t, fmt.Sprint("WithLimits=", own), batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			start := func(limit reservoir.Limit) *reservoir.Limiter {
				if own {
					return open(t, net, reservoir.PerMinute(1), planned(limit).option(), opt)
				}
				return open(t, net, limit, opt)
			}
			first := start(reservoir.PerHour(100))
			r := allow(t, first, "k", 10)
			time.Sleep(time.Minute)
			require.NoError(t, first.Close(bg))
			second := start(reservoir.PerSecond(20))
			again := allow(t, second, "k", 1)
			require.Equal(t, r.Reset, again.Reset)
			require.EqualValues(t, 9, drain(t, second, "k", 1))
			time.Sleep(time.Until(r.Reset) + time.Millisecond)
			again = allow(t, second, "k", 1)
			require.True(t, again.Allowed)
			require.LessOrEqual(t, time.Until(again.Reset), time.Second)
		})
	}
}

// After a change to a shorter window, who is refused in the open one is told when that ends,
// whoever answers: a batch, memory, a direct call, Check, FailLocal.
func TestRetryAfterInAnOldWindow(t *testing.T) {
	cases := everyPolicy()
	cases["no memory"] = reservoir.WithMaxKeys(0)
	for _, away := range []bool{false, true} {
		inBubbles(t, fmt.Sprint("away=", away), cases, func(t *testing.T, name string, opt reservoir.Option) {
			if away && name == "no memory" {
				return // it has no policy but FailOpen
			}
			net, limit := testnet.Far(time.Millisecond), planned(reservoir.PerHour(10))
			l := open(t, net, reservoir.PerMinute(1), limit.option(), opt, reservoir.WithFailure(reservoir.FailLocal(0.5)))
			was := allow(t, l, "k", 1)
			if away {
				breakdown(t, l, net, testnet.Refuse)
				drain(t, l, "k", 1)
			}
			seconds := reservoir.PerSecond(10)
			limit.Store(&seconds)
			_, _ = l.AllowN(bg, "k", 11) // it is heard of
			for range 30 {
				if r := allow(t, l, "k", 1); !r.Allowed {
					require.True(t, was.Reset.Equal(r.Reset))
					require.InDelta(t, time.Until(was.Reset), r.RetryAfter, float64(5*time.Second), "%+v", r)
				}
				time.Sleep(time.Second)
			}
			require.False(t, allow(t, l, "k", 1).Allowed)
		})
	}
}

// Two processes state limits of different lengths for one key. While the first window is
// open, the limit may have changed; afterwards both go on, and one of them gets the error. No
// window admits more than its own limit.
func TestTwoPlansOfOneKey(t *testing.T) {
	for _, first := range []int{0, 1} {
		inBubbles(t, fmt.Sprint("first=", first), smallBatches(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			limits := []reservoir.Limit{reservoir.PerSecond(10), reservoir.PerHour(100)}
			var all []*reservoir.Limiter
			for _, l := range limits {
				all = append(all, open(t, net, reservoir.PerMinute(1), planned(l).option(), opt))
			}
			allow(t, all[first], "k", 1)
			conflicts, admitted := 0, map[time.Time]int64{}
			for i := range 100 * 60 * 2 {
				r, err := all[i%2].Allow(bg, "k")
				if err != nil {
					require.ErrorIs(t, err, reservoir.ErrConflict)
					conflicts++
				} else if r.Allowed {
					admitted[r.Reset]++
				}
				time.Sleep(500 * time.Millisecond)
			}
			assert.Positive(t, conflicts)
			for end, n := range admitted {
				assert.LessOrEqual(t, n, int64(100), "%v", end)
			}
		})
	}
}

// Of two processes, one learns of a change just before the open window ends, and the other
// opens one more window of the old length before it learns. Both go on in that, and then have
// the new length.
func TestPlanThatReachesProcessesInTurn(t *testing.T) {
	for what, c := range map[string]struct{ before, after reservoir.Limit }{
		"month to day":   {reservoir.PerMonth(1000, nil), reservoir.PerDay(20, nil)},
		"hour to minute": {reservoir.PerHour(1000), reservoir.PerMinute(20)},
	} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			var all []*reservoir.Limiter
			plans := []*plan{planned(c.before), planned(c.before)}
			for _, p := range plans {
				all = append(all, open(t, net, reservoir.PerMinute(1), p.option(), opt, reservoir.WithIdle(60*24*time.Hour)))
			}
			end := allow(t, all[0], "k", 1).Reset
			time.Sleep(time.Until(end.Add(-5 * time.Second)))
			plans[0].Store(&c.after)
			_, err := all[0].AllowN(bg, "k", 900) // more than it holds, so it asks
			require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
			time.Sleep(time.Until(end.Add(5 * time.Second)))
			old := allow(t, all[1], "k", 1).Reset
			require.Greater(t, time.Until(old), c.after.Window)
			plans[1].Store(&c.after)
			for i := range 100 {
				require.Equal(t, old, allow(t, all[i%2], "k", 1).Reset)
				time.Sleep(time.Second)
			}
			time.Sleep(time.Until(old) + time.Second)
			for i := range 2 {
				require.LessOrEqual(t, time.Until(allow(t, all[i], "k", 1).Reset), c.after.Window)
			}
		})
	}
}

package reservoir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// What is settled below the charge goes back into stock, and what is settled above it
// comes out of stock, without a call and without memory.
func TestSettleFromStock(t *testing.T) {
	net := far(0)
	l := open(t, net, reservoir.PerHour(1_000_000), reservoir.WithBatch(reservoir.Fixed(100_000)), patient)
	key := l.Key("k")
	r, err := key.AllowN(bg, 100)
	require.NoError(t, err)
	calls := net.count("")
	for _, n := range []int64{30, 0, 250, 100} {
		was := l.Stats()
		require.NoError(t, key.Settle(bg, r, n))
		is := l.Stats()
		assert.Equal(t, max(100-n, 0), is.Refunded-was.Refunded)
		assert.Equal(t, max(n-100, 0), is.Spent-was.Spent)
		assert.Equal(t, n-100, was.Held-is.Held)
		balance(t, l)
		r, err = key.AllowN(bg, 100)
		require.NoError(t, err)
	}
	assert.Equal(t, calls, net.count(""))
	for _, n := range []int64{90, 100, 110} {
		assert.Zero(t, testing.AllocsPerRun(100, func() { _ = key.Settle(bg, r, n) }), n)
	}
	assert.Zero(t, l.Stats().Overdrawn)
}

// What the stock lacks becomes debt. It waits for the next statement, at most a twentieth
// of the window, and is charged even above the limit; so much is overdrawn, to the token.
func TestSettleAboveTheStock(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for _, n := range []int64{60, 100, 101, 170, 1000} {
			net := far(time.Millisecond)
			var told diary
			l := open(t, net, reservoir.PerMinute(100), opt, told.keep())
			charges := func() (n int) {
				for _, c := range told.all() {
					if c.Cause == "charge" {
						n++
					}
				}
				return n
			}
			r := allow(t, l, "k", 50)
			begin := time.Now()
			require.NoError(t, l.Settle(bg, "k", r, n))
			require.Zero(t, time.Since(begin), "it does not wait")
			synctest.Wait()
			time.Sleep(time.Second)
			require.Zero(t, charges(), "it makes no call of its own")
			time.Sleep(time.Minute/20 + 10*time.Millisecond)
			s := l.Stats()
			assert.Zero(t, s.Owed, n)
			assert.Equal(t, n, s.Spent, n)
			assert.Equal(t, max(n-100, 0), s.Overdrawn, n)
			assert.Equal(t, n+s.Held, used(t, net, "k"), n)
			assert.LessOrEqual(t, charges(), 1, n)
			balance(t, l)
			if n >= 100 {
				require.False(t, allow(t, l, "k", 1).Allowed)
			}
			require.NoError(t, l.Close(bg))
		}
	})
}

// The next statement carries debt, whatever it is made for, and so does Close.
func TestDebtOfSettleGoesAlong(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(1000), opt)
		r := allow(t, l, "k", 10)
		require.NoError(t, l.Settle(bg, "k", r, 400))
		require.True(t, allow(t, l, "k", 500).Allowed)
		synctest.Wait()
		assert.Zero(t, l.Stats().Owed)
		require.NoError(t, l.Settle(bg, "k", r, 40))
		require.NoError(t, l.Close(bg))
		assert.EqualValues(t, 930, used(t, net, "k"))
		balance(t, l)
	})
}

// What goes back pays for debt first.
func TestSurplusPaysForDebt(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := far(0)
		l := open(t, net, reservoir.PerMinute(100), reservoir.WithBatch(reservoir.Fixed(1)))
		a, b := allow(t, l, "k", 50), allow(t, l, "k", 50)
		require.NoError(t, l.Settle(bg, "k", a, 80))
		require.NoError(t, l.Settle(bg, "k", b, 15))
		s := l.Stats()
		assert.EqualValues(t, 5, s.Held)
		time.Sleep(time.Minute / 10)
		s = l.Stats()
		assert.EqualValues(t, 95, s.Spent-s.Refunded)
		assert.Zero(t, s.Overdrawn)
		balance(t, l)
	})
}

// A Result that is not of the key, or was refused, and a number that makes no sense change
// nothing. What is settled twice never gives back more than was used.
func TestSettleOfOtherThings(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt)
		r, other := allow(t, l, "k", 30), allow(t, l, "other", 1)
		was := l.Stats()
		for _, n := range []int64{0, 30, 99} {
			assert.ErrorIs(t, l.Settle(bg, "k", other, n), reservoir.ErrResult)
			assert.ErrorIs(t, l.Key("k").Settle(bg, other, n), reservoir.ErrResult)
			assert.ErrorIs(t, l.Settle(bg, "", r, n), reservoir.ErrKey)
			assert.NoError(t, l.Settle(bg, "k", reservoir.Result{}, n))
		}
		assert.ErrorIs(t, l.Settle(bg, "k", r, -1), reservoir.ErrTokens)
		assert.ErrorIs(t, l.Settle(bg, "k", r, 1<<53), reservoir.ErrTokens)
		assert.Equal(t, was, l.Stats())
		for range 5 {
			require.NoError(t, l.Settle(bg, "k", r, 10))
		}
		assert.EqualValues(t, 100, drain(t, l, "k", 1), "no tokens come out of nothing")
		balance(t, l)
	})
}

// After its window, a surplus has expired, and an overrun is forgotten, unless an option
// counts it against the window that is open then.
func TestSettleLate(t *testing.T) {
	for _, counts := range []bool{false, true} {
		inBubbles(t, fmt.Sprint("counts=", counts), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			net, opts := far(time.Millisecond), []reservoir.Option{opt}
			if counts {
				opts = append(opts, reservoir.WithLateOverruns())
			}
			l := open(t, net, reservoir.PerMinute(100), opts...)
			low, high := allow(t, l, "k", 20), allow(t, l, "k", 20)
			time.Sleep(2 * time.Minute)
			require.True(t, allow(t, l, "k", 10).Allowed)
			was := l.Stats()
			require.NoError(t, l.Settle(bg, "k", low, 1))
			assert.Equal(t, was.Refunded, l.Stats().Refunded)
			require.NoError(t, l.Settle(bg, "k", high, 50))
			time.Sleep(10 * time.Second)
			want := int64(10)
			if counts {
				want += 30
			}
			assert.Equal(t, want, used(t, net, "k")-l.Stats().Held)
			time.Sleep(2 * time.Minute)
			require.NoError(t, l.Settle(bg, "k", high, 50), "in no window at all")
			time.Sleep(2 * time.Minute)
			require.True(t, allow(t, l, "k", 100).Allowed)
			balance(t, l)
		})
	}
}

// A key that was forgotten, or that there is no room for, is settled too: an overrun is
// charged.
func TestSettleOfAForgottenKey(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithIdle(time.Second))
		r := allow(t, l, "k", 20)
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().Keys, "%d calls", net.count(""))
		require.NoError(t, l.Settle(bg, "k", r, 50))
		require.NoError(t, l.Settle(bg, "k", r, 10), "what goes back may be lost, but never doubled")
		time.Sleep(10 * time.Minute)
		assert.LessOrEqual(t, used(t, net, "k"), int64(50))
		assert.GreaterOrEqual(t, used(t, net, "k"), int64(40))
		balance(t, l)
	})
	inBubble(t, "no room", func(t *testing.T) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), reservoir.WithMaxKeys(0))
		r := allow(t, l, "k", 20)
		require.NoError(t, l.Settle(bg, "k", r, 50))
		assert.EqualValues(t, 50, used(t, net, "k"))
		require.NoError(t, l.Settle(bg, "k", allow(t, l, "k", 40), 25))
		assert.EqualValues(t, 75, used(t, net, "k"))
		require.NoError(t, l.Settle(bg, "k", allow(t, l, "k", 20), 50))
		assert.EqualValues(t, 125, used(t, net, "k"))
		assert.EqualValues(t, 25, l.Stats().Overdrawn)
		balance(t, l)
	})
}

// Processes admit and settle at random. The admissions never exceed the limit, and what
// was used does by exactly as much as is overdrawn where nothing comes back afterwards.
func TestSettleAmongProcesses(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for seed := range uint64(5) {
			const limit = 5000
			rnd := rand.New(rand.NewPCG(seed, 1))
			net := far(time.Millisecond)
			all := fleet(t, 4, net, reservoir.PerHour(limit), opt)
			var used, charged int64
			for i := 0; i < 2000; i++ {
				l, n := all[rnd.IntN(len(all))], 1+rnd.Int64N(20)
				r, err := l.AllowN(context.Background(), "k", n)
				require.NoError(t, err)
				if !r.Allowed {
					continue
				}
				more := rnd.Int64N(5)
				charged, used = charged+n, used+n+more
				require.NoError(t, l.Settle(context.Background(), "k", r, n+more))
				time.Sleep(time.Duration(rnd.IntN(400)) * time.Millisecond)
			}
			time.Sleep(5 * time.Minute)
			sum := stats(all...)
			require.LessOrEqual(t, charged, int64(limit))
			require.Equal(t, used, sum.Spent)
			require.Equal(t, max(used+sum.Held-limit, 0), sum.Overdrawn, "seed %d", seed)
			for _, l := range all {
				balance(t, l)
				require.NoError(t, l.Close(bg))
			}
		}
	})
}

// A Group charges each limit its own cost, or none of them; what was used is settled for
// each. The result is that of the tightest.
func TestGroupWithACostPerLimit(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
		requests, tokens := open(t, net, reservoir.PerMinute(100), opt), open(t, net, reservoir.PerMinute(10_000), opt)
		g := reservoir.NewGroup(requests, tokens)
		var used int64
		for range 20 {
			r, err := g.AllowEach(bg, []int64{1, 1000}, "r", "t")
			require.NoError(t, err)
			require.Equal(t, 1, r.Limiter)
			if !r.Allowed {
				break
			}
			used += 500
			require.NoError(t, g.Settle(bg, r, []int64{1, 500}, "r", "t"))
		}
		s, of := requests.Stats(), tokens.Stats()
		assert.Equal(t, used/500, s.Spent-s.Refunded)
		assert.Equal(t, used, of.Spent-of.Refunded)
		assert.EqualValues(t, 9500, used, "half of each charge came back")
		for _, bad := range [][]int64{nil, {1}, {1, 2, 3}} {
			_, err := g.AllowEach(bg, bad, "r", "t")
			assert.ErrorIs(t, err, reservoir.ErrOption)
			_, err = g.WaitEach(bg, bad, "r", "t")
			assert.ErrorIs(t, err, reservoir.ErrOption)
			assert.ErrorIs(t, g.Settle(bg, reservoir.GroupResult{}, bad, "r", "t"), reservoir.ErrOption)
		}
		was := tokens.Stats().Spent
		free, err := g.AllowEach(bg, []int64{1, 0}, "r", "t")
		assert.True(t, err == nil && free.Allowed && free.Limiter == 0 && free.Limit == 100)
		free, err = g.WaitEach(bg, []int64{1, 0}, "r", "t")
		assert.True(t, err == nil && free.Allowed && free.Limiter == 0)
		require.NoError(t, g.Settle(bg, free, []int64{0, 0}, "r", "t"))
		assert.Equal(t, was, tokens.Stats().Spent, "what costs nothing is not asked")
		_, err = g.AllowEach(bg, []int64{1, -1}, "r", "t")
		assert.ErrorIs(t, err, reservoir.ErrTokens)
		_, err = g.AllowEach(bg, []int64{101, 1}, "r", "t")
		assert.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		assert.ErrorIs(t, g.Settle(bg, reservoir.GroupResult{}, []int64{1, 1}, "r"), reservoir.ErrOption)
		balance(t, requests)
		balance(t, tokens)
	})
}

// Waiting for several limits, a caller holds none of them while it waits for another.
// Everybody comes to be served, within all limits, through resets and an outage.
func TestGroupWaits(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
		second, minute := open(t, net, reservoir.PerSecond(10), opt), open(t, net, reservoir.PerMinute(150), opt)
		g := reservoir.NewGroup(second, minute)
		net.always(loseRequest)
		time.AfterFunc(3*time.Second, func() { net.set(nil) })
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

// take is the error of a call.
func take[T any](_ T, err error) error { return err }

// A limit of nothing blocks, and Unlimited passes, without a store call, whatever the key
// was before; and back.
func TestPlans(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
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
				time.AfterFunc(time.Second, func() { limit.Store(reservoir.Unlimited) })
				require.NoError(t, <-waiting)
			}
			limit.Store(reservoir.Unlimited)
			time.Sleep(5 * time.Second)
			allow(t, l, key, 1)
			time.Sleep(time.Second)
			calls := net.count("")
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
			assert.Equal(t, calls, net.count(""), key)
			limit.Store(reservoir.PerMinute(20))
			require.NoError(t, waitFor(bg, l, key, 11))
		}
		balance(t, l)
	})
	odd := open(t, far(0), reservoir.Unlimited, reservoir.WithLimits(func(key string) reservoir.Limit {
		if key == "panic" {
			panic("a bad plan")
		}
		return reservoir.Limit{}
	}))
	r := allow(t, odd, "k", 1)
	assert.True(t, !r.Allowed && r.RetryAfter > 0 && r.RetryAfter <= time.Minute)
	assert.Panics(t, func() { _, _ = reservoir.NewGroup(odd, odd).Allow(bg, "panic", "panic") })
	_, err := reservoir.New(far(0), reservoir.PerMinute(0))
	assert.ErrorIs(t, err, reservoir.ErrLimit, "nobody wants that")
	_, err = reservoir.New(far(0), reservoir.Limit{})
	assert.ErrorIs(t, err, reservoir.ErrLimit)
	_, err = reservoir.New(far(0), reservoir.Unlimited)
	assert.NoError(t, err)
}

// In shadow what a limit refuses passes, and says so. Nobody waits, and what passes is not
// charged.
func TestShadow(t *testing.T) {
	for _, perKey := range []bool{false, true} {
		inBubbles(t, fmt.Sprint("key=", perKey), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			opts, net := []reservoir.Option{opt, reservoir.WithShadow()}, far(time.Millisecond)
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
			net := far(time.Millisecond)
			all := fleet(t, 3, net, limit, opt)
			require.NoError(t, all[0].Reset(bg, what), "nothing is open")
			exhaustKey(t, all, what)
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
	l := open(t, far(0), reservoir.PerHour(5))
	assert.ErrorIs(t, l.Reset(bg, ""), reservoir.ErrKey)
}

// exhaustKey spends the whole limit of key, in turns.
func exhaustKey(t *testing.T, all []*reservoir.Limiter, key string) {
	for _, n := range []int64{50, 1} {
		for refused := 0; refused < len(all); {
			refused = 0
			for _, l := range all {
				if !allow(t, l, key, n).Allowed {
					refused++
				}
			}
		}
	}
}

// Windows by the calendar end at its midnights, for all processes, whatever came before;
// probes, refusals and outages know the real length.
func TestCalendarWindows(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for what, c := range map[string]struct {
		limit reservoir.Limit
		begin time.Time
		ends  []time.Time
	}{
		"day":   {reservoir.PerDay(50, zone), at(zone, 3, 24, 13), []time.Time{at(zone, 3, 25, 0), at(zone, 3, 26, 0), at(zone, 3, 27, 0), at(zone, 3, 28, 0)}},
		"week":  {reservoir.PerWeek(50, nil), at(time.UTC, 2, 23, 1), []time.Time{at(time.UTC, 2, 28, 0), at(time.UTC, 3, 6, 0), at(time.UTC, 3, 13, 0)}},
		"month": {reservoir.PerMonth(50, zone), at(zone, 1, 30, 7), []time.Time{at(zone, 2, 1, 0), at(zone, 3, 1, 0), at(zone, 4, 1, 0), at(zone, 5, 1, 0)}},
	} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			time.Sleep(time.Until(c.begin))
			net := far(time.Millisecond)
			all := fleet(t, 3, net, c.limit, opt)
			for i, end := range c.ends {
				for k := range 30 {
					r := allow(t, all[(i+k)%3], "k", 3)
					require.True(t, end.Equal(r.Reset), "%v, want %v", r.Reset, end)
				}
				r := allow(t, all[i%3], "other "+what, 1)
				require.True(t, end.Equal(r.Reset))
				require.LessOrEqual(t, used(t, net, "k"), int64(50))
				require.GreaterOrEqual(t, used(t, net, "k"), int64(48))
				if r = allow(t, all[0], "k", 50); !r.Allowed {
					require.Equal(t, time.Until(end).Round(time.Minute), r.RetryAfter.Round(time.Minute))
				}
				time.Sleep(time.Until(end.Add(time.Duration(i) * time.Second)))
			}
			for _, l := range all {
				balance(t, l)
			}
		})
	}
}

// A call that is on its way over midnight opens the window that is due there, of whatever
// length, and so does one by a clock that is behind the store's or ahead of it.
func TestCalendarAtMidnight(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for month := time.February; month < 12; month++ {
			midnight, next := at(time.UTC, month, 1, 0), at(time.UTC, month+1, 1, 0)
			net := far(40 * time.Millisecond)
			l := open(t, net, reservoir.PerMonth(50, nil), opt)
			time.Sleep(time.Until(midnight.Add(-time.Hour)))
			require.True(t, midnight.Equal(allow(t, l, "old", 10).Reset))
			time.Sleep(time.Until(midnight.Add(-20 * time.Millisecond)))
			for _, key := range []string{"old", "new"} {
				go func() {
					r, err := l.AllowN(bg, key, 30)
					assert.NoError(t, err)
					assert.True(t, midnight.Equal(r.Reset) || next.Equal(r.Reset), "%s: %v", key, r.Reset)
				}()
			}
			time.Sleep(time.Second)
			for _, key := range []string{"old", "new"} {
				r := allow(t, l, key, 1)
				require.True(t, next.Equal(r.Reset), "%s %s: %v", month, key, r.Reset)
			}
			require.NoError(t, l.Close(bg))
		}
	})
}

func at(zone *time.Location, month time.Month, day, hour int) time.Time {
	return time.Date(2000, month, day, hour, 0, 0, 0, zone)
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
		l := open(t, slowReset{far(0), 20 * time.Millisecond}, reservoir.PerHour(100), opt)
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
		net := far(time.Millisecond)
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
		l := open(t, far(20*time.Millisecond), reservoir.PerMinute(1), opt, reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
		drain(t, l, "k", 1)
		limit.Store(reservoir.Unlimited)
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
			net := far(time.Millisecond)
			all := fleet(t, 2, net, limit, opt)
			for _, l := range all {
				allow(t, l, "k", 1)
			}
			time.Sleep(100 * time.Millisecond)
			require.NoError(t, all[0].Reset(bg, "k"))
			drain(t, all[0], "k", 1)
			drain(t, all[1], "k", 1)
			synctest.Wait()
			calls := net.count("")
			for range 1000 {
				require.False(t, allow(t, all[1], "k", 1).Allowed)
			}
			assert.LessOrEqual(t, net.count("")-calls, 3, "%v", limit.Window)
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
			l := open(t, far(0), reservoir.PerMinute(10), opt, reservoir.WithShadow(), more)
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

func TestOverrunWithoutRoom(t *testing.T) {
	for what, to := range map[string]reservoir.Limit{"minute": reservoir.PerMinute(100), "hour": reservoir.PerHour(50), "day": reservoir.PerDay(100, nil)} {
		inBubble(t, what, func(t *testing.T) {
			var limit atomic.Value
			limit.Store(reservoir.PerHour(100))
			net := far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(1), reservoir.WithMaxKeys(0), reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
			r := allow(t, l, "k", 20)
			limit.Store(to)
			require.NoError(t, l.Settle(bg, "k", r, 50))
			assert.EqualValues(t, 50, used(t, net, "k"))
			assert.EqualValues(t, 50, l.Stats().Taken)
			balance(t, l)
		})
	}
}

func TestGroupIsBounded(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := far(time.Millisecond)
		a := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("a"))
		b := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("b"))
		g := reservoir.NewGroup(a, b)
		net.set(func(c call) fault {
			if c.op == "refund" || c.key[0] == 'b' {
				return hang
			}
			return fine
		})
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := g.Allow(ctx, "k", "k")
		require.Error(t, err)
		assert.LessOrEqual(t, time.Since(begin), 15*time.Millisecond)
	})
}

// Who waits is never refused, also while a limit is tried in shadow at first, and then is
// in earnest or blocks.
func TestWaitWhenShadowEnds(t *testing.T) {
	for what, to := range map[string]reservoir.Limit{"limit": reservoir.PerMinute(10), "blocked": {Window: time.Minute}} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			var limit atomic.Value
			limit.Store(reservoir.Limit{Tokens: 10, Window: time.Minute, Shadow: true})
			l := open(t, far(time.Millisecond), reservoir.PerMinute(1), opt, reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
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
		net := far(time.Millisecond)
		a := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("a"), reservoir.WithFailure(reservoir.FailOpen))
		b := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("b"), reservoir.WithFailure(reservoir.FailOpen))
		for _, l := range []*reservoir.Limiter{a, b} {
			drain(t, l, "k", 1)
		}
		net.always(refuse)
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
		assert.Positive(t, net.happened(refuse))
	})
}

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
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// What is settled below the charge goes back into stock, and what is settled above it
// comes out of stock, without a call and without memory.
func TestSettleFromStock(t *testing.T) {
	net := testnet.Far(0)
	l := open(t, net, reservoir.PerHour(1_000_000), reservoir.WithBatch(reservoir.Fixed(100_000)), patient)
	key := l.Key("k")
	r, err := key.AllowN(bg, 100)
	require.NoError(t, err)
	calls := net.Count("")
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
	assert.Equal(t, calls, net.Count(""))
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
			net := testnet.Far(time.Millisecond)
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
			if name != "direct" {
				require.Zero(t, time.Since(begin), "it does not wait")
			}
			synctest.Wait()
			time.Sleep(time.Second)
			require.Zero(t, charges(), "it makes no call of its own, except for a direct call")
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
		net := testnet.Far(time.Millisecond)
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
		net := testnet.Far(0)
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
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt)
		r, other := allow(t, l, "k", 30), allow(t, l, "other", 1)
		was := l.Stats()
		for _, n := range []int64{0, 30, 99} {
			assert.ErrorIs(t, l.Settle(bg, "k", other, n), reservoir.ErrResult)
			assert.ErrorIs(t, l.Key("k").Settle(bg, other, n), reservoir.ErrResult)
			assert.ErrorIs(t, l.Settle(bg, "", r, n), reservoir.ErrKey)
			assert.ErrorIs(t, l.Settle(bg, "k", reservoir.Result{}, n), reservoir.ErrResult)
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

// After its window, a surplus has expired, and an overrun counts against the window that is open
// then, or as overdrawn if this process knows none.
func TestSettleLate(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt)
		low, high := allow(t, l, "k", 20), allow(t, l, "k", 20)
		time.Sleep(2 * time.Minute)
		require.True(t, allow(t, l, "k", 10).Allowed)
		was := l.Stats()
		require.NoError(t, l.Settle(bg, "k", low, 1))
		is := l.Stats()
		assert.EqualValues(t, 19, is.Refunded-was.Refunded)
		assert.EqualValues(t, 19, is.Expired-was.Expired)
		assert.Equal(t, was.Returned, is.Returned)
		require.NoError(t, l.Settle(bg, "k", high, 50))
		time.Sleep(10 * time.Second)
		assert.EqualValues(t, 10+30, used(t, net, "k")-l.Stats().Held)
		assert.Zero(t, l.Stats().Overdrawn)
		time.Sleep(2 * time.Minute)
		require.NoError(t, l.Settle(bg, "k", high, 50), "in no window at all")
		assert.EqualValues(t, 30, l.Stats().Overdrawn)
		time.Sleep(2 * time.Minute)
		require.True(t, allow(t, l, "k", 100).Allowed)
		balance(t, l)
	})
}

// An overrun in the last moments of a window, which no call can state in time any more, counts as
// above the limit.
func TestSettleInTheLastMoments(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerDay(100, nil), opt, reservoir.WithIdle(100*time.Hour))
		r := allow(t, l, "k", 100)
		time.Sleep(time.Until(r.Reset) - 20*time.Second)
		require.NoError(t, l.Settle(bg, "k", r, 150))
		time.Sleep(time.Hour)
		assert.EqualValues(t, 50, l.Stats().Overdrawn)
		balance(t, l)
	})
	inBubble(t, "no room", func(t *testing.T) {
		l := open(t, testnet.Far(40*time.Millisecond), reservoir.PerDay(100, nil), reservoir.WithMaxKeys(0))
		r := allow(t, l, "k", 100)
		time.Sleep(time.Until(r.Reset) - 20*time.Millisecond)
		require.NoError(t, l.Settle(bg, "k", r, 150))
		assert.EqualValues(t, 50, l.Stats().Overdrawn)
	})
}

// A key that was forgotten, or that there is no room for, is settled too: an overrun is
// charged.
func TestSettleOfAForgottenKey(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithIdle(time.Second))
		r := allow(t, l, "k", 20)
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().Keys, "%d calls", net.Count(""))
		require.NoError(t, l.Settle(bg, "k", r, 50))
		require.NoError(t, l.Settle(bg, "k", r, 10), "what goes back may be lost, but never doubled")
		time.Sleep(10 * time.Minute)
		assert.LessOrEqual(t, used(t, net, "k"), int64(50))
		assert.GreaterOrEqual(t, used(t, net, "k"), int64(40))
		balance(t, l)
	})
	inBubble(t, "no room", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
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
			net := testnet.Far(time.Millisecond)
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
		net := testnet.Far(time.Millisecond)
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

// take is the error of a call.
func take[T any](_ T, err error) error { return err }

func TestOverrunWithoutRoom(t *testing.T) {
	for what, to := range map[string]reservoir.Limit{"minute": reservoir.PerMinute(100), "hour": reservoir.PerHour(50), "day": reservoir.PerDay(100, nil)} {
		inBubble(t, what, func(t *testing.T) {
			var limit atomic.Value
			limit.Store(reservoir.PerHour(100))
			net := testnet.Far(time.Millisecond)
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
		net := testnet.Far(time.Millisecond)
		a := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("a"))
		b := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("b"))
		g := reservoir.NewGroup(a, b)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if c.Op == "settle" || c.Key[0] == 'b' {
				return testnet.Hang
			}
			return testnet.Fine
		})
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		begin := time.Now()
		_, err := g.Allow(ctx, "k", "k")
		require.Error(t, err)
		assert.LessOrEqual(t, time.Since(begin), 15*time.Millisecond)
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
		a := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("a"), reservoir.WithFailure(reservoir.FailOpen()))
		b := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithName("b"), reservoir.WithFailure(reservoir.FailOpen()))
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

// Overruns that go on all the time are stated some 20 times a window, however long a
// statement is under way.
func TestSteadyOverruns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(15 * time.Millisecond)
		l := open(t, net, reservoir.PerMinute(1000), reservoir.WithBatch(reservoir.Fixed(1)))
		paid := allow(t, l, "k", 1)
		require.True(t, allow(t, l, "k", 999).Allowed)
		require.False(t, allow(t, l, "k", 1).Allowed)
		calls := net.Count("")
		for range 3000 {
			require.NoError(t, l.Settle(bg, "k", paid, 2))
			time.Sleep(10 * time.Millisecond)
		}
		assert.LessOrEqual(t, net.Count("")-calls, 15, "in half a window")
		assert.Positive(t, l.Stats().Owed)
	})
}

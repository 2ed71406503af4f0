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
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// What a request has used, more or less than it was charged, is settled: at once or late, in
// memory or by a call, whether its window and its key are known still or not.

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

// A direct call is settled by one call, in its window. What it charges above the limit is overdrawn.
func TestSettleOfADirectCall(t *testing.T) {
	for what, opts := range map[string][]reservoir.Option{"direct": {reservoir.WithDirect()}, "no room": {reservoir.WithMaxKeys(0)}} {
		inBubble(t, what, func(t *testing.T) {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(100), opts...)
			for _, step := range []struct{ n, used, charged, overdrawn int64 }{{40, 15, 15, 0}, {40, 0, 15, 0}, {40, 60, 75, 0}, {20, 60, 135, 35}} {
				r := allow(t, l, "k", step.n)
				require.True(t, r.Allowed)
				calls := net.Count("")
				require.NoError(t, l.Settle(bg, "k", r, step.used))
				assert.Equal(t, calls+1, net.Count(""))
				assert.Equal(t, step.charged, used(t, net, "k"))
				s := l.Stats()
				assert.Equal(t, step.charged, s.Spent-s.Refunded)
				assert.Equal(t, step.charged, s.Taken-s.Returned)
				assert.Equal(t, step.overdrawn, s.Overdrawn)
				balance(t, l)
			}
			assert.EqualValues(t, 4, l.Stats().Admitted)
			contents, err := net.Inspect(bg, "k")
			require.NoError(t, err)
			assert.Empty(t, contents.Clients, "no field in the ledger")
		})
	}
}

// The call that settles a direct call is sent once. After a lost request or reply nobody knows
// what was charged; after an answer that it was not carried out, everybody does.
func TestSettleOfADirectCallFails(t *testing.T) {
	for what, f := range map[string]testnet.Fault{"request lost": testnet.LoseRequest, "reply lost": testnet.LoseReply, "refused": testnet.Refuse, "rejected": testnet.Reject} {
		inBubble(t, what, func(t *testing.T) {
			for _, n := range []int64{20, 70} {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerHour(100), reservoir.WithDirect())
				r := allow(t, l, "k", 50)
				net.Always(f)
				require.Error(t, l.Settle(bg, "k", r, n))
				net.Faults(nil)
				assert.Equal(t, 1, net.Count("settle"))
				s, unknown := l.Stats(), f == testnet.LoseRequest || f == testnet.LoseReply
				if n < 50 {
					assert.Equal(t, n, s.Spent-s.Refunded)
					assert.EqualValues(t, 50-n, s.Expired)
				} else {
					assert.EqualValues(t, 50, s.Spent)
				}
				diff := max(n-50, 50-n)
				if unknown {
					assert.Equal(t, diff, s.Unknown)
				} else {
					assert.Zero(t, s.Unknown)
				}
				assert.Equal(t, n > 50, s.Overdrawn+s.Unknown == n-50, "%+v", s)
				balance(t, l)
			}
		})
	}
}

// The client that has left is why many a request is settled: a context that has ended is no
// reason not to.
func TestSettleAfterTheContextHasEnded(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		for _, n := range []int64{0, 10, 70} {
			net := testnet.Far(10 * time.Millisecond)
			l := open(t, net, reservoir.PerHour(100), opt)
			ctx, cancel := context.WithCancel(bg)
			r, err := l.AllowN(ctx, "k", 50)
			require.NoError(t, err)
			cancel()
			require.NoError(t, l.Settle(ctx, "k", r, n))
			require.NoError(t, l.Close(bg))
			assert.Equal(t, n, used(t, net, "k"))
		}
	})
}

// Streams that outlive their window, one after another, are all counted.
func TestOverrunsOfLongStreams(t *testing.T) {
	for what, limit := range map[string]reservoir.Limit{"minute": reservoir.PerMinute(100_000), "day": reservoir.PerDay(100_000, nil)} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			for _, lasts := range []time.Duration{limit.Window / 7, limit.Window * 2 / 3, limit.Window * 3 / 2} {
				l := open(t, testnet.Far(time.Millisecond), limit, opt, reservoir.WithIdle(limit.Window*3))
				for range 30 {
					r := allow(t, l, "k", 100)
					require.True(t, r.Allowed)
					time.Sleep(lasts)
					require.NoError(t, l.Settle(bg, "k", r, 1000))
				}
				require.NoError(t, l.Close(bg))
				s := l.Stats()
				assert.EqualValues(t, 30_000, s.Spent+s.Overdrawn, "%v", lasts)
				balance(t, l)
			}
		})
	}
}

// However often a Result is refunded, no more is returned than was taken, and no more is
// refunded than requests have used.
func TestRepeatedRefunds(t *testing.T) {
	for _, forgotten := range []bool{false, true} {
		inBubbles(t, map[bool]string{true: "forgotten", false: "known"}[forgotten], everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithIdle(time.Minute))
			r, other := allow(t, l, "k", 1), allow(t, l, "other", 1)
			if forgotten {
				time.Sleep(10 * time.Minute)
				require.Zero(t, l.Stats().Keys)
			}
			for range 5 {
				require.NoError(t, l.Refund(bg, "k", r))
			}
			require.NoError(t, l.Refund(bg, "other", other))
			s := l.Stats()
			assert.LessOrEqual(t, s.Returned, s.Taken)
			assert.LessOrEqual(t, s.Refunded, s.Spent)
			require.NoError(t, l.Close(bg))
			s = l.Stats()
			assert.LessOrEqual(t, s.Returned, s.Taken)
			assert.EqualValues(t, 2, s.Spent)
			assert.LessOrEqual(t, s.Refunded, s.Spent)
			balance(t, l)
		})
	}
}

// What a request did not use is given back, or counted as expired if its key was forgotten. An
// overrun brings the key back.
func TestSettleAfterTheKeyWasForgotten(t *testing.T) {
	for _, policy := range []bool{false, true} {
		inBubbles(t, map[bool]string{true: "FailOpen", false: "charged"}[policy], everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			for _, n := range []int64{0, 3, 80, 85} {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithIdle(time.Minute), reservoir.WithFailure(reservoir.FailOpen()))
				require.True(t, allow(t, l, "k", 1).Allowed)
				if policy {
					breakdown(t, l, net, testnet.Refuse)
				}
				r := allow(t, l, "k", 80)
				require.Equal(t, policy, r.Source == reservoir.Fallback)
				net.Faults(nil)
				time.Sleep(15 * time.Minute)
				require.Zero(t, l.Stats().Keys)
				was, before := l.Stats(), used(t, net, "k")
				require.GreaterOrEqual(t, was.Spent, int64(81))
				require.NoError(t, l.Settle(bg, "k", r, n))
				require.NoError(t, l.Close(bg))
				s := l.Stats()
				assert.Equal(t, max(80-n, 0), s.Refunded-was.Refunded, n)
				assert.Equal(t, max(80-n, 0), s.Expired-was.Expired+s.Returned-was.Returned, n)
				assert.Equal(t, max(n-80, 0), s.Spent-was.Spent+s.Overdrawn-was.Overdrawn, n)
				assert.Equal(t, s.Taken-was.Taken-(s.Returned-was.Returned), used(t, net, "k")-before, n)
				balance(t, l)
			}
		})
	}
}

// A Result that was never charged cannot be settled, unless it passed for nothing.
func TestSettleOfWhatWasNeverCharged(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(10), opt)
		require.True(t, allow(t, l, "k", 10).Allowed)
		refused := allow(t, l, "k", 1)
		require.False(t, refused.Allowed)
		looked, err := l.Check(bg, "other")
		require.NoError(t, err)
		for _, r := range []reservoir.Result{{}, refused, looked} {
			for _, n := range []int64{0, 1} {
				assert.ErrorIs(t, l.Settle(bg, "k", r, n), reservoir.ErrResult, "%+v", r)
			}
		}
		shadow := open(t, net, reservoir.PerHour(10), opt, reservoir.WithShadow())
		passed := allow(t, shadow, "k", 1)
		require.True(t, passed.Allowed && passed.Shadowed)
		free := open(t, net, reservoir.Unlimited(), opt)
		for _, n := range []int64{0, 1, 5} {
			assert.NoError(t, shadow.Settle(bg, "k", passed, n))
			assert.NoError(t, free.Settle(bg, "k", allow(t, free, "k", 1), n))
		}
		g := reservoir.NewGroup(open(t, net, reservoir.PerHour(10), opt, reservoir.WithName("g")), l)
		one, err := g.AllowEach(bg, []int64{1, 0}, "k", "k")
		require.NoError(t, err)
		assert.NoError(t, g.Settle(bg, one, []int64{2, 0}, "k", "k"), "a limit that costs nothing")
		none, err := g.Allow(bg, "k", "k")
		require.NoError(t, err)
		require.False(t, none.Allowed)
		assert.ErrorIs(t, g.Refund(bg, none, "k", "k"), reservoir.ErrResult)
	})
}

// A direct call whose caller has left is undone by one call, and counts as refunded.
func TestUndoOfADirectCall(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(10 * time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), reservoir.WithDirect())
		ctx, cancel := context.WithTimeout(bg, 5*time.Millisecond)
		defer cancel()
		_, err := l.AllowN(ctx, "k", 30)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Minute)
		assert.Zero(t, used(t, net, "k"))
		s := l.Stats()
		assert.Equal(t, []int64{30, 30, 30, 30, 0}, []int64{s.Taken, s.Spent, s.Refunded, s.Returned, s.Admitted})
		balance(t, l)
		contents, err := net.Inspect(bg, "k")
		require.NoError(t, err)
		assert.Empty(t, contents.Clients)
	})
}

// A Result of the failure policy that is refunded again and again, before and after its key
// has left the window, gives back no more than requests have used.
func TestRepeatedRefundsOfAFallback(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		for _, wait := range [][]time.Duration{{0, 0, time.Hour}, {70 * time.Second, 0, time.Hour}, {70 * time.Second, 2 * time.Minute, 0}, {5 * time.Minute, 0, 0}} {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerMinute(100), opt, reservoir.WithIdle(10*time.Minute), reservoir.WithFailure(reservoir.FailOpen()))
			require.True(t, allow(t, l, "k", 1).Allowed)
			net.Always(testnet.Refuse)
			r := allow(t, l, "k", 80)
			require.Equal(t, reservoir.Fallback, r.Source)
			for i, d := range wait {
				time.Sleep(d)
				if i == 1 {
					net.Faults(nil)
					time.Sleep(3 * time.Second)
					require.True(t, allow(t, l, "k", 1).Allowed)
				}
				require.NoError(t, l.Refund(bg, "k", r))
			}
			require.NoError(t, l.Refund(bg, "k", r))
			assert.LessOrEqual(t, l.Stats().Refunded, int64(82), "no more than was used, %v", wait)
			balance(t, l)
		}
	})
}

// Tokens that have expired unused are in nobody's use, whether Stats has counted them or not.
func TestRefundAfterTokensHaveExpired(t *testing.T) {
	for what, d := range map[string]time.Duration{"left": 10 * time.Minute, "over": 90 * time.Second} {
		inBubbles(t, what, batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			for _, looks := range []bool{false, true} {
				l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(1000), opt, reservoir.WithIdle(3*time.Minute))
				r := allow(t, l, "k", 2)
				time.Sleep(90 * time.Second)
				if looks {
					l.Stats()
				}
				time.Sleep(d - 90*time.Second)
				for range 10 {
					require.NoError(t, l.Refund(bg, "k", r))
				}
				time.Sleep(10 * time.Minute)
				require.NoError(t, l.Refund(bg, "k", r))
				assert.EqualValues(t, 2, l.Stats().Refunded, looks)
				balance(t, l)
			}
		})
	}
}

// After Close, Settle says that it came too late, whatever it settles, and counts all the same.
func TestSettleAfterClose(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		for _, away := range []bool{false, true} {
			for _, wait := range []time.Duration{0, 2 * time.Minute} {
				for _, n := range []int64{0, 3, 30} {
					net := testnet.Far(time.Millisecond)
					l := open(t, net, reservoir.PerMinute(100), opt, reservoir.WithFailure(reservoir.FailOpen()))
					if away {
						net.Always(testnet.Refuse)
					}
					r := allow(t, l, "k", 10)
					net.Faults(nil)
					require.NoError(t, l.Close(bg))
					time.Sleep(wait)
					assert.ErrorIs(t, l.Settle(bg, "k", r, n), reservoir.ErrClosed)
					s := l.Stats()
					assert.Equal(t, n, s.Spent-s.Refunded+s.Overdrawn)
					balance(t, l)
				}
			}
		}
	})
}

// A token that comes back is found where others were refused: at once where it was
// refunded, and elsewhere by a probe.
func TestRefundReopensARefusedKey(t *testing.T) {
	defer chance.Seed(1)()
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
			ctx := context.Background()
			net := testnet.Far(rtt / 2)
			a, b := open(t, net, reservoir.PerMinute(5), opt), open(t, net, reservoir.PerMinute(5), opt)
			last := allow(t, a, "k", 1)
			drain(t, a, "k", 1)
			require.False(t, allow(t, b, "k", 1).Allowed)
			require.NoError(t, a.Refund(ctx, "k", last))
			again := allow(t, a, "k", 1)
			require.True(t, again.Allowed)
			require.False(t, allow(t, a, "k", 1).Allowed)
			require.NoError(t, a.Refund(ctx, "k", again))
			require.NoError(t, a.Close(ctx))
			found := 0
			for range 50 {
				time.Sleep(time.Second)
				if allow(t, b, "k", 1).Allowed {
					found++
				}
			}
			require.Equal(t, 1, found)
		})
	}
}

// A refund under another key is an error, and frees nothing, from whatever source the
// tokens were.
func TestRefundUnderAnotherKey(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithFailure(reservoir.FailOpen()))
		require.EqualValues(t, 100, drain(t, l, "other", 1))
		for n := range int64(10) {
			r := allow(t, l, "k", 1+n)
			if n == 9 {
				breakdown(t, l, net, testnet.LoseRequest)
				r = allow(t, l, "k", 100)
				require.Equal(t, reservoir.Fallback, r.Source)
				net.Faults(nil)
			}
			require.True(t, r.Allowed)
			assert.Error(t, l.Refund(bg, "other", r))
			assert.EqualValues(t, 100, used(t, net, "other"))
		}
		assert.False(t, allow(t, l, "other", 1).Allowed)
		assert.Zero(t, l.Stats().Refunded)
	})
}

// A refund gives back what was charged, once, though the network loses replies, and so does
// the undoing of a Group.
func TestRefundGivesNothingTwice(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubbles(t, name, map[string]testnet.Fault{"fine": testnet.Fine, "reply lost": testnet.LoseReply}, func(t *testing.T, how string, f testnet.Fault) {
			const limit = 40
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(limit), opt)
			other := open(t, net, reservoir.PerHour(limit), reservoir.WithDirect())
			full := open(t, memstore.New(), reservoir.PerHour(1))
			allow(t, full, "k", 1)
			net.Faults(func(c *testnet.Call) testnet.Fault {
				if c.Op == "settle" {
					return f
				}
				return testnet.Fine
			})
			allow(t, other, "k", 15)
			g := reservoir.NewGroup(l, full)
			for n := range int64(8) {
				r := allow(t, l, "k", 1+n)
				require.True(t, r.Allowed)
				_ = l.Refund(bg, "k", r)
				if f == testnet.Fine {
					_ = l.Refund(bg, "k", r) // by mistake
				}
				both, err := g.AllowN(bg, 1, "k", "k")
				require.NoError(t, err)
				require.False(t, both.Allowed)
			}
			require.LessOrEqual(t, drain(t, l, "k", 1), int64(limit-15))
			require.LessOrEqual(t, used(t, net, "k"), int64(limit))
			if f != testnet.LoseReply {
				require.EqualValues(t, limit, used(t, net, "k"), "15 of another's, and all of the rest")
			} else if name == "direct" {
				require.Positive(t, net.Happened(f))
			}
		})
	}
}

// A request may outlive the memory of its key: what it was charged goes back, and none
// of what later requests were charged with it.
func TestRefundAfterEviction(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		store := memstore.New()
		l := open(t, store, reservoir.PerHour(20), opt, reservoir.WithIdle(time.Second))
		first, older := allow(t, l, "k", 2), allow(t, l, "k", 3)
		for i := range 60 {
			allow(t, l, fmt.Sprint("busy ", i), 1)
			time.Sleep(time.Second)
		}
		newer := allow(t, l, "k", 3)
		for range 2 {
			require.NoError(t, l.Refund(bg, "k", newer))
		}
		require.NoError(t, l.Refund(bg, "k", older))
		require.NoError(t, l.Refund(bg, "k", first))
		require.NoError(t, l.Close(bg))
		if back := used(t, store, "k"); name == "direct" {
			assert.Zero(t, back)
		} else {
			assert.LessOrEqual(t, back, int64(5), "what a forgotten account spent may stay charged")
		}
	})
}

// What was refunded is had at once by a waiter. A refund for which there is no time
// left is not made, and may be made later.
func TestRefundServesWaiters(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		l := open(t, memstore.New(), reservoir.PerHour(10), opt)
		r := allow(t, l, "k", 10)
		require.False(t, allow(t, l, "k", 1).Allowed)
		served := make(chan error)
		go func() { served <- waitFor(bg, l, "k", 3) }()
		synctest.Wait()
		ended, cancel := context.WithCancel(bg)
		cancel()
		begin := time.Now()
		if err := l.Refund(ended, "k", r); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, l.Refund(bg, "k", r))
		}
		require.NoError(t, <-served)
		assert.Zero(t, time.Since(begin))
	})
}

// Two requests that outlive the memory of their key, each with a direct call: what both were
// charged goes back.
func TestDirectRefundsAfterEviction(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		store := memstore.New()
		l := open(t, store, reservoir.PerHour(100), reservoir.WithDirect(), reservoir.WithIdle(time.Second))
		a, b := allow(t, l, "k", 10), allow(t, l, "k", 10)
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().Keys)
		require.NoError(t, l.Refund(bg, "k", a))
		require.NoError(t, l.Refund(bg, "k", b))
		s := l.Stats()
		assert.EqualValues(t, 20, s.Returned)
		assert.Zero(t, used(t, store, "k"), "Stats says that %d of %d were returned", s.Returned, s.Taken)
	})
}

// The same, where one of them is settled while the key is in memory.
func TestDirectRefundsBeforeAndAfterEviction(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		store := memstore.New()
		l := open(t, store, reservoir.PerHour(100), reservoir.WithDirect(), reservoir.WithIdle(time.Second))
		a, b := allow(t, l, "k", 10), allow(t, l, "k", 10)
		require.NoError(t, l.Refund(bg, "k", a))
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().Keys)
		require.NoError(t, l.Refund(bg, "k", b))
		s := l.Stats()
		assert.Zero(t, used(t, store, "k"), "Stats says that %d of %d were returned", s.Returned, s.Taken)
	})
}

// A handle is the same as the methods with its key.
func TestHandleAfterEviction(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1000), reservoir.WithIdle(time.Second))
		key := l.Key("k")
		_, err := key.AllowN(bg, 1)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().Keys)
		r := allow(t, l, "k", 100)
		require.NoError(t, key.Settle(bg, r, 10))
		assert.EqualValues(t, 90, l.Stats().Refunded)
	})
	inBubble(t, "direct", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1000), reservoir.WithIdle(time.Second), reservoir.WithDirect())
		key := l.Key("k")
		_, err := key.AllowN(bg, 1)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().Keys)
		a, b := allow(t, l, "k", 100), allow(t, l, "k", 100)
		require.NoError(t, key.Settle(bg, a, 10))
		require.NoError(t, key.Settle(bg, b, 10))
		assert.EqualValues(t, 21, used(t, net, "k"))
	})
}

// A request that outlives the memory of its key: what it did not use expires.
func TestSurplusAfterEviction(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerDay(1000, nil), reservoir.WithIdle(time.Second))
		r := allow(t, l, "k", 900)
		time.Sleep(time.Minute)
		require.Zero(t, l.Stats().Keys)
		calls := net.Count("")
		require.NoError(t, l.Settle(bg, "k", r, 100))
		time.Sleep(time.Hour)
		assert.Equal(t, calls, net.Count(""))
		assert.EqualValues(t, 900, used(t, net, "k"))
		assert.EqualValues(t, 800, l.Stats().Expired)
		assert.EqualValues(t, 100, l.Stats().Spent-l.Stats().Refunded)
	})
}

// What a settlement leaves and this process does not use is soon had by others.
func TestSurplusOfSettleReturns(t *testing.T) {
	for what, limit := range map[string]reservoir.Limit{"hour": reservoir.PerHour(10_000), "day": reservoir.PerDay(10_000, nil), "minute": reservoir.PerMinute(10_000)} {
		inBubble(t, what, func(t *testing.T) {
			net := testnet.Far(time.Millisecond)
			all := fleet(t, 2, net, limit)
			r := allow(t, all[0], "k", 9000)
			require.NoError(t, all[0].Settle(bg, "k", r, 100))
			var admitted int64
			for end := time.Now().Add(limit.Window * 9 / 10); time.Now().Before(end); time.Sleep(limit.Window / 1000) {
				_ = allow(t, all[0], "k", 1) // a little, so that it is no idle key
				if allow(t, all[1], "k", 100).Allowed {
					admitted += 100
				}
			}
			assert.LessOrEqual(t, all[0].Stats().Held, int64(1000))
			assert.Greater(t, admitted, int64(8000))
		})
	}
}

// A late overrun counts in the window that this process knows, or as overdrawn if it knows
// none that is open, whoever has opened one in the store.
func TestLateOverrun(t *testing.T) {
	for what, opts := range map[string][]reservoir.Option{
		"room":      nil,
		"no room":   {reservoir.WithMaxKeys(0)},
		"direct":    {reservoir.WithDirect()},
		"forgotten": {reservoir.WithIdle(time.Second)},
	} {
		for _, known := range []bool{false, true} {
			inBubble(t, what+map[bool]string{true: ", known", false: ""}[known], func(t *testing.T) {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerMinute(100), opts...)
				other := open(t, net, reservoir.PerMinute(100), reservoir.WithDirect())
				r := allow(t, l, "k", 20)
				time.Sleep(90 * time.Second)
				require.True(t, allow(t, other, "k", 10).Allowed)
				if known {
					require.True(t, allow(t, l, "k", 10).Allowed)
				}
				calls := net.Count("settle")
				require.NoError(t, l.Settle(bg, "k", r, 50))
				time.Sleep(10 * time.Second)
				s := l.Stats()
				if known && what != "no room" {
					assert.EqualValues(t, 10+10+30, used(t, net, "k")-s.Held)
					assert.Zero(t, s.Overdrawn)
				} else {
					assert.EqualValues(t, 30, s.Overdrawn)
					assert.Equal(t, calls, net.Count("settle"))
				}
				balance(t, l)
			})
		}
	}
}

// What was used above the charge of a key without room is counted as above the limit if the
// store cannot be told, and is charged though the caller has left.
func TestOverrunWithoutRoomInAnOutage(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), reservoir.WithMaxKeys(0))
		r := allow(t, l, "k", 100)
		net.Always(testnet.Refuse)
		err := l.Settle(bg, "k", r, 300)
		require.Error(t, err)
		net.Faults(nil)
		time.Sleep(2 * time.Hour)
		s := l.Stats()
		assert.EqualValues(t, 200, s.Overdrawn+s.Unknown)
	})
	inBubble(t, "the caller leaves", func(t *testing.T) {
		net := testnet.Far(20 * time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), reservoir.WithMaxKeys(0))
		r := allow(t, l, "k", 100)
		ctx, cancel := context.WithTimeout(bg, 5*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Settle(ctx, "k", r, 300), context.DeadlineExceeded)
		time.Sleep(time.Minute)
		s := l.Stats()
		assert.EqualValues(t, 300, used(t, net, "k"))
		assert.EqualValues(t, 200, s.Overdrawn)
		assert.EqualValues(t, 300, s.Taken)
	})
	inBubble(t, "the caller leaves, and the limit has another window", func(t *testing.T) {
		net := testnet.Far(20 * time.Millisecond)
		var changed atomic.Bool
		l := open(t, net, reservoir.PerHour(100), reservoir.WithMaxKeys(0), reservoir.WithLimits(func(string) reservoir.Limit {
			if changed.Load() {
				return reservoir.PerMinute(100)
			}
			return reservoir.PerHour(100)
		}))
		r := allow(t, l, "k", 100)
		changed.Store(true)
		ctx, cancel := context.WithTimeout(bg, 5*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, l.Settle(ctx, "k", r, 300), context.DeadlineExceeded)
		time.Sleep(30 * time.Minute)
		assert.EqualValues(t, 300, used(t, net, "k"), "charged in the window that the request was charged to")
		assert.EqualValues(t, 200, l.Stats().Overdrawn)
	})
}

// What is refunded twice goes back once, also if its key was forgotten.
func TestRefundedTwiceAfterEviction(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		store := memstore.New()
		a := open(t, store, reservoir.PerHour(100), reservoir.WithIdle(time.Second))
		b := open(t, store, reservoir.PerHour(100))
		r := allow(t, a, "k", 10)
		require.True(t, r.Allowed)
		time.Sleep(time.Minute)
		require.Zero(t, a.Stats().Keys)
		require.True(t, allow(t, b, "k", 90).Allowed, "the whole limit is used")
		for range 5 {
			require.NoError(t, a.Refund(bg, "k", r))
		}
		total := int64(90) + drain(t, b, "k", 1) + drain(t, a, "k", 1)
		assert.LessOrEqual(t, total, int64(100), "tokens that are used at the same time")
	})
}

// What was used above the charge of a request that FailOpen has admitted counts too.
func TestOverrunOfAFallbackWithoutRoom(t *testing.T) {
	for what, opts := range map[string][]reservoir.Option{"room": nil, "no room": {reservoir.WithMaxKeys(0)}} {
		inBubble(t, what, func(t *testing.T) {
			l := open(t, gone{}, reservoir.PerMinute(100), append(opts, reservoir.WithFailure(reservoir.FailOpen()))...)
			r := allow(t, l, "k", 1)
			require.True(t, r.Allowed)
			require.Equal(t, reservoir.Fallback, r.Source)
			require.NoError(t, l.Settle(bg, "k", r, 1000))
			time.Sleep(5 * time.Minute)
			_ = allow(t, l, "k", 1)
			assert.GreaterOrEqual(t, l.Stats().Overdrawn, int64(1000))
		})
	}
}

// gone is a store that cannot be reached.
type gone struct{ silent }

func (gone) Take(context.Context, backend.TakeRequest) (backend.TakeReply, error) {
	return backend.TakeReply{}, &backend.Error{Op: "take", Class: backend.Unavailable, Err: context.DeadlineExceeded}
}

// What FailOpen admitted and the store has charged since goes back too, if it was not used.
func TestSettleOfAFallbackAfterItsCharge(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithFailure(reservoir.FailOpen()))
		require.True(t, allow(t, l, "k", 5).Allowed)
		breakdown(t, l, net, testnet.Refuse)
		r := allow(t, l, "k", 95)
		require.Equal(t, reservoir.Fallback, r.Source)
		net.Faults(nil)
		time.Sleep(5 * time.Minute)
		require.EqualValues(t, 100, used(t, net, "k")-l.Stats().Held)
		require.NoError(t, l.Settle(bg, "k", r, 20))
		require.NoError(t, l.Refund(bg, "k", r), "which is too much by 20")
		time.Sleep(5 * time.Minute)
		assert.EqualValues(t, 5, used(t, net, "k")-l.Stats().Held)
		balance(t, l)
	})
}

// A key that had a window of the process' own in an outage settles in memory afterwards.
func TestSettleAfterAWindowOfItsOwn(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(1000), opt, reservoir.WithFailure(reservoir.FailOpen()))
		require.True(t, allow(t, l, "k", 5).Allowed)
		breakdown(t, l, net, testnet.Refuse)
		time.Sleep(2 * time.Minute)
		require.Equal(t, reservoir.Fallback, allow(t, l, "k", 5).Source)
		net.Faults(nil)
		time.Sleep(2 * time.Minute)
		r := allow(t, l, "k", 100)
		require.True(t, r.Allowed)
		calls := net.Count("settle")
		require.NoError(t, l.Settle(bg, "k", r, 20))
		if name != "direct" {
			assert.Equal(t, calls, net.Count("settle"), "from %v", r.Source)
		}
		assert.EqualValues(t, 80, l.Stats().Refunded)
		balance(t, l)
	})
}

// FailOpen has admitted a request of a key that this process did not know, so it is overdrawn
// at once, and so is what it used above that. When the store is back, nothing of it is
// charged there, or goes back to it.
func TestFallbackWithoutAWindow(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		all := fleet(t, 2, net, reservoir.PerHour(1000), opt, reservoir.WithFailure(reservoir.FailOpen()))
		allow(t, all[1], "k", 1)
		time.Sleep(10 * time.Second)
		breakdown(t, all[0], net, testnet.Refuse)
		before := all[0].Stats().Overdrawn
		r, less := allow(t, all[0], "k", 500), allow(t, all[0], "k", 500)
		require.Equal(t, reservoir.Fallback, r.Source)
		require.Equal(t, r.Reset, less.Reset)
		require.EqualValues(t, 1000, all[0].Stats().Overdrawn-before)
		require.Zero(t, all[0].Stats().Owed)
		require.NoError(t, all[0].Settle(bg, "k", r, 1100))
		require.NoError(t, all[0].Settle(bg, "k", less, 10))
		net.Faults(nil)
		time.Sleep(10 * time.Minute)
		assert.EqualValues(t, 1600, all[0].Stats().Overdrawn-before)
		assert.EqualValues(t, 1, used(t, net, "k")-stats(all...).Held)
		balance(t, all[0])
	})
}

// FailOpen has admitted a request in a window that the store knows, and the call that states it has
// failed, or the store has lost its data since. What was not used goes back all the same.
func TestSettleOfAFallbackBeforeItsCharge(t *testing.T) {
	for what, f := range map[string]testnet.Fault{"rejected": testnet.Reject, "lost": testnet.LoseRequest, "reply lost": testnet.LoseReply, "data lost": testnet.Refuse} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			all := fleet(t, 2, net, reservoir.PerHour(1000), opt, reservoir.WithFailure(reservoir.FailOpen()))
			allow(t, all[0], "k", 10)
			net.Always(f)
			r := allow(t, all[0], "k", 500)
			require.Equal(t, reservoir.Fallback, r.Source)
			time.Sleep(10 * time.Second)
			if what == "data lost" {
				net.LoseData()
				net.Faults(nil)
				allow(t, all[1], "k", 1) // another window
				time.Sleep(10 * time.Second)
				require.Greater(t, used(t, net, "k"), int64(500))
			}
			require.NoError(t, all[0].Settle(bg, "k", r, 20))
			require.NoError(t, all[0].Refund(bg, "k", r), "which is too much by 480")
			net.Faults(nil)
			time.Sleep(10 * time.Minute)
			spent := stats(all...).Spent - all[0].Stats().Refunded - all[1].Stats().Refunded
			assert.Less(t, spent, int64(20))
			assert.LessOrEqual(t, used(t, net, "k"), spent+stats(all...).Held+all[0].Stats().Unknown)
			require.Zero(t, all[0].Stats().Owed)
			for _, l := range all {
				balance(t, l)
			}
		})
	}
}

// A late refund of what FailOpen admitted in an earlier window cancels no debt of this one.
func TestLateRefundOfAFallback(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt, reservoir.WithFailure(reservoir.FailOpen()))
		breakdown(t, l, net, testnet.Refuse)
		r := allow(t, l, "k", 90)
		require.Equal(t, reservoir.Fallback, r.Source)
		net.Faults(nil)
		time.Sleep(2 * time.Minute)
		before := l.Stats().Overdrawn
		require.NoError(t, l.Settle(bg, "k", allow(t, l, "k", 100), 150))
		require.NoError(t, l.Refund(bg, "k", r))
		time.Sleep(10 * time.Second)
		assert.EqualValues(t, 150, used(t, net, "k"))
		assert.EqualValues(t, 50, l.Stats().Overdrawn-before)
	})
}

// A key is forgotten during a direct call. How the call ends is counted all the same: a refusal,
// and what FailOpen admits.
func TestForgottenDuringADirectCall(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(40 * time.Millisecond)
		l := open(t, net, reservoir.PerHour(5), reservoir.WithDirect(), reservoir.WithIdle(20*time.Millisecond), reservoir.WithFailure(reservoir.FailOpen()))
		require.True(t, allow(t, l, "k", 5).Allowed)
		require.False(t, allow(t, l, "k", 5).Allowed)
		assert.EqualValues(t, 1, l.Stats().Denied)
		net.Always(testnet.Refuse)
		require.True(t, allow(t, l, "k", 5).Allowed)
		s := l.Stats()
		assert.Zero(t, s.Keys)
		assert.EqualValues(t, 5, s.Owed+s.Overdrawn)
	})
}

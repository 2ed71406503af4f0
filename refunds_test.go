package reservoir_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Tokens that come back after the store has lost its data are charged to nobody, if the first
// statement to the new store hands them back. Those that an earlier statement may have handed
// back stay charged, because others may have got them since.
func TestReturnsAfterDataLoss(t *testing.T) {
	for what, repeated := range map[string]bool{"first statement": false, "repeated": true} {
		inBubbles(t, what, batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(10_000), opt)
			r := allow(t, l, "k", 4000)
			net.LoseData()
			require.NoError(t, l.Settle(bg, "k", r, 1200))
			if repeated {
				net.Next("sync", testnet.LoseRequest)
			}
			require.NoError(t, l.Close(bg))
			if repeated {
				require.EqualValues(t, 1, net.Happened(testnet.LoseRequest))
				assert.GreaterOrEqual(t, used(t, net, "k"), int64(4000))
				return
			}
			assert.EqualValues(t, 1200, used(t, net, "k"))
			assert.GreaterOrEqual(t, l.Stats().Returned, int64(2800))
		})
	}
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

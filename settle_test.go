package reservoir_test

import (
	"context"
	"fmt"
	"slices"
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

type settlement struct {
	charged string // "store"; "policy": FailOpen has, in an outage; "outage": it is settled in that outage
	over    bool   // its window is over, and another process has opened the next one
	known   bool   // this process has the key in memory and, if over, knows the next window
	how     string // the way in which the limiter asks
}

// test settles to n tokens.
func (s settlement) test(t *testing.T, opt reservoir.Option, n int64) {
	idle := map[bool]time.Duration{true: 24 * time.Hour, false: time.Second}[s.known]
	net := testnet.Far(time.Millisecond)
	l := open(t, net, reservoir.PerHour(1000), opt, reservoir.WithIdle(idle), reservoir.WithFailOpen())
	other := open(t, net.Store(), reservoir.PerHour(1000), reservoir.WithDirect())
	allow(t, l, "k", 1)
	if s.charged != "store" {
		breakdown(t, l, net, testnet.Refuse)
	}
	r := s.charge(t, l, net)
	allow(t, other, "k", 5)

	before, charged, calls := l.Stats(), used(t, net, "k"), overruns(net)
	require.NoError(t, l.Settle(bg, r, n))
	now := l.Stats()
	calls = overruns(net) - calls
	net.Faults(nil)
	time.Sleep(10 * time.Minute)
	s.check(t, n, before, now, l.Stats(), used(t, net, "k")-charged, used(t, net, "k"), calls)
	balance(t, l)

	for range 3 { // too often
		require.NoError(t, l.Refund(bg, r))
	}
	if s.charged != "store" && s.known && !s.over && s.how != "no room" && n <= 100 {
		time.Sleep(10 * time.Minute)
		require.EqualValues(t, 1+5, used(t, net, "k")-l.Stats().Held, "nobody else's come back")
	}
	require.NoError(t, l.Close(bg))
	is := l.Stats()
	require.LessOrEqual(t, is.Refunded, is.Spent+is.Overdrawn)
	require.LessOrEqual(t, is.Returned, is.Taken)
	require.GreaterOrEqual(t, used(t, net, "k"), int64(5), "the other process uses them")
}

// overruns is how many statements without an account have charged what was used above a charge.
func overruns(net *testnet.Network) (n int) {
	for _, c := range net.Calls("sync") {
		if c.Statement.Client == "" && c.Statement.Change > 0 {
			n++
		}
	}
	return n
}

// charge makes the request, and lets pass what comes before it is settled.
func (s settlement) charge(t *testing.T, l *reservoir.Limiter, net *testnet.Network) reservoir.Result {
	was := l.Stats()
	r := allow(t, l, "k", 100)
	require.True(t, r.Allowed)
	require.Equal(t, s.charged != "store", r.Source == reservoir.Fallback)
	if is := l.Stats(); s.charged != "store" {
		require.EqualValues(t, 100, is.Debt+is.Overdrawn-was.Debt-was.Overdrawn)
	}
	if s.charged == "policy" || !s.known {
		net.Faults(nil)
		time.Sleep(5 * time.Minute)
	}
	if s.over {
		time.Sleep(time.Until(r.Reset) + time.Second)
		if s.known {
			require.True(t, allow(t, l, "k", 5).Allowed)
		}
	}
	require.Equal(t, s.known && s.how != "no room", l.Stats().Keys > 0)
	return r
}

// check has the Stats before the settlement, after it, and when all is stated; what the store has
// charged since and in all; and the calls that the settlement made.
func (s settlement) check(t *testing.T, n int64, before, now, after reservoir.Stats, since, inAll int64, calls int) {
	state := s.known && s.how != "no room"
	charges := s.charged == "store" && (state || !s.over) // otherwise it is Overdrawn, as what the policy admitted
	returns := !s.over && state && s.charged == "store"
	less, more := max(100-n, 0), max(n-100, 0)
	var toStore, fromStore int64
	if charges {
		toStore = more
	}
	if returns {
		fromStore = less
	}
	counted := func(s reservoir.Stats) int64 { return s.Spent - s.Refunded + s.Debt }
	require.Equal(t, before.Debt+toStore-fromStore, since-(after.Held-before.Held), n)
	require.Equal(t, toStore-less, counted(after)-counted(before), n)
	require.Equal(t, less-fromStore, now.Expired-before.Expired, n)
	if charges {
		require.Equal(t, max(inAll-1000, 0), after.Overdrawn-before.Overdrawn, n)
	} else {
		require.Equal(t, more, after.Overdrawn-before.Overdrawn, n)
	}
	if state || toStore == 0 {
		require.Zero(t, calls, n)
	} else {
		require.Equal(t, 1, calls, n)
	}
	require.Zero(t, after.Debt, n)
}

// Whatever a request has used, and whenever that is known, counts once: in its window if that is
// open, otherwise in the open window if this process knows it, otherwise as overdrawn. What it
// did not use goes back, or expires with its window or with the memory of its key.
func TestSettle(t *testing.T) {
	how := everyPolicy()
	how["no room"] = reservoir.WithMaxKeys(0)
	for _, charged := range []string{"store", "policy", "outage"} {
		for _, over := range []bool{false, true} {
			for _, known := range []bool{true, false} {
				if charged == "outage" && (over || !known) { // nothing else happens to it in the outage
					continue
				}
				inBubbles(t, fmt.Sprintf("%s/over=%t/known=%t", charged, over, known), how, func(t *testing.T, name string, opt reservoir.Option) {
					for _, n := range []int64{0, 40, 100, 160, 1500} {
						settlement{charged, over, known, name}.test(t, opt, n)
					}
				})
			}
		}
	}
}

// A settlement from stock makes no call and takes no memory. In a bubble, because a batch is ordered by the rate.
func TestSettleFromStock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(0)
		l := open(t, net, reservoir.PerHour(1_000_000), reservoir.WithFixedBatch(100_000))
		key := l.Key("k")
		r, err := key.AllowN(bg, 100)
		require.NoError(t, err)
		time.Sleep(time.Second) // or a thousand tokens in no time would be an endless rate, for which a batch is ordered
		calls := net.Count("")
		for _, n := range []int64{90, 100, 110} {
			was := l.Stats()
			require.NoError(t, l.Settle(bg, r, n))
			assert.Equal(t, n-100, was.Held-l.Stats().Held)
			assert.Zero(t, testing.AllocsPerRun(100, func() { _ = l.Settle(bg, r, n) }), n)
		}
		synctest.Wait()
		assert.Equal(t, calls, net.Count(""))
	})
}

// What the stock lacks is debt. It waits for the next statement, at most a twentieth of the
// window, and is charged even above the limit; so much is overdrawn.
func TestDebtWaits(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		for _, charged := range []int64{50, 100} {
			const debt = 70
			var told diary
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerMinute(100), opt, told.keep())
			r := allow(t, l, "k", charged)
			n := charged + l.Stats().Held + debt
			begin := time.Now()
			require.NoError(t, l.Settle(bg, r, n))
			require.Zero(t, time.Since(begin))
			require.EqualValues(t, debt, l.Stats().Debt)
			require.Zero(t, l.Stats().Held)
			if charged == 100 { // otherwise the next batch states it
				time.Sleep(time.Minute/20 - time.Second)
				require.EqualValues(t, debt, l.Stats().Debt)
			}
			time.Sleep(time.Minute/20 - time.Second)
			time.Sleep(time.Second + 10*time.Millisecond)
			s := l.Stats()
			require.Zero(t, s.Debt)
			require.Equal(t, max(n-100, 0), s.Overdrawn)
			require.Equal(t, n+s.Held, used(t, net, "k"))
			charges := slices.DeleteFunc(told.all(), func(c diaryEntry) bool { return c.Cause != "charge" })
			require.LessOrEqual(t, len(charges), 1)
			require.NoError(t, l.Close(bg))
		}
	})
}

// Overruns that go on all the time are stated some 20 times a window, however long a
// statement is under way.
func TestSteadyOverruns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(15 * time.Millisecond)
		l := open(t, net, reservoir.PerMinute(1000), reservoir.WithFixedBatch(1))
		paid := allow(t, l, "k", 1)
		require.True(t, allow(t, l, "k", 999).Allowed)
		require.False(t, allow(t, l, "k", 1).Allowed)
		calls := net.Count("")
		for range 3000 {
			require.NoError(t, l.Settle(bg, paid, 2))
			time.Sleep(10 * time.Millisecond)
		}
		assert.InDelta(t, 10, net.Count("")-calls, 2, "in half a window")
		assert.InDelta(t, 4000-150, used(t, net, "k"), 150, "but for what was used since the last")
	})
}

// An overrun in the last moments of a window, which no call can state in time any more, counts as
// above the limit.
func TestSettleInTheLastMoments(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerDay(100, nil), opt, reservoir.WithIdle(100*time.Hour))
		r := allow(t, l, "k", 100)
		time.Sleep(time.Until(r.Reset) - 20*time.Second)
		require.NoError(t, l.Settle(bg, r, 150))
		time.Sleep(time.Hour)
		assert.EqualValues(t, 50, l.Stats().Overdrawn)
		balance(t, l)
	})
	inBubble(t, "no room", func(t *testing.T) {
		l := open(t, testnet.Far(40*time.Millisecond), reservoir.PerDay(100, nil), reservoir.WithMaxKeys(0))
		r := allow(t, l, "k", 100)
		time.Sleep(time.Until(r.Reset) - 20*time.Millisecond)
		require.NoError(t, l.Settle(bg, r, 150))
		assert.EqualValues(t, 50, l.Stats().Overdrawn)
	})
}

// A network that repeats all calls, and so brings the second reply to each, makes no loop of calls. When it does so no
// more, all is settled.
func TestNetworkThatRepeatsAll(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1000), opt)
		r := allow(t, l, "k", 5)
		net.Always(testnet.Repeat)
		before := net.Count("")
		require.NoError(t, l.Settle(bg, r, 200))
		time.Sleep(10 * time.Minute)
		assert.Less(t, net.Count("")-before, 1000)
		_, err := l.AllowN(bg, "new", 7)
		assert.ErrorContains(t, err, "the network repeats each call")
		net.Faults(nil)
		time.Sleep(10 * time.Second)
		s := l.Stats()
		assert.EqualValues(t, 200, s.Spent)
		assert.EqualValues(t, 200, used(t, net, "k")-s.Held)
	})
}

// A Result of no charge, or of another limiter, cannot be settled, nor to a number that makes no
// sense, and nothing changes. What passed for nothing can.
func TestWhatCannotBeSettled(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(10), opt)
		r, other := allow(t, l, "k", 10), allow(t, open(t, net, reservoir.PerHour(10), opt), "other", 10)
		refused := allow(t, l, "k", 1)
		require.False(t, refused.Allowed)
		looked, err := l.Check(bg, "new")
		require.NoError(t, err)
		was := l.Stats()
		for _, wrong := range []reservoir.Result{{}, refused, looked, other} {
			for _, n := range []int64{0, 1, 99} {
				assert.ErrorContains(t, l.Settle(bg, wrong, n), "another limiter", "%+v", wrong)
			}
		}
		assert.ErrorIs(t, l.Settle(bg, r, -1), backend.ErrTokens)
		assert.ErrorIs(t, l.Settle(bg, r, 1<<53), backend.ErrTokens)
		assert.Equal(t, was, l.Stats())

		shadow := open(t, net, inShadow(reservoir.PerHour(10)), opt)
		passed := allow(t, shadow, "k", 1)
		require.True(t, passed.Allowed && passed.Shadowed)
		free := open(t, net, reservoir.Unlimited(), opt)
		for _, n := range []int64{0, 1, 5} {
			assert.NoError(t, shadow.Settle(bg, passed, n))
			assert.NoError(t, free.Settle(bg, allow(t, free, "k", 1), n))
		}
	})
}

// A Result knows its key, and no print of it shows that.
func TestResultHidesItsKey(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerHour(10), opt)
		const name = "user:a name that nobody else should read"
		r := allow(t, l, name, 3)
		for _, format := range []string{"%v", "%+v", "%#v"} {
			assert.NotContains(t, fmt.Sprintf(format, r), "nobody else")
		}
		require.NoError(t, l.Refund(bg, r))
		assert.EqualValues(t, 3, l.Stats().Refunded)
	})
}

// withoutAccount are the ways to have no key in memory when a request is settled.
func withoutAccount() map[string]reservoir.Option {
	return map[string]reservoir.Option{"no room": reservoir.WithMaxKeys(0), "forgotten": reservoir.WithIdle(time.Second)}
}

// What a request has used above its charge is charged by a call if its key is not in memory. The call is sent once. After a
// lost request or reply nobody knows what was charged; after an answer that it was not carried out, everybody does.
func TestSettleByACallFails(t *testing.T) {
	for name, opt := range withoutAccount() {
		inBubbles(t, name, map[string]testnet.Fault{"request lost": testnet.LoseRequest, "reply lost": testnet.LoseReply, "refused": testnet.Refuse, "rejected": testnet.Reject}, func(t *testing.T, _ string, f testnet.Fault) {
			for _, n := range []int64{20, 70} {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerHour(100), opt)
				r := allow(t, l, "k", 50)
				time.Sleep(10 * time.Second)
				require.Zero(t, l.Stats().Keys)
				net.Always(f)
				require.Equal(t, n > 50, l.Settle(bg, r, n) != nil)
				net.Faults(nil)
				s, unknown := l.Stats(), f == testnet.LoseRequest || f == testnet.LoseReply
				assert.Zero(t, s.Debt)
				if n < 50 {
					assert.Zero(t, overruns(net), "what is charged without an account never goes back")
					assert.Equal(t, n, s.Spent-s.Refunded)
					assert.EqualValues(t, 50-n, s.Expired)
				} else {
					assert.Equal(t, 1, overruns(net))
					assert.Equal(t, 1, net.Happened(f))
					assert.EqualValues(t, 50, s.Spent)
					assert.Equal(t, n-50, s.Overdrawn+s.Unknown)
					assert.Equal(t, unknown, s.Unknown > 0)
				}
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
			require.NoError(t, l.Settle(ctx, r, n))
			require.NoError(t, l.Close(bg))
			assert.Equal(t, n, used(t, net, "k"))
		}
	})
	inBubbles(t, "by a call", withoutAccount(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(10 * time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), opt)
		r := allow(t, l, "k", 50)
		time.Sleep(10 * time.Second)
		ctx, cancel := context.WithCancel(bg)
		cancel()
		require.NoError(t, l.Settle(ctx, r, 70))
		assert.EqualValues(t, 70, used(t, net, "k"))
	})
}

// A settlement by a call goes on when its caller leaves, in the window of the request, whatever
// the limit is by then.
func TestSettleOutlivesItsCaller(t *testing.T) {
	for what, to := range map[string]reservoir.Limit{"the same": reservoir.PerHour(100), "minute": reservoir.PerMinute(100), "day": reservoir.PerDay(100, nil)} {
		inBubbles(t, what, withoutAccount(), func(t *testing.T, _ string, opt reservoir.Option) {
			net, limit := testnet.Far(20*time.Millisecond), planned(reservoir.PerHour(100))
			l := open(t, net, reservoir.PerHour(1), opt, limit.option())
			r := allow(t, l, "k", 100)
			time.Sleep(10 * time.Second)
			require.Zero(t, l.Stats().Keys)
			limit.set(to)
			ctx, cancel := context.WithTimeout(bg, 5*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, l.Settle(ctx, r, 300), context.DeadlineExceeded)
			time.Sleep(30 * time.Minute)
			assert.EqualValues(t, 300, used(t, net, "k"))
			assert.EqualValues(t, 200, l.Stats().Overdrawn)
			balance(t, l)
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
					l := open(t, net, reservoir.PerMinute(100), opt, reservoir.WithFailOpen())
					if away {
						net.Always(testnet.Refuse)
					}
					r := allow(t, l, "k", 10)
					net.Faults(nil)
					require.NoError(t, l.Close(bg))
					time.Sleep(wait)
					assert.ErrorIs(t, l.Settle(bg, r, n), reservoir.ErrClosed)
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
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		ctx := context.Background()
		net := testnet.Far(rtt / 2)
		a, b := open(t, net, reservoir.PerMinute(5), opt), open(t, net, reservoir.PerMinute(5), opt)
		last := allow(t, a, "k", 1)
		drain(t, a, "k", 1)
		require.False(t, allow(t, b, "k", 1).Allowed)
		require.NoError(t, a.Refund(ctx, last))
		again := allow(t, a, "k", 1)
		require.True(t, again.Allowed)
		require.False(t, allow(t, a, "k", 1).Allowed)
		require.NoError(t, a.Refund(ctx, again))
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
		if err := l.Refund(ended, r); err != nil {
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, l.Refund(bg, r))
		}
		require.NoError(t, <-served)
		assert.Zero(t, time.Since(begin))
	})
}

// Tokens that lie idle here but were not when the store last heard of them, because requests
// gave them back or their callers have left, are told to the store: within a lead time if the
// limit runs short, otherwise within a twentieth of the window. So another process gets all.
func TestIdleTokensThatTheStoreDoesNotKnow(t *testing.T) {
	inBubbles(t, "", map[string]func(l *reservoir.Limiter) time.Duration{
		"refunded": func(l *reservoir.Limiter) time.Duration {
			require.NoError(t, l.Refund(bg, allow(t, l, "k", 60)))
			return 20 * time.Millisecond
		},
		"refunded in a crowd": func(l *reservoir.Limiter) time.Duration {
			crowd(60, func(int) { require.NoError(t, l.Refund(bg, allow(t, l, "k", 1))) })
			return 20 * time.Millisecond
		},
		"left": func(l *reservoir.Limiter) time.Duration {
			ctx, cancel := context.WithTimeout(bg, time.Millisecond)
			defer cancel()
			require.Error(t, take(l.AllowN(ctx, "k", 60)))
			return 20 * time.Millisecond
		},
		"not short": func(l *reservoir.Limiter) time.Duration {
			allow(t, l, "k", 1)
			time.Sleep(30 * time.Second)
			require.NoError(t, l.Refund(bg, allow(t, l, "k", 40)))
			return 4 * time.Second
		},
	}, func(t *testing.T, name string, idle func(l *reservoir.Limiter) time.Duration) {
		net := testnet.Far(time.Millisecond)
		all := fleet(t, 2, net, reservoir.PerMinute(100))
		time.Sleep(idle(all[0]))
		spent := all[0].Stats().Spent - all[0].Stats().Refunded
		counters, err := net.Inspect(bg, "k")
		require.NoError(t, err)
		seen := counters[0]
		require.GreaterOrEqual(t, 100-seen.Used+seen.Idle, 100-spent, "what the store knows of")
		require.Equal(t, 100-spent, drain(t, all[1], "k", 1))
		balance(t, all[0])
	})
}

// Tokens that come back to a limit that was used up are found by all who were refused, however
// many these are and however long the window is.
func TestReturnedTokensAreFoundByAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		all := fleet(t, 100, net, reservoir.PerDay(6000, time.UTC))
		large := allow(t, all[0], "k", 500)
		require.True(t, large.Allowed)
		for _, l := range all[1:] {
			drain(t, l, "k", 1)
		}
		require.NoError(t, all[0].Refund(bg, large))
		time.Sleep(3 * time.Second)
		for i, l := range all[1:] {
			require.Eventually(t, func() bool { return allow(t, l, "k", 1).Allowed }, 2*time.Second, 100*time.Millisecond, "process %d", i)
		}
	})
}

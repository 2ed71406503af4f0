package reservoir_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// This file settles when it is late: the key is forgotten, the window over, the store away.

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

// What FailOpen admits of a key that there is no room for was used above the limit.
func TestFailOpenWithoutRoomIsCounted(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(10), reservoir.WithMaxKeys(0), reservoir.WithFailure(reservoir.FailOpen()))
		require.EqualValues(t, 10, drain(t, l, "k", 1))
		breakdown(t, l, net, testnet.Refuse)
		before := l.Stats()
		for range 50 {
			require.True(t, allow(t, l, "k", 1).Allowed)
		}
		s := l.Stats()
		assert.EqualValues(t, 50, s.Admitted-before.Admitted)
		assert.EqualValues(t, 50, s.Overdrawn+s.Owed-before.Owed-before.Overdrawn, "60 of 10 were admitted")
		net.Faults(nil)
		time.Sleep(5 * time.Minute)
		s = l.Stats()
		assert.GreaterOrEqual(t, s.Overdrawn, int64(50))
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

// A Wait for a key without room is served when the limit is to be had again, and told that
// its deadline cannot be met only if it ends before the window.
func TestWaitWithoutRoom(t *testing.T) {
	inBubble(t, "counts", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1), reservoir.WithMaxKeys(0))
		net.Always(testnet.Refuse)
		time.AfterFunc(time.Minute, func() { net.Faults(nil) })
		for range 2 { // through the outage, and through the reset
			require.NoError(t, waitFor(bg, l, "k", 1))
		}
		s := l.Stats()
		assert.Zero(t, s.Failed)
		assert.Zero(t, s.Denied)
	})
	inBubble(t, "reset", func(t *testing.T) {
		l := open(t, memstore.New(), reservoir.PerDay(1, nil), reservoir.WithMaxKeys(0))
		require.True(t, allow(t, l, "k", 1).Allowed)
		begin, served := time.Now(), make(chan time.Duration, 1)
		go func() {
			_, err := l.Wait(bg, "k")
			assert.NoError(t, err)
			served <- time.Since(begin)
		}()
		synctest.Wait()
		require.NoError(t, l.Reset(bg, "k"))
		assert.Less(t, <-served, 12*time.Hour, "it asks some 20 times in a window")
	})
	inBubble(t, "deadline", func(t *testing.T) {
		l := open(t, memstore.New(), reservoir.PerDay(1, nil), reservoir.WithMaxKeys(0))
		missed := 0
		for range 20 {
			r := allow(t, l, "k", 1)
			require.True(t, r.Allowed)
			ctx, cancel := context.WithDeadline(bg, r.Reset.Add(time.Minute))
			if _, err := l.Wait(ctx, "k"); err != nil {
				missed++
				assert.ErrorIs(t, err, reservoir.ErrDeadline)
			}
			cancel()
			time.Sleep(48 * time.Hour)
		}
		assert.Zero(t, missed, "of 20 that had a minute left after the reset were told that their deadline cannot be met")
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

// A window of the limit's old length ends while a call without stock asks again with that length,
// and another process opens one of the new length.
func TestOldWindowEndsBetweenTwoCalls(t *testing.T) {
	for what, opt := range map[string]reservoir.Option{"direct": reservoir.WithDirect(), "no room": reservoir.WithMaxKeys(0)} {
		inBubble(t, what, func(t *testing.T) {
			store, limit := memstore.New(), changingLimit(100)
			was := allow(t, open(t, store, reservoir.PerHour(100)), "k", 1)
			l := open(t, testnet.New(store, 10*time.Millisecond), reservoir.PerMinute(100), opt, limit.option())
			other := open(t, store, reservoir.PerMinute(100))
			time.AfterFunc(time.Until(was.Reset)+5*time.Millisecond, func() { allow(t, other, "k", 1) })
			time.Sleep(time.Until(was.Reset) - 15*time.Millisecond)
			require.True(t, allow(t, l, "k", 1).Allowed)
		})
	}
}

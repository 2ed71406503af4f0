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
	"github.com/go-reservoir/reservoir/backend/memstore"
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
		net := far(time.Millisecond)
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
		net := far(time.Millisecond)
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

// A request that outlives the memory of its key: what it did not use goes back.
func TestSurplusAfterEviction(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerDay(1000, nil), reservoir.WithIdle(time.Second))
		r := allow(t, l, "k", 900)
		time.Sleep(time.Minute)
		require.NoError(t, l.Settle(bg, "k", r, 100))
		time.Sleep(time.Hour)
		assert.EqualValues(t, 100, used(t, net, "k")-l.Stats().Held)
	})
}

// What a settlement leaves and this process does not use is soon had by others.
func TestSurplusOfSettleReturns(t *testing.T) {
	for what, limit := range map[string]reservoir.Limit{"hour": reservoir.PerHour(10_000), "day": reservoir.PerDay(10_000, nil), "minute": reservoir.PerMinute(10_000)} {
		inBubble(t, what, func(t *testing.T) {
			net := far(time.Millisecond)
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

// A late overrun counts in the window that is open in the store, whoever has opened it.
func TestLateOverrunInAWindowThatOthersOpened(t *testing.T) {
	for what, opts := range map[string][]reservoir.Option{
		"room":      nil,
		"no room":   {reservoir.WithMaxKeys(0)},
		"direct":    {reservoir.WithDirect()},
		"forgotten": {reservoir.WithIdle(time.Second)},
	} {
		inBubble(t, what, func(t *testing.T) {
			net := far(time.Millisecond)
			l := open(t, net, reservoir.PerMinute(100), append(opts, reservoir.WithLateOverruns())...)
			other := open(t, net, reservoir.PerMinute(100), reservoir.WithDirect())
			r := allow(t, l, "k", 20)
			time.Sleep(90 * time.Second)
			require.True(t, allow(t, other, "k", 10).Allowed)
			require.NoError(t, l.Settle(bg, "k", r, 50))
			time.Sleep(10 * time.Second)
			assert.EqualValues(t, 40, used(t, net, "k")-l.Stats().Held)
		})
	}
	inBubble(t, "no room, in its own process' window", func(t *testing.T) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), reservoir.WithMaxKeys(0), reservoir.WithLateOverruns())
		r := allow(t, l, "k", 20)
		time.Sleep(90 * time.Second)
		require.True(t, allow(t, l, "k", 10).Allowed)
		require.NoError(t, l.Settle(bg, "k", r, 50))
		assert.EqualValues(t, 40, used(t, net, "k"))
	})
}

// What was used above the charge of a key without room is counted as above the limit if the
// store cannot be told, and is charged though the caller has left.
func TestOverrunWithoutRoomInAnOutage(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), reservoir.WithMaxKeys(0))
		r := allow(t, l, "k", 100)
		net.always(refuse)
		err := l.Settle(bg, "k", r, 300)
		require.Error(t, err)
		net.set(nil)
		time.Sleep(2 * time.Hour)
		s := l.Stats()
		assert.EqualValues(t, 200, s.Overdrawn+s.Unknown)
	})
	inBubble(t, "the caller leaves", func(t *testing.T) {
		net := far(20 * time.Millisecond)
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
}

// What FailOpen admits of a key that there is no room for was used above the limit.
func TestFailOpenWithoutRoomIsCounted(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(10), reservoir.WithMaxKeys(0), reservoir.WithFailure(reservoir.FailOpen))
		require.EqualValues(t, 10, drain(t, l, "k", 1))
		breakdown(t, l, net, refuse)
		before := l.Stats()
		for range 50 {
			require.True(t, allow(t, l, "k", 1).Allowed)
		}
		s := l.Stats()
		assert.EqualValues(t, 50, s.Admitted-before.Admitted)
		assert.EqualValues(t, 50, s.Overdrawn+s.Owed-before.Owed-before.Overdrawn, "60 of 10 were admitted")
		net.set(nil)
		time.Sleep(5 * time.Minute)
		s = l.Stats()
		assert.GreaterOrEqual(t, s.Overdrawn, int64(50))
	})
}

// Requests of all kinds that settle, leave and are reset, under limits that change and in
// outages: the counts balance, never go back, and tell of every request.
func TestEverythingAtOnce(t *testing.T) {
	for seed := range uint64(12) {
		inBubbles(t, fmt.Sprint(seed), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			net := far(time.Millisecond)
			var tokens atomic.Int64
			tokens.Store(200)
			limits := reservoir.WithLimits(func(string) reservoir.Limit {
				switch n := tokens.Load(); n {
				case -1:
					return reservoir.Unlimited
				case 0:
					return reservoir.Limit{}
				default:
					return reservoir.PerMinute(n)
				}
			})
			opts := []reservoir.Option{opt, limits, reservoir.WithIdle(20 * time.Second)}
			if seed%2 == 1 {
				opts = append(opts, reservoir.WithFailure(reservoir.FailOpen))
			}
			if seed%3 == 1 {
				opts = append(opts, reservoir.WithLateOverruns())
			}
			if seed%4 == 3 {
				opts = append(opts, reservoir.WithMaxKeys(2))
			}
			all := fleet(t, 3, net, reservoir.PerMinute(200), opts...)
			var admitted [3]atomic.Int64
			var last [3]reservoir.Stats
			keys := []string{"a", "b", "c"}
			for step := range 1500 {
				i := rnd.IntN(3)
				l, key, n, more := all[i], keys[rnd.IntN(3)], 1+rnd.Int64N(30), rnd.Int64N(60)
				switch rnd.IntN(40) {
				case 0:
					tokens.Store([]int64{0, -1, 50, 200, 1000}[rnd.IntN(5)])
				case 1:
					net.always([]fault{fine, loseRequest, loseReply, refuse, repeat, arriveLate}[rnd.IntN(6)])
				case 2, 3:
					net.set(nil)
				case 4:
					_ = l.Reset(bg, key)
				}
				patience := time.Duration(rnd.IntN(5000)) * time.Millisecond
				stay := rnd.IntN(5) == 0
				hold := time.Duration(rnd.IntN(20000)) * time.Millisecond
				go func() {
					ctx, cancel := context.WithTimeout(bg, patience+time.Microsecond)
					defer cancel()
					var r reservoir.Result
					var err error
					if stay {
						r, err = l.WaitN(ctx, key, n)
					} else {
						r, err = l.AllowN(ctx, key, n)
					}
					if err != nil || !r.Allowed {
						return
					}
					if !r.Unlimited() {
						admitted[i].Add(1)
					}
					time.Sleep(hold)
					_ = l.Settle(bg, key, r, more)
				}()
				time.Sleep(time.Duration(rnd.IntN(300)) * time.Millisecond)
				if step%50 == 0 {
					for j, l := range all {
						s := l.Stats()
						requireGrowth(t, last[j], s)
						last[j] = s
					}
				}
			}
			net.set(nil)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			for j, l := range all {
				balance(t, l)
				s := l.Stats()
				assert.Equal(t, admitted[j].Load(), s.Admitted, "%+v", s)
				require.NoError(t, l.Close(bg))
				balance(t, l)
				assert.Equal(t, admitted[j].Load(), l.Stats().Admitted)
			}
		})
	}
}

package reservoir_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/invariant"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// A hold stops all processes until it ends, and nobody for longer. The judge knows when requests were admitted, and when holds began and ended.

// requireHeld asserts that each process refuses, and says until when, as exactly as clocks differ in speed.
func requireHeld(t *testing.T, all []*reservoir.Limiter, ends time.Time) {
	t.Helper()
	begin := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // of the bubble
	for i, l := range all {
		r := allow(t, l, "k", 1)
		require.False(t, r.Allowed, "process %d", i)
		require.WithinDuration(t, ends, time.Now().Add(r.RetryAfter), spill(ends.Sub(begin)), "process %d", i)
		require.Zero(t, r.Remaining)
	}
}

// requireFree asserts that each process admits.
func requireFree(t *testing.T, all []*reservoir.Limiter) {
	t.Helper()
	for i, l := range all {
		require.True(t, allow(t, l, "k", 1).Allowed, "process %d", i)
	}
}

// spill is how long after the end of a hold everybody is served.
func spill(d time.Duration) time.Duration { return d/1000 + 10*rtt }

// TestSettleWhileHeld: what a request has used above its charge comes out of the stock, though a hold withholds that from others.
func TestSettleWhileHeld(t *testing.T) {
	onKinds(t, func(t *testing.T, net *testnet.Network, all []*reservoir.Limiter, _ reservoir.Limit) {
		l := all[0]
		r := allow(t, l, "k", 1)
		require.NoError(t, l.Hold(bg, "k", time.Minute))
		before := l.Stats()
		require.False(t, allow(t, l, "k", 1).Allowed)
		require.NoError(t, l.Settle(bg, r, 1+before.Held))
		after := l.Stats()
		require.Zero(t, after.Held+after.Debt)
		require.Equal(t, before.Spent+before.Held, after.Spent)
	})
}

// TestHold: all are held for as long as the longest hold lasts, and for no longer.
func TestHold(t *testing.T) {
	onKinds(t, func(t *testing.T, net *testnet.Network, all []*reservoir.Limiter, limit reservoir.Limit) {
		const d = 10 * time.Minute // ends before the window
		before := net.Count("sync")
		waited := make(chan time.Time, 1)
		require.NoError(t, all[0].Hold(bg, "k", d))
		require.Equal(t, 1, net.Count("sync")-before, "one call")
		ends := time.Now().Add(d)
		synctest.Wait()
		time.Sleep(2 * rtt)
		requireHeld(t, all, ends)
		go func() {
			assert.NoError(t, waitFor(bg, all[1], "k", 1))
			waited <- time.Now()
		}()
		for range 100 {
			requireHeld(t, all, ends)
		}
		time.Sleep(2 * rtt)
		require.LessOrEqual(t, net.Count("sync")-before, 1+2, "and one for each process that asks")
		for _, k := range all[2].Keys() {
			require.InDelta(t, d, k.Hold, float64(time.Second))
		}
		for _, l := range all {
			require.EqualValues(t, 1, l.Stats().Holds)
		}
		check, err := all[1].Check(bg, "k")
		require.NoError(t, err)
		require.False(t, check.Allowed)
		require.WithinDuration(t, ends, time.Now().Add(check.RetryAfter), time.Second)
		require.NoError(t, all[2].Hold(bg, "k", time.Second))

		time.Sleep(time.Until(ends) - time.Second)
		requireHeld(t, all, ends)
		time.Sleep(time.Second + spill(d))
		select {
		case at := <-waited:
			require.False(t, at.Before(ends.Add(-rtt)))
		default:
			t.Fatal("a Wait lasts longer than the hold")
		}
		requireFree(t, all)
		require.EqualValues(t, 600-180-4, spendAll(t, all), "the count goes on, and nothing is lost")
	})
}

// TestHoldOutlastsTheWindow: the next window opens when the hold is over.
func TestHoldOutlastsTheWindow(t *testing.T) {
	onKinds(t, func(t *testing.T, net *testnet.Network, all []*reservoir.Limiter, limit reservoir.Limit) {
		const d = 50 * time.Hour
		require.NoError(t, all[0].Hold(bg, "k", d))
		ends := time.Now().Add(d)
		calls := 0
		for time.Until(ends) > time.Minute {
			time.Sleep(time.Until(ends)/7 + 5*time.Second)
			if time.Until(ends) < 0 {
				break
			}
			before := net.Count("sync")
			requireHeld(t, all, ends)
			time.Sleep(10 * rtt)
			calls = max(calls, net.Count("sync")-before)
		}
		require.LessOrEqual(t, calls, 2*len(all), "each looks whether it still stands, and states what is over")
		time.Sleep(time.Until(ends) + spill(d))
		requireFree(t, all)
		require.EqualValues(t, 600-3, spendAll(t, all))
	})
}

// TestHoldWhileTheStoreIsAway: it holds here, whatever the failure policy, and the others when the store is back.
func TestHoldWhileTheStoreIsAway(t *testing.T) {
	for kind, limit := range kinds() {
		for name, policy := range map[string]reservoir.Option{"open": reservoir.WithFailOpen(), "local": reservoir.WithFailLocal(0.5)} {
			inBubble(t, kind+"/"+name, func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				all := fleetOn(t, 3, net, limit, policy)
				requireFree(t, all)
				breakdown(t, all[0], net, testnet.Refuse)
				err := all[0].Hold(bg, "k", 10*time.Minute)
				_, away := errors.AsType[*reservoir.StoreError](err)
				require.True(t, away, "%v", err)
				ends := time.Now().Add(10 * time.Minute)
				requireHeld(t, all[:1], ends)
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				require.ErrorIs(t, waitFor(ctx, all[0], "k", 1), reservoir.ErrDeadline)
				cancel()
				waited := make(chan time.Time, 1)
				go func() {
					assert.NoError(t, waitFor(bg, all[0], "k", 1))
					waited <- time.Now()
				}()
				_, _ = all[0].Allow(bg, "one more") // and hears that the store is away
				require.True(t, allow(t, all[1], "k", 1).Allowed, "the others do not know")
				net.Faults(nil)
				time.Sleep(toClose)
				requireHeld(t, all, ends)
				time.Sleep(time.Until(ends) + spill(10*time.Minute))
				require.False(t, (<-waited).Before(ends))
				requireFree(t, all)
			})
		}
	}
}

// TestHoldHeardAtTheLastStatement: a key that is idle hears of the hold by the reply to the statement with which it leaves. If it were
// forgotten then, its failure policy would admit what the hold forbids.
func TestHoldHeardAtTheLastStatement(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(rtt / 2)
		net.Travel = func(_ int, leg testnet.Leg) time.Duration {
			if leg == testnet.Message {
				return -1
			}
			return rtt / 2
		}
		all := fleetOn(t, 2, net, reservoir.PerHour(600), reservoir.WithFailOpen(), reservoir.WithIdle(time.Minute))
		for range 20 {
			require.True(t, allow(t, all[0], "k", 1).Allowed)
		}
		require.Positive(t, all[0].Stats().Held)
		require.NoError(t, all[1].Hold(bg, "k", 30*time.Minute))
		calls := net.Count("sync")
		time.Sleep(5 * time.Minute)
		require.Greater(t, net.Count("sync"), calls, "it has said that it leaves")
		breakdown(t, all[1], net, testnet.Refuse)
		require.False(t, allow(t, all[0], "k", 1).Allowed)
		time.Sleep(26 * time.Minute)
		require.Equal(t, reservoir.Fallback, allow(t, all[0], "k", 1).Source, "the hold is over, and the store away")
	})
}

// TestHoldAfterAReset: a Reset ends a long hold. What is heard of a later one of somebody else counts, though it ends before the long one
// would have, and while the store has not heard of this process' own.
func TestHoldAfterAReset(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(rtt / 2)
		all := fleetOn(t, 2, net, reservoir.Limit{Tokens: 6000, Window: 24 * time.Hour})
		requireFree(t, all)
		require.NoError(t, all[1].Hold(bg, "k", 10*time.Hour))
		time.Sleep(2 * rtt)
		requireHeld(t, all, time.Now().Add(10*time.Hour))
		time.Sleep(2 * rtt)
		require.NoError(t, all[1].Reset(bg, "k"))
		time.Sleep(2 * rtt)
		for range 20 {
			requireFree(t, all)
			time.Sleep(time.Second)
		}
		require.Positive(t, all[0].Stats().Held)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if c.Who == 0 {
				return testnet.Refuse
			}
			return testnet.Fine
		})
		require.Error(t, all[0].Hold(bg, "k", time.Minute))
		require.NoError(t, all[1].Hold(bg, "k", time.Hour))
		time.Sleep(2 * time.Minute)
		r, _ := all[0].Allow(bg, "k")
		require.False(t, r.Allowed, "its own hold is over, the other one is not")
	})
}

// TestHoldElsewhere: past WithMaxKeys, of a group, in shadow; and what cannot be held.
func TestHoldElsewhere(t *testing.T) {
	inBubble(t, "no room", func(t *testing.T) {
		all := fleet(t, 2, testnet.Far(rtt/2), reservoir.PerMinute(600), reservoir.WithMaxKeys(1))
		for _, l := range all {
			allow(t, l, "other", 1)
		}
		require.NoError(t, all[0].Hold(bg, "k", 2*time.Minute))
		ends := time.Now().Add(2 * time.Minute)
		requireHeld(t, all, ends)
		require.NoError(t, waitFor(bg, all[1], "k", 1))
		require.False(t, time.Now().Before(ends.Add(-rtt)))
	})
	inBubble(t, "group", func(t *testing.T) {
		store := memstore.New()
		a, b := open(t, store, reservoir.PerMinute(600)), open(t, store, reservoir.PerHour(600))
		g := reservoir.NewGroup(a, b)
		_, err := g.Allow(bg, "k", "k")
		require.NoError(t, err)
		require.NoError(t, b.Hold(bg, "k", 10*time.Second))
		r, err := g.Allow(bg, "k", "k")
		require.NoError(t, err)
		require.False(t, r.Allowed)
		require.Equal(t, 1, r.Limiter)
		begin := time.Now()
		r, err = g.Wait(bg, "k", "k")
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.InDelta(t, 10*time.Second, time.Since(begin), float64(time.Second))
		require.True(t, allow(t, a, "k", 1).Allowed, "each limit by itself")
	})
	inBubble(t, "shadow", func(t *testing.T) {
		l := open(t, memstore.New(), inShadow(reservoir.PerMinute(600)))
		require.NoError(t, l.Hold(bg, "k", time.Minute))
		r := allow(t, l, "k", 1)
		require.True(t, r.Allowed && r.Shadowed)
	})
	t.Run("what cannot be held", func(t *testing.T) {
		l := open(t, memstore.New(), reservoir.PerMinute(600), reservoir.WithLimits(func(key string) reservoir.Limit {
			if key == "free" {
				return reservoir.Unlimited()
			}
			return reservoir.PerMinute(5)
		}))
		require.ErrorIs(t, l.Hold(bg, "k", 0), reservoir.ErrOption)
		require.ErrorIs(t, l.Hold(bg, "k", -time.Second), reservoir.ErrOption)
		require.ErrorIs(t, l.Hold(bg, "k", 367*24*time.Hour), reservoir.ErrOption)
		require.ErrorIs(t, l.Hold(bg, "", time.Second), reservoir.ErrKey)
		require.ErrorIs(t, l.Hold(bg, "free", time.Second), reservoir.ErrLimit)
		require.NoError(t, l.Hold(bg, "k", time.Nanosecond))
		require.NoError(t, l.Hold(bg, "k2", 366*24*time.Hour))
		ctx, cancel := context.WithCancel(bg)
		cancel()
		require.True(t, allow(t, l, "k3", 1).Allowed)
		_ = l.Hold(ctx, "k3", time.Hour)
		require.False(t, allow(t, l, "k3", 1).Allowed, "at once, whatever the context says")
		require.NoError(t, l.Close(bg))
		require.ErrorIs(t, l.Hold(bg, "k", time.Second), reservoir.ErrClosed)
	})
}

// TestForgedHold: a message makes processes ask, and no more.
func TestForgedHold(t *testing.T) {
	onKinds(t, func(t *testing.T, net *testnet.Network, all []*reservoir.Limiter, limit reservoir.Limit) {
		before := net.Count("sync")
		require.NoError(t, net.Store().(backend.Listener).Publish(bg, backend.Message{
			Kind: backend.Held, Key: "k", Counter: backend.Limit(limit).Counter(), Window: backend.Window{End: time.Now().Add(time.Hour).UnixMilli()},
		}))
		synctest.Wait()
		time.Sleep(2 * rtt)
		requireFree(t, all)
		require.LessOrEqual(t, net.Count("sync")-before, 2*len(all))
		require.EqualValues(t, 600-180-3, spendAll(t, all))
	})
}

// TestManyHolds: fifty processes, a thousand holds, one message in a hundred lost, and a process that is suspended now and then. Where messages
// come nobody sends early, but for what was on its way; others send what they hold at most, once.
func TestManyHolds(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		processes, holds := 50, 1000
		if invariant.Enabled { // the race detector takes its time
			holds = 100
		}
		rnd, loss := rand.New(rand.NewPCG(7, 8)), rand.New(rand.NewPCG(9, 10))
		net, limit := testnet.Far(rtt/2), reservoir.PerMinute(60_000)
		lost, all := make([]bool, processes), fleetOn(t, processes, net, limit)
		var mu sync.Mutex // guards loss and lost
		losses := 0
		net.Travel = func(who int, leg testnet.Leg) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			if leg == testnet.Message && (lost[0] && who == 0 || loss.IntN(100) == 0) {
				lost[who], losses = true, losses+1
				return -1
			}
			return rtt / 2
		}
		early, most, heard := int64(0), int64(0), 0
		for range holds {
			mu.Lock()
			clear(lost)
			lost[0] = rnd.IntN(10) == 0 // suspended
			mu.Unlock()
			for _, l := range all {
				for range 1 + rnd.IntN(3) {
					allow(t, l, "k", 1)
				}
			}
			d := time.Duration(1+rnd.IntN(3000)) * time.Millisecond
			by := all[1+rnd.IntN(processes-1)]
			require.NoError(t, by.Hold(bg, "k", d))
			ends := time.Now().Add(d)
			time.Sleep(2 * rtt)
			for _, who := range rnd.Perm(processes) {
				stock := all[who].Stats().Held
				sent := int64(0)
				for time.Now().Add(rtt).Before(ends) && allow(t, all[who], "k", 1).Allowed {
					sent++
				}
				mu.Lock()
				if lost[who] {
					most = max(most, sent-stock)
				} else {
					early += sent
					heard++
				}
				mu.Unlock()
			}
			time.Sleep(time.Until(ends) + spill(d))
			require.True(t, allow(t, by, "k", 1).Allowed || by.Stats().Denied > 0)
		}
		assert.Zero(t, early, "sent early by who has heard")
		assert.LessOrEqual(t, most, int64(0), "sent early by who has not, beyond what it held")
		assert.Greater(t, losses, holds/4)
		assert.Greater(t, heard, holds*processes/2)
	})
}

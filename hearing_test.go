package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
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
	"github.com/go-reservoir/reservoir/sharding"
)

// TestResetIsHeard: every process admits from the fresh window within a round trip after Reset, whether it refused, held stock, or
// has a Wait in line; nothing of the old window is spent from then on, and never more than the limit of the new one. Refusals are free then.
// A process to which no message comes refuses on, and learns of a Reset by a probe.
func TestResetIsHeard(t *testing.T) {
	for _, limit := range []reservoir.Limit{reservoir.PerDay(600, nil), reservoir.PerHour(600), reservoir.PerHour(600).Rolling()} {
		inBubbles(t, limit.Window.String()+"/"+strconv.FormatBool(limit.Rolls), everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(rtt / 2)
			all := fleetOn(t, 4, net, limit, opt)
			require.NoError(t, all[0].Reset(bg, "k"), "nothing is open")
			paid := allow(t, all[3], "k", 1) // and stock
			exhaust(t, all[:3], "k")
			require.False(t, allow(t, all[1], "k", 1).Allowed)
			waited := make(chan reservoir.Result, 1)
			go func() {
				r, err := all[2].Wait(bg, "k")
				assert.NoError(t, err)
				waited <- r
			}()
			synctest.Wait()
			before := net.Count("")
			for range 2 { // the second one voids what the first has opened
				require.NoError(t, all[0].Reset(bg, "k"))
				synctest.Wait()
			}
			heard := time.Now()
			assert.LessOrEqual(t, net.Count("")-before, 2+2, "nobody calls but for the Wait")
			fresh := int64(0)
			var window backend.Window
			for _, l := range all {
				r := allow(t, l, "k", 1)
				require.True(t, r.Allowed)
				window = reservoir.WindowOf(r)
				require.NotEqual(t, reservoir.WindowOf(paid), window)
				fresh++
			}
			assert.LessOrEqual(t, time.Since(heard), 4*rtt, "a round trip each")
			if r := <-waited; reservoir.WindowOf(r).Gen == window.Gen {
				fresh++
			}
			require.NoError(t, all[3].Refund(bg, paid), "it is void")
			calls := 0
			for range 1000 {
				calls = net.Count("")
				for _, l := range all {
					if allow(t, l, "k", 1).Allowed {
						fresh++
					}
				}
			}
			assert.Equal(t, calls, net.Count(""), "refusals are free")
			assert.LessOrEqual(t, fresh, limit.Tokens)
			assert.Greater(t, fresh+stats(all...).Held, limit.Tokens*9/10)

			if limit.Rolls { // a probe may come only when tokens count no more
				return
			}
			net.Deafen(errors.New("cut"))
			require.NoError(t, all[0].Reset(bg, "k"))
			synctest.Wait()
			require.False(t, allow(t, all[1], "k", 1).Allowed)
			for begin := time.Now(); !allow(t, all[1], "k", 1).Allowed; time.Sleep(time.Second) {
				require.Less(t, time.Since(begin), limit.Window)
			}
		})
	}
	l := open(t, testnet.Far(0), reservoir.PerHour(5))
	assert.ErrorIs(t, l.Reset(bg, ""), reservoir.ErrKey)
	require.NoError(t, l.Close(bg))
	assert.ErrorIs(t, l.Reset(bg, "k"), reservoir.ErrClosed)
}

// TestRefresh: a ban, a lowered plan, a raised plan and the end of a limit are seen by all processes within a round trip, and what was
// spent before counts.
func TestRefresh(t *testing.T) {
	for kind, of := range map[string]func(int64) reservoir.Limit{
		"fixed": reservoir.PerHour, "rolling": func(n int64) reservoir.Limit { return reservoir.PerHour(n).Rolling() },
	} {
		inBubbles(t, kind, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net, limit := testnet.Far(rtt/2), planned(of(100))
			all := fleetOn(t, 3, net, reservoir.PerMinute(1), opt, limit.option())
			change := func(to reservoir.Limit) {
				limit.set(to)
				begin := time.Now()
				require.NoError(t, all[0].Refresh(bg, "k"))
				require.LessOrEqual(t, time.Since(begin), rtt)
				time.Sleep(10 * rtt)
			}
			admitted := func() (n int64) {
				for _, l := range all {
					n += drain(t, l, "k", 1)
				}
				return n
			}
			require.EqualValues(t, 100, admitted())
			change(of(150))
			require.EqualValues(t, 50, admitted(), "raised")
			change(reservoir.Unlimited())
			for _, l := range all {
				for range 1000 {
					require.True(t, allow(t, l, "k", 1).Allowed)
				}
			}
			change(of(3000))
			for _, l := range all {
				r := allow(t, l, "k", 1)
				require.True(t, r.Allowed && r.Limit == 3000)
			}
			change(of(50))
			for _, l := range all {
				for _, s := range l.Keys() {
					require.EqualValues(t, 50, s.Limit.Tokens, "lowered")
				}
			}
			change(reservoir.Block())
			time.Sleep(time.Second)
			calls := net.Count("")
			for _, l := range all {
				require.False(t, allow(t, l, "k", 1).Allowed)
				require.Zero(t, l.Stats().Held, "what it held is returned %+v", l.Stats())
			}
			assert.Equal(t, calls, net.Count(""))
			change(of(100))
			require.Zero(t, admitted())
			change(of(160))
			require.EqualValues(t, 160-150-3, admitted())
			require.EqualValues(t, 160, used(t, net, "k"))
		})
	}
}

// TestRefreshIsPaced: many Refreshes at once are few calls of WithLimits at once, one for a key, and no
// store call. A key that is not in memory is not asked for. What is still to be asked does not hold up Close.
func TestRefreshIsPaced(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		var under, most, asked atomic.Int64
		var slow atomic.Bool
		net := testnet.Far(time.Millisecond)
		l := open(t, net.Port(0, 0), reservoir.Block(), reservoir.WithLimits(func(string) reservoir.Limit {
			if slow.Load() {
				asked.Add(1)
				if n := under.Add(1); n > most.Load() {
					most.Store(n)
				}
				time.Sleep(time.Second)
				under.Add(-1)
			}
			return reservoir.PerHour(100)
		}))
		admin := open(t, net.Port(1, 0), reservoir.PerHour(1)) // has no WithLimits, and asks nobody
		const keys = 1000
		for i := range keys {
			allow(t, l, fmt.Sprint(i), 1)
		}
		synctest.Wait()
		slow.Store(true)
		calls := net.Count("")
		refresh := func() {
			for i := range keys + 100 {
				go func() { assert.NoError(t, admin.Refresh(bg, fmt.Sprint(i))) }()
			}
		}
		for range 5 {
			refresh()
		}
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 32, most.Load())
		assert.GreaterOrEqual(t, asked.Load(), int64(keys))
		assert.LessOrEqual(t, asked.Load(), int64(keys+32), "those under way are asked for once more")
		assert.Equal(t, 5*(keys+100), net.Count("publish"))
		assert.Equal(t, 5*(keys+100), net.Count("")-calls, "and no other call")
		refresh()
		time.Sleep(10 * time.Millisecond)
		begin := time.Now()
		require.NoError(t, l.Close(bg))
		assert.LessOrEqual(t, time.Since(begin), 2*time.Second)
	})
}

// TestRefreshOutlivesAnOldAnswer: an answer that WithLimits gives late, because it was asked before
// the Refresh, does not bring the old limit back.
func TestRefreshOutlivesAnOldAnswer(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		var tokens atomic.Int64
		tokens.Store(100)
		var slow atomic.Bool
		l := open(t, testnet.Far(time.Millisecond), reservoir.Block(), reservoir.WithFixedBatch(1), reservoir.WithLimits(func(string) reservoir.Limit {
			n := tokens.Load()
			if slow.Swap(false) {
				time.Sleep(time.Second)
			}
			return reservoir.PerHour(n)
		}))
		allow(t, l, "k", 1)
		slow.Store(true)
		go func() { _, _ = l.Allow(bg, "k") }() // asks, and hangs with the old answer
		time.Sleep(500 * time.Millisecond)
		tokens.Store(10)
		require.NoError(t, l.Refresh(bg, "k"))
		limits := func() (n int64) {
			for _, s := range l.Keys() {
				n = s.Limit.Tokens
			}
			return n
		}
		require.EqualValues(t, 10, limits())
		time.Sleep(time.Second)
		require.EqualValues(t, 10, limits())
	})
}

// mute is a store that sends no messages.
type mute struct{ backend.Store }

// TestRefreshWithoutMessages: the error says that the others do not learn of it, and this process has
// asked nevertheless.
func TestRefreshWithoutMessages(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		for name, row := range map[string]struct {
			fault testnet.Fault
			mute  bool
			is    error
			class backend.Class
		}{
			"no listener": {mute: true, is: backend.ErrNoListener, class: backend.Rejected},
			"no right":    {fault: testnet.Reject, class: backend.Rejected},
			"cut":         {fault: testnet.LoseReply, is: testnet.ErrCut, class: backend.Unknown},
			"hung":        {fault: testnet.Hang, is: context.DeadlineExceeded, class: backend.Unknown},
		} {
			net, limit := testnet.Far(time.Millisecond), planned(reservoir.PerHour(100))
			var s backend.Store = net
			if row.mute {
				s = mute{net}
			}
			var states, calls atomic.Int64
			l := open(t, s, reservoir.Block(), limit.option(), reservoir.WithHooks(reservoir.Hooks{
				StoreCall: func(c reservoir.StoreCall) {
					if c.Op == "publish" {
						calls.Add(1)
					}
				},
				ShardState: func(reservoir.ShardState) { states.Add(1) },
			}))
			allow(t, l, "k", 1)
			limit.set(reservoir.Block())
			net.Next("publish", row.fault, row.fault, row.fault, row.fault, row.fault, row.fault)
			for range 6 {
				err := l.Refresh(bg, "k")
				failure, ok := errors.AsType[*reservoir.StoreError](err)
				require.True(t, ok, "%s: %v", name, err)
				require.Equal(t, row.class, failure.Class, name)
				if row.is != nil {
					require.ErrorIs(t, err, row.is, name)
				}
			}
			synctest.Wait()
			require.False(t, allow(t, l, "k", 1).Allowed, name)
			require.Zero(t, states.Load(), "no other call is withheld")
			if !row.mute {
				require.Equal(t, 6, net.Happened(row.fault))
				require.EqualValues(t, 6, calls.Load())
			}
		}
		l := open(t, testnet.Far(0), reservoir.PerHour(5), reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.Limit{Tokens: -1} }))
		require.NoError(t, l.Refresh(bg, "unseen"), "nothing is asked")
		require.ErrorIs(t, l.Refresh(bg, ""), reservoir.ErrKey)
		ended, cancel := context.WithCancel(bg)
		cancel()
		require.ErrorIs(t, l.Refresh(ended, "k"), context.Canceled)
		require.NoError(t, l.Close(bg))
		require.ErrorIs(t, l.Refresh(bg, "k"), reservoir.ErrClosed)
	})
}

// TestSubscription: the hook is told once that messages have ceased to come, and once that they come
// again, each with its shard. A store that never sends any is not reported, and shows in Stats.
func TestHearing(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		a, b := testnet.Far(time.Millisecond), testnet.Far(time.Millisecond)
		store, err := sharding.New(map[string]backend.Store{"a": a, "b": b, "mute": mute{memstore.New()}})
		require.NoError(t, err)
		var mu sync.Mutex
		var heard []string
		hold := make(chan struct{})
		hooks := reservoir.Hooks{Subscription: func(shard string, err error) {
			mu.Lock()
			heard = append(heard, fmt.Sprint(shard, " ", err))
			mu.Unlock()
			<-hold // it delays no message
		}}
		second := reservoir.Hooks{Subscription: func(shard string, err error) { assert.NotEqual(t, "mute", shard) }}
		l := open(t, store, reservoir.PerHour(100), reservoir.WithHooks(hooks), reservoir.WithHooks(second), reservoir.WithHooks(reservoir.Hooks{}))
		unheard := func() int64 {
			synctest.Wait()
			return l.Stats().Unsubscribed
		}
		lines := func(want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, want, heard)
			heard = nil
		}
		require.Zero(t, unheard(), "no key is there")
		for i := range 20 {
			allow(t, l, fmt.Sprint(i), 1)
		}
		require.EqualValues(t, 1, unheard(), "the one that sends none")
		lines()
		cut := errors.New("cut")
		a.Deafen(cut)
		lines("a cut")
		require.EqualValues(t, 2, unheard())
		a.Deafen(errors.New("cut again"))
		b.Deafen(cut)
		a.Deafen(nil)
		close(hold)
		lines("b cut", "a <nil>")
		require.EqualValues(t, 2, unheard())
		b.Deafen(nil)
		lines("b <nil>")
		require.EqualValues(t, 1, unheard())
	})
}

// What processes got while they heard no message is found when they hear: at their start, the
// first requests come before the subscription, and after a cut, calls have been lost.
func TestTokensOfTheDeafAreFound(t *testing.T) {
	for name, cut := range map[string]bool{"start": false, "cut": true} {
		inBubble(t, name, func(t *testing.T) {
			net := testnet.Far(time.Millisecond)
			if !cut {
				net.Deafen(errors.New("not yet"))
			}
			all := fleet(t, 20, net, reservoir.PerHour(300))
			admitted := 0
			spend := func(l *reservoir.Limiter, n int) {
				for range n {
					if allow(t, l, "k", 1).Allowed {
						admitted++
					}
				}
			}
			for _, l := range all[1:] {
				spend(l, 10)
			}
			if cut { // those who are called do not hear it
				net.Deafen(errors.New("cut"))
				spend(all[0], 150)
				require.Less(t, admitted, 300)
			} else {
				require.Greater(t, stats(all...).Held, int64(3))
			}
			net.Deafen(nil)
			time.Sleep(20 * time.Millisecond)
			spend(all[0], 300)
			require.Equal(t, 300, admitted)
		})
	}
}

// TestVoidedAgainAndAgain: a message that comes again and again causes one call, and holds up nobody.
func TestVoidedAgainAndAgain(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(600))
		allow(t, l, "k", 1)
		voided := backend.Message{Kind: backend.Voided, Key: "k", Counter: backend.Limit(reservoir.PerHour(600)).Counter(), Window: contents(t, net, "k").Window}
		before := net.Count("")
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 1000 {
				assert.NoError(t, net.Store().(backend.Listener).Publish(bg, voided))
				time.Sleep(rtt / 10)
			}
		}()
		time.Sleep(2 * rtt)
		begin := time.Now()
		require.True(t, allow(t, l, "k", 1).Allowed)
		require.LessOrEqual(t, time.Since(begin), 2*rtt)
		<-done
		require.LessOrEqual(t, net.Count("")-before, 2)
		balance(t, l)
	})
}

// tuned counts the subscriptions of a store that are open.
type tuned struct {
	*testnet.Network
	open atomic.Int64
}

type subscription struct {
	backend.Subscription
	open *atomic.Int64
}

func (s *tuned) Listen(process string, hear func(backend.Message)) backend.Subscription {
	s.open.Add(1)
	return subscription{s.Network.Listen(process, hear), &s.open}
}

func (s subscription) Close() {
	s.open.Add(-1)
	s.Subscription.Close()
}

// TestCloseWhileALimitIsAskedFor: a request that asks for its key's limit while the limiter closes makes no key, and no
// subscription, when it has the limit.
func TestCloseWhileALimitIsAskedFor(t *testing.T) {
	for _, known := range []bool{false, true} { // another key is there
		inBubble(t, fmt.Sprint(known), func(t *testing.T) {
			store, answer := &tuned{Network: testnet.Far(time.Millisecond)}, make(chan struct{})
			l := open(t, store, reservoir.Block(), reservoir.WithLimits(func(key string) reservoir.Limit {
				if key == "slow" {
					<-answer
				}
				return reservoir.PerHour(100)
			}))
			if known {
				allow(t, l, "k", 1)
				require.EqualValues(t, 1, store.open.Load())
			}
			ended := make(chan error)
			go func() { ended <- take(l.Allow(bg, "slow")) }()
			synctest.Wait()
			require.NoError(t, l.Close(bg))
			close(answer)
			require.ErrorIs(t, <-ended, reservoir.ErrClosed)
			require.Zero(t, store.open.Load())
			require.Zero(t, l.Stats().Keys)
		})
	}
}

// TestLeaversAreForgotten: a key that has left its counter while the store is away is forgotten after its window's end, though no
// other key is there.
func TestLeaversAreForgotten(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		net, limit := testnet.Far(time.Millisecond), planned(reservoir.PerMinute(100))
		l := open(t, net, reservoir.Block(), opt, limit.option(), reservoir.WithIdle(time.Minute))
		allow(t, l, "k", 1)
		net.Always(testnet.Refuse)
		limit.set(reservoir.Block())
		_ = l.Refresh(bg, "k")
		require.Equal(t, 1, reservoir.Leavers(l))
		require.Zero(t, l.Stats().Keys)
		time.Sleep(10 * time.Minute)
		require.Positive(t, net.Happened(testnet.Refuse))
		require.Zero(t, reservoir.Leavers(l))
	})
}

package reservoir_test

import (
	"context"
	"fmt"
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

// Tokens that come back: refunds, what a Group undoes, eviction, Close.

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

// A Group asks all its limits at once, and charges all or none: of a crowd exactly as
// many pass as the tightest limit has. From stock it costs neither call nor memory.
func TestGroup(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		wide, tight := open(t, net, reservoir.PerHour(10_000), opt), open(t, net, reservoir.PerHour(777), opt)
		g := reservoir.NewGroup(wide, tight)
		begin := time.Now()
		first, err := g.Allow(bg, "wide", "tight")
		require.NoError(t, err)
		assert.Equal(t, 2*time.Millisecond, time.Since(begin))
		assert.Equal(t, 1, first.Limiter)
		var passed atomic.Int64
		crowd(16, func(int) {
			for range 60 {
				r, err := g.Allow(bg, "wide", "tight")
				assert.NoError(t, err)
				if r.Allowed {
					passed.Add(1) // which is the tightest depends on how the crowd's spends interleave
				} else {
					assert.Equal(t, 1, r.Limiter)
				}
			}
		})
		assert.EqualValues(t, 776, passed.Load())
		require.NoError(t, g.Refund(bg, first, "wide", "tight"))
		net.OnKey("sick", testnet.LoseRequest)
		_, err = g.AllowN(bg, 2, "wide", "sick")
		require.ErrorIs(t, err, testnet.ErrCut)
		_, err = g.AllowN(bg, 778, "wide", "tight")
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		_, err = g.Allow(bg, "wide")
		require.ErrorIs(t, err, reservoir.ErrOption)
		for _, l := range []*reservoir.Limiter{wide, tight} {
			assert.EqualValues(t, 776, l.Stats().Spent-l.Stats().Refunded)
		}
	})
	var limiters [3]*reservoir.Limiter
	net := testnet.Far(0)
	for i := range limiters {
		limiters[i] = open(t, net, reservoir.PerHour(10_000), reservoir.WithBatch(reservoir.Fixed(5000)), patient)
	}
	g, keys := reservoir.NewGroup(limiters[:]...), []string{"a", "b", "c"}
	_, _ = g.Allow(bg, keys...)
	calls := net.Count("")
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = g.Allow(bg, keys...) }))
	drain(t, limiters[1], "b", 1)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = g.Allow(bg, keys...) }))
	assert.LessOrEqual(t, net.Count(""), calls+6)
}

// A key that was used for once gives back what it holds when it is idle, by one call, and
// is forgotten.
func TestEvictionOfAKeyThatWasFetchedForOnce(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		for _, n := range []int64{1, 5, 64, 99} {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithIdle(time.Second))
			allow(t, l, "k", n)
			time.Sleep(time.Minute)
			require.Zero(t, l.Stats().Keys, n)
			require.Equal(t, n, used(t, net, "k"))
			require.LessOrEqual(t, net.Count(""), 3, n)
		}
	})
}

// What an evicted key held is handed back until that is heard, or its window ends.
func TestEvictionHandsBackOverABadNetwork(t *testing.T) {
	for name, opt := range batches() {
		inBubbles(t, name, map[string]testnet.Fault{"requests": testnet.LoseRequest, "replies": testnet.LoseReply, "hangs": testnet.Hang}, func(t *testing.T, how string, f testnet.Fault) {
			const keys = 100
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(10_000), opt, reservoir.WithIdle(10*time.Second))
			for i := range keys {
				for range 30 { // so that an adaptive batch has grown
					allow(t, l, fmt.Sprint(i), 1)
				}
			}
			n := 0
			net.Faults(func(c *testnet.Call) testnet.Fault {
				if n++; c.Key == "busy" || n%3 == 0 {
					return testnet.Fine
				}
				return f
			})
			for range 600 {
				_, _ = l.Allow(bg, "busy")
				time.Sleep(time.Second)
			}
			require.Positive(t, net.Happened(f))
			require.Equal(t, 1, l.Stats().Keys, "evicted")
			for i := range keys {
				require.EqualValues(t, 30, used(t, net, fmt.Sprint(i)))
			}
		})
	}
}

// A key that has lost the reply to its grant, and whose limit has another window since, asks once
// more with the open window's length, so that the grant goes back when the key is forgotten or at Close.
func TestLostGrantOfAnotherLength(t *testing.T) {
	for _, closes := range []bool{false, true} {
		inBubbles(t, fmt.Sprint("close=", closes), batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			var limit atomic.Value
			limit.Store(reservoir.PerHour(100))
			limits := reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) })
			l := open(t, net, reservoir.PerHour(100), opt, limits, reservoir.WithIdle(time.Second))
			net.Next("", testnet.LoseReply)
			_, err := l.AllowN(bg, "k", 7)
			require.Error(t, err)
			require.NotZero(t, used(t, net, "k"))
			limit.Store(reservoir.PerMinute(100))
			net.Next("", testnet.LoseRequest)
			_, err = l.AllowN(bg, "k", 7) // the new limit is the key's now
			require.Error(t, err)
			if !closes {
				time.Sleep(time.Minute)
				require.Zero(t, l.Stats().Keys)
			}
			require.NoError(t, l.Close(bg))
			require.Equal(t, 1, net.Happened(testnet.LoseReply))
			assert.Zero(t, used(t, net, "k"))
		})
	}
}

// A key is evicted while a reply of its is lost: a key of the same name that comes
// later in the window is not handed what the first one spent.
func TestKeysThatComeBack(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(0)
		l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithIdle(10*time.Second))
		admitted, unknown := int64(0), int64(0)
		for round := range 20 {
			net.Next("", []testnet.Fault{testnet.Fine, testnet.LoseReply}[round%2])
			if r, err := l.AllowN(bg, "k", 3); err == nil && r.Allowed {
				admitted += 3
			}
			net.Faults(nil)
			for i := range 30 {
				allow(t, l, fmt.Sprint("busy ", i%2), 1)
				time.Sleep(time.Second)
			}
		}
		admitted += drain(t, l, "k", 1)
		unknown = l.Stats().Unknown
		assert.EqualValues(t, 100, admitted+unknown)
	})
}

// Close hands back what is held, sends waiters away, and is the end of every door. A
// second one costs nothing.
func TestCloseHandsBack(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt)
		for i := range 100 {
			allow(t, l, fmt.Sprint(i), 2)
		}
		drain(t, l, "full", 1)
		ended := make(chan error, 4)
		go func() { ended <- waitFor(bg, l, "full", 100) }()
		for range 3 {
			go func() { _, err := l.Allow(bg, "cold"); ended <- err }()
		}
		synctest.Wait()
		begin := time.Now()
		require.NoError(t, l.Close(bg))
		assert.LessOrEqual(t, time.Since(begin), 50*time.Millisecond, "many at a time")
		for range 4 {
			if err := <-ended; name != "direct" {
				assert.ErrorIs(t, err, reservoir.ErrClosed)
			}
		}
		assert.LessOrEqual(t, time.Since(begin), 50*time.Millisecond)
		for i := range 100 {
			require.EqualValues(t, 2, used(t, net, fmt.Sprint(i)))
		}
		calls := net.Count("")
		require.NoError(t, l.Close(bg))
		for _, key := range []string{"1", "new"} {
			_, err := l.Allow(bg, key)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			_, err = l.Key(key).Allow(bg)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			_, err = l.Check(bg, key)
			assert.ErrorIs(t, err, reservoir.ErrClosed)
			assert.ErrorIs(t, waitFor(bg, l, key, 1), reservoir.ErrClosed)
		}
		assert.Equal(t, calls, net.Count(""))
	})
}

// Each Close ends with its own context, whatever another one waits for, and one whose
// context has ended says nothing about the store. What could not be handed back
// expires, and what a reply brings later is nobody's to spend.
func TestCloseIsBounded(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, name string, opt reservoir.Option) {
		net, heard := testnet.Far(time.Millisecond), new(states)
		l := open(t, net, reservoir.PerHour(1000), opt, heard.option(), reservoir.WithFetchTimeout(time.Minute))
		for i := range 300 {
			for range 10 {
				allow(t, l, fmt.Sprint(i), 1)
			}
		}
		held := l.Stats().Held
		net.MoveTo(10 * time.Second)
		go func() { _, _ = l.Allow(bg, "late") }()
		synctest.Wait()
		k := l.Key("late")
		first := make(chan error, 1)
		long, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		go func() { first <- l.Close(long) }()
		synctest.Wait()
		for range 3 {
			short, cancel := context.WithTimeout(bg, 10*time.Millisecond)
			begin := time.Now()
			assert.ErrorIs(t, l.Close(short), context.DeadlineExceeded)
			assert.Equal(t, 10*time.Millisecond, time.Since(begin))
			cancel()
		}
		require.Error(t, <-first)
		time.Sleep(2 * time.Minute)
		_, err := k.Allow(bg)
		assert.ErrorIs(t, err, reservoir.ErrClosed)
		s := l.Stats()
		assert.EqualValues(t, 3000, s.Spent)
		assert.LessOrEqual(t, held, s.Expired+s.Returned)
		assert.Empty(t, heard.told())
	})
}

func TestCloseWithAnEndedContext(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net, heard := testnet.Far(time.Millisecond), new(states)
		l := open(t, net, reservoir.PerHour(1000), opt, heard.option())
		for i := range 300 {
			for range 10 {
				allow(t, l, fmt.Sprint(i), 1)
			}
		}
		ended, cancel := context.WithCancel(bg)
		cancel()
		begin := time.Now()
		_ = l.Close(ended)
		assert.Zero(t, time.Since(begin))
		time.Sleep(time.Minute)
		assert.Empty(t, heard.told())
	})
}

// Neither Close nor Check waits in an outage, nor asks for each key.
func TestCloseAndCheckInAnOutage(t *testing.T) {
	for how, f := range map[string]testnet.Fault{"hangs": testnet.Hang, "lost": testnet.LoseRequest} {
		inBubbles(t, how, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(1000), opt)
			for i := range 1000 {
				allow(t, l, fmt.Sprint(i), 1)
			}
			breakdown(t, l, net, f)
			calls, begin := net.Count(""), time.Now()
			for range 20 {
				_, err := l.Check(bg, "1")
				var failure *reservoir.StoreError
				assert.ErrorAs(t, err, &failure)
			}
			assert.LessOrEqual(t, time.Since(begin), 100*time.Millisecond, "one, which a replica might have answered")
			assert.LessOrEqual(t, net.Count("")-calls, 2)
			_ = l.Close(bg)
			assert.LessOrEqual(t, time.Since(begin), time.Second)
			assert.LessOrEqual(t, net.Count("")-calls, 150)
		})
	}
}

// Traffic that runs on while the limiter closes gets tokens or ErrClosed, and what was
// spent is what stays charged.
func TestCloseUnderLoad(t *testing.T) {
	for name, opt := range everyPolicy() {
		t.Run(name, func(t *testing.T) {
			for range 4 {
				store := memstore.New()
				l := open(t, store, reservoir.PerHour(100_000_000), opt, patient)
				crowd(8, func(i int) {
					for j := 0; ; j++ {
						if i == 0 && j == 500 {
							assert.NoError(t, l.Close(bg))
						}
						if _, err := l.AllowN(bg, "k", int64(j%9+1)); err != nil {
							assert.ErrorIs(t, err, reservoir.ErrClosed)
							return
						}
					}
				})
				require.NoError(t, l.Close(bg))
				balance(t, l)
				require.Equal(t, l.Stats().Spent, used(t, store, "k"))
			}
		})
	}
}

// peers notes how many clients each statement says share the key.
type peers struct {
	backend.Store
	said []int64
}

func (p *peers) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	p.said = append(p.said, r.Peers)
	return p.Store.Sync(ctx, r)
}

// At the reset the store has heard of nobody yet. How many share the key is known of the
// window before, until more come: it decides what each may leave idle.
func TestPeersOutlastTheReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := memstore.New()
		p := &peers{Store: shared}
		l := open(t, p, reservoir.PerMinute(1000), reservoir.WithBatch(reservoir.Fixed(1)))
		for _, other := range fleet(t, 4, shared, reservoir.PerMinute(1000)) {
			allow(t, other, "k", 1)
		}
		allow(t, l, "k", 1)
		time.Sleep(61 * time.Second)
		for range 3 {
			allow(t, l, "k", 1)
		}
		require.Equal(t, []int64{0, 5, 5, 5}, p.said)
	})
}

// A store that ends each goroutine in which it is called holds up no Close, whatever the
// number of keys, and their tokens are counted.
func TestCloseWhileTheStoreExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(1000), reservoir.WithBatch(reservoir.Fixed(50)))
		for i := range 40 {
			allow(t, l, fmt.Sprint(i), 1)
		}
		net.Always(testnet.Exit)
		_ = l.Close(bg)
		s := l.Stats()
		require.Positive(t, net.Happened(testnet.Exit))
		require.Positive(t, s.Expired)
		require.Equal(t, s.Taken, s.Spent+s.Returned+s.Expired)
	})
}

// What FailLocal has admitted in a window that the process opened by itself stays of its
// share, also where another process opens one in the store before that is charged.
func TestShareOfACarriedWindow(t *testing.T) {
	for turn := range 5 {
		inBubble(t, fmt.Sprint("turn=", turn), func(t *testing.T) {
			net := testnet.Far(10 * time.Millisecond)
			l := open(t, net, reservoir.PerHour(100), reservoir.WithFailure(reservoir.FailLocal(0.1)), reservoir.WithBatch(reservoir.Fixed(1)))
			allow(t, l, "k", 1)
			alone := func() (n int64) {
				breakdown(t, l, net, testnet.LoseRequest)
				for range 20 {
					if r, err := l.Allow(bg, "k"); err == nil && r.Allowed && r.Source == reservoir.Fallback {
						n++
					}
				}
				return n
			}
			require.EqualValues(t, 10, alone())
			time.Sleep(5 * time.Second) // another window would end at another second
			net.LoseData()
			other := open(t, net.Store(), reservoir.PerHour(100))
			var calls atomic.Int64
			net.Faults(func(c *testnet.Call) testnet.Fault {
				if c.Key == "k" && calls.Add(1) == int64(turn)+1 { // it takes 10 ms yet to arrive
					go func() { _, _ = other.Allow(bg, "k") }()
				}
				return testnet.Fine
			})
			time.Sleep(2 * toClose)
			require.Positive(t, calls.Load(), "the debt was charged without traffic")
			require.Zero(t, l.Stats().Owed)
			require.Zero(t, alone(), "of the same share")
		})
	}
}

// A loop has drained the key once, as fast as it could. When demand is steady again, the
// process does not give back what it orders in the next moment, again and again.
func TestCallsAfterAKeyWasDrained(t *testing.T) {
	for _, n := range []int64{1, 20} {
		inBubble(t, fmt.Sprint("n=", n), func(t *testing.T) {
			const requests, window = 1000, time.Minute
			net := testnet.Far(100 * time.Microsecond)
			l := open(t, net, reservoir.PerMinute(requests*n))
			start := time.Now()
			drain(t, l, "k", n)
			time.Sleep(time.Until(start.Add(window)))
			for w := range 6 {
				calls, was := net.Count(""), l.Stats()
				every(t, l, n, window*10/8/requests, time.Now().Add(window), nil)
				s := l.Stats()
				assert.Equal(t, was.Denied, s.Denied)
				asked := (s.Spent - was.Spent) / n
				assert.LessOrEqual(t, int64(net.Count("")-calls), asked/30, "window %d", w+2)
			}
		})
	}
}

// A direct call that is refused says that less is left than was asked for, though the process
// holds tokens of a Wait that came back.
func TestDirectRefusalAgreesWithItself(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerHour(10), reservoir.WithDirect(), reservoir.WithStranding(1))
		r, err := l.WaitN(bg, "k", 2)
		require.NoError(t, err)
		require.True(t, allow(t, l, "k", 7).Allowed)
		require.NoError(t, l.Refund(bg, "k", r))
		r = allow(t, l, "k", 3)
		require.False(t, r.Allowed)
		assert.Less(t, r.Remaining, int64(3))
	})
}

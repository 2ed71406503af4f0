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
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Which calls the limiter makes, and when: batches, the line of callers, the pace of many keys,
// idle keys that leave.

// steady is the use of a key that the limit can serve, request after request.
type steady struct {
	n        int64
	distance time.Duration
	window   time.Duration
	policy   string
}

func (s steady) test(t *testing.T) {
	const requests = 1500 // a window, half of what the limit allows
	perTrip := int64(requests * s.distance / s.window)
	batch := s.n * (100 + 4*perTrip)
	opt := map[string]reservoir.Option{
		"fixed":    reservoir.WithFixedBatch(batch),
		"ladder":   reservoir.WithLadder(s.n, 2*batch),
		"adaptive": reservoir.WithBatch(1, 0),
	}[s.policy]
	l := open(t, testnet.Far(s.distance/2), reservoir.Limit{Tokens: 2 * requests * s.n, Window: s.window}, opt)
	warm := time.Now().Add(s.window + s.window/2)
	asked, waited := 0, 0
	// Between two windows the stock of the one is gone and that of the next is on its
	// way: what is certain of their ends lies a round trip apart.
	var begun, reset time.Time // the first request of the window, and its end
	edge := 2*s.distance + 10*time.Millisecond + s.window/1000
	every(t, l, s.n, s.window/requests, warm.Add(3*s.window), func(at time.Time, r reservoir.Result) {
		if !r.Allowed {
			require.Fail(t, "refused", "%v before the reset", r.Reset.Sub(at))
		}
		if !r.Reset.Equal(reset) {
			begun, reset = at, r.Reset
		}
		if at.Before(warm) || at.Before(begun.Add(edge)) || !at.Before(r.Reset.Add(-edge)) {
			return
		}
		asked++
		if r.Source != reservoir.Local {
			waited++
		}
	})
	require.Greater(t, asked, requests)
	assert.LessOrEqual(t, float64(waited), 0.003*float64(asked), "of %d", asked)
}

// Nobody waits in steady use, whatever the size of requests, the policy, the distance
// of the store and the window.
func TestNoWaitInSteadyState(t *testing.T) {
	for _, policy := range []string{"fixed", "ladder", "adaptive"} {
		for _, n := range []int64{1, 7, 100} {
			for _, distance := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond, 60 * time.Millisecond} {
				for _, window := range []time.Duration{time.Second, time.Minute, time.Hour} {
					s := steady{n, distance, window, policy}
					inBubble(t, fmt.Sprintf("%s/n=%d/rtt=%v/window=%v", policy, n, distance, window), s.test)
				}
			}
		}
	}
}

// A crowd on a cold key shares calls: each fetch is sized for all that wait. Those that fit are
// served and the others refused there and then.
func TestNoStampede(t *testing.T) {
	for _, n := range []int64{1, 25} {
		for _, fit := range []int64{1000, 500} {
			inBubbles(t, fmt.Sprintf("n=%d/fit=%d", n, fit), batches(), func(t *testing.T, _ string, opt reservoir.Option) {
				net := testnet.Far(rtt / 2)
				l := open(t, net, reservoir.PerMinute(fit*n), opt)
				begin := time.Now()
				admitted, failed := crowdOnce(l, 1000, n)
				assert.Equal(t, fit, admitted)
				assert.Zero(t, failed)
				assert.LessOrEqual(t, net.Count(""), 3)
				assert.LessOrEqual(t, time.Since(begin), 3*rtt)
			})
		}
	}
}

// The fetch belongs to nobody: who started it may leave, at once and uncharged, and
// the others are served by it all the same.
func TestFetchOutlivesItsCaller(t *testing.T) {
	for _, wait := range []bool{false, true} {
		inBubble(t, fmt.Sprintf("wait=%t", wait), func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			q := lineOf(t, open(t, net, reservoir.PerMinute(100), reservoir.WithFixedBatch(2)))
			ctx, cancel := context.WithCancel(context.Background())
			starter := q.add(ctx, wait, []int64{1})[0]
			others := q.allow(1, 1)
			begin := time.Now()
			cancel()
			<-starter.done
			assert.ErrorIs(t, starter.err, context.Canceled)
			assert.Equal(t, begin, starter.at)
			q.wg.Wait()
			assert.True(t, others[0].allowed && others[1].allowed)
			assert.EqualValues(t, 2, q.l.Stats().Spent)
			assert.LessOrEqual(t, net.Count(""), 2)
		})
	}
}

// A key that nobody uses any more falls silent after its window's end: no call, and no
// timer that makes one.
func TestIdleKeyFallsSilent(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(rtt / 2)
		l := open(t, net, reservoir.PerSecond(20_000), opt, reservoir.WithIdle(time.Hour))
		every(t, l, 1, time.Millisecond, time.Now().Add(2900*time.Millisecond), nil)
		calls := net.Count("")
		time.Sleep(10 * time.Second)
		assert.LessOrEqual(t, net.Count("")-calls, 4, "a restock at the reset, and looks at the ends of the last two windows")
		calls = net.Count("")
		time.Sleep(time.Minute)
		assert.Equal(t, calls, net.Count(""))
	})
}

// Callers whose fetch is lost get the next one, whether the connection is cut or nothing comes back.
func TestLostFetchesFailNobody(t *testing.T) {
	for _, lost := range []testnet.Fault{testnet.LoseRequest, testnet.LoseReply, testnet.Hang} {
		inBubbles(t, lost.String(), everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			const requests = 500
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerMinute(requests), opt)
			allow(t, l, "another", 1) // the first contact may take longer
			n := 0
			net.Faults(func(*testnet.Call) testnet.Fault {
				if n++; n%2 == 1 {
					return lost
				}
				return testnet.Fine
			})
			for i := range requests / 10 {
				crowd(10, func(j int) {
					time.Sleep(time.Duration(i*j%7) * 300 * time.Microsecond) // some come while a fetch is in flight
					begin := time.Now()
					_, err := l.Allow(bg, "k")
					assert.NoError(t, err)
					assert.LessOrEqual(t, time.Since(begin), 250*time.Millisecond)
				})
			}
			assert.Positive(t, net.Happened(lost))
			assert.Zero(t, l.Stats().Failed)
		})
	}
}

// Waiters of several processes pass the resets together: in order within each, with
// no token idle, and without a herd.
func TestWaitersOfAFleet(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		const processes, each, limit = 5, 40, 20
		store := memstore.New()
		begin, calls := time.Now(), 0
		var lines []*line
		var nets []*testnet.Network
		for range processes {
			net := testnet.New(store, rtt/2)
			q := lineOf(t, open(t, net, reservoir.Limit{Tokens: limit, Window: 10 * time.Second}, opt))
			q.wait(times(each, 1)...)
			lines, nets = append(lines, q), append(nets, net)
		}
		for i, q := range lines {
			q.inOrder()
			calls += nets[i].Count("")
		}
		windows := processes * each / limit
		more := 0 // windows, where a process may be granted more than its waiters need
		if name != "fixed=1" && name != "direct" {
			more = 1
		}
		assert.InDelta(t, float64(windows-1)*10, time.Since(begin).Seconds(), 1.5+10*float64(more))
		assert.LessOrEqual(t, calls, windows*14, "who hears of what comes back seldom asks for it")
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

// Limits as most people have them: some requests a user, behind a balancer over many processes. No
// request is refused before the limit is spent, however requests come to processes, and calls are
// fewer than direct ones, of which two thirds of the requests would need one.
func TestEverydayLimits(t *testing.T) {
	const processes, windows = 20, 6
	for _, c := range []struct {
		tokens, n, run, atOnce int // n tokens a request; a run is at one process
		calls                  int // of a hundred requests, at most
	}{
		{60, 1, 1, 1, 75}, {60, 1, 1, 10, 45}, {60, 1, 20, 1, 32},
		{300, 1, 1, 1, 30}, {300, 1, 1, 10, 30}, {300, 1, 20, 1, 22},
		{300, 5, 1, 1, 80}, {300, 5, 1, 10, 50}, {300, 10, 1, 1, 95}, {300, 10, 1, 10, 60}, {1000, 2, 1, 10, 20},
	} {
		inBubble(t, fmt.Sprintf("limit=%d/tokens=%d/run=%d/at once=%d", c.tokens, c.n, c.run, c.atOnce), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, uint64(c.tokens)))
			net := testnet.Far(rtt / 2)
			all := fleet(t, processes, net, reservoir.PerMinute(int64(c.tokens)))
			crowds := c.tokens * 3 / 2 / c.n / c.atOnce
			cold, at := 0, 0
			for w := range windows {
				if w == 1 {
					cold = net.Count("")
				}
				admitted, end := 0, time.Now().Add(time.Minute) // or a little later: the window opens at a request
				for i := range crowds {
					if i%c.run == 0 {
						at = rnd.IntN(processes)
					}
					n, failed := crowdOnce(all[at], c.atOnce, int64(c.n))
					require.Zero(t, failed)
					if admitted += int(n) * c.n; int(n) < c.atOnce {
						require.Equal(t, c.tokens, admitted, "when a request was refused in window %d", w)
					}
					time.Sleep(50 * time.Second / time.Duration(crowds))
				}
				require.Equal(t, c.tokens, admitted)
				time.Sleep(time.Until(end) + 2*rtt)
			}
			require.LessOrEqual(t, net.Count("")-cold, c.calls*(windows-1)*crowds*c.atOnce/100)
		})
	}
}

// A process WithDirect beside processes that batch is refused when the limit is spent, because what
// lies idle in these comes back first: for one caller after the other and for a crowd. All callers
// share the statement for it. None
// waits for more than three round trips after the first call, or four in a crowd. Keys past WithMaxKeys call nothing back: they
// get what the others do not hold.
func TestDirectBesideBatches(t *testing.T) {
	for name, opt := range map[string]reservoir.Option{"direct": reservoir.WithDirect(), "no room": reservoir.WithMaxKeys(0)} {
		for _, crowded := range []int{1, 200} {
			inBubble(t, fmt.Sprint(name, "/", crowded), func(t *testing.T) {
				net := testnet.Far(time.Millisecond)
				all := fleet(t, 19, net, reservoir.PerMinute(300))
				for _, l := range all {
					crowd(10, func(int) { require.True(t, allow(t, l, "k", 1).Allowed) })
				}
				l := open(t, net, reservoir.PerMinute(300), opt)
				idle := stats(all...).Held
				require.GreaterOrEqual(t, idle, int64(10), "it lies elsewhere")
				before, most := net.Count("sync"), 8*time.Millisecond
				if crowded > 1 {
					most += 4 * time.Millisecond // whoever comes during a statement for fewer waits for it, too
				}
				var admitted atomic.Int64
				crowd(crowded, func(int) {
					for range 200 / crowded {
						begin := time.Now()
						if allow(t, l, "k", 1).Allowed {
							admitted.Add(1)
						}
						assert.LessOrEqual(t, time.Since(begin), most)
					}
				})
				if name == "direct" {
					assert.EqualValues(t, 110, admitted.Load())
					assert.LessOrEqual(t, net.Count("sync")-before, 19+110/crowded+4, "one statement for all who wait, and one of each holder")
				} else {
					assert.Equal(t, 110-idle, admitted.Load())
					assert.Equal(t, idle, stats(all...).Held)
				}
				for _, l := range append(all, l) {
					balance(t, l)
				}
			})
		}
	}
}

// A process that is killed takes with it what it holds idle, until the window ends. At rest that is at most a tenth of the
// limit, or three usual requests.
func TestWhatAKilledProcessHolds(t *testing.T) {
	at := []struct {
		name  string
		pause func(rnd *rand.Rand) time.Duration
	}{
		{"at once", func(*rand.Rand) time.Duration { return 0 }},
		{"10 ms", func(*rand.Rand) time.Duration { return 10 * time.Millisecond }},
		{"100 ms", func(*rand.Rand) time.Duration { return 100 * time.Millisecond }},
		{"500 ms", func(*rand.Rand) time.Duration { return 500 * time.Millisecond }},
		{"random", func(rnd *rand.Rand) time.Duration {
			return time.Duration(rnd.ExpFloat64() * float64(300*time.Millisecond))
		}},
		{"bursts of 5", func(rnd *rand.Rand) time.Duration {
			if rnd.IntN(5) > 0 {
				return 0
			}
			return time.Duration(rnd.ExpFloat64() * float64(2*time.Second))
		}},
	}
	for _, c := range []struct {
		limit    reservoir.Limit
		requests int
		size     int64
	}{
		{reservoir.PerMinute(60), 20, 1}, {reservoir.PerMinute(1000), 50, 1}, {reservoir.PerMinute(1000), 50, 10}, {reservoir.PerHour(1000), 50, 1},
		{reservoir.PerMinute(60_000), 50, 1}, {reservoir.PerDay(100_000, nil), 50, 1},
	} {
		for _, when := range at {
			inBubble(t, fmt.Sprintf("%d per %v/%d requests for %d/%s", c.limit.Tokens, c.limit.Window, c.requests, c.size, when.name), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(1, 1))
				net := testnet.Far(time.Millisecond)
				l := open(t, net, c.limit)
				for range c.requests {
					require.True(t, allow(t, l, "k", c.size).Allowed)
					time.Sleep(when.pause(rnd))
				}
				spent := int64(c.requests) * c.size
				busy := used(t, net, "k") - spent
				time.Sleep(10 * time.Second)
				rest := used(t, net, "k") - spent
				net.Always(testnet.LoseRequest) // it is dead
				bound := max(c.limit.Tokens/10, 3*c.size)
				t.Logf("used %3d, idle %4d at once, %4d at rest, bound %5d", spent, busy, rest, bound)
				require.GreaterOrEqual(t, busy, int64(0))
				require.LessOrEqual(t, rest, bound)
			})
		}
	}
}

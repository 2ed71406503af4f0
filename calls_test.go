package reservoir_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
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
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/invariant"
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

// A prefetch that fails is made again before the stock is gone, and not by a caller who
// finds no stock.
func TestFailedPrefetchIsTriedAgain(t *testing.T) {
	for _, n := range []int64{1, 3} {
		for name, opt := range map[string]reservoir.Option{
			"fixed":    reservoir.WithFixedBatch(200 * n),
			"adaptive": reservoir.WithBatch(1, 200*n),
		} {
			for _, f := range []testnet.Fault{testnet.Refuse, testnet.LoseRequest, testnet.LoseReply} {
				inBubble(t, fmt.Sprintf("%s/n=%d/fault=%v", name, n, f), func(t *testing.T) {
					var d diary
					net := testnet.Far(10 * time.Millisecond)
					l := open(t, net, reservoir.PerMinute(600_000), reservoir.WithFetchTimeout(time.Second), opt, d.keep())
					every(t, l, n, 2*time.Millisecond, time.Now().Add(5*time.Second), nil)
					calls := 0
					net.Faults(func(*testnet.Call) testnet.Fault { // under net.mu; one call in two
						calls++
						return []testnet.Fault{f, testnet.Fine}[calls%2]
					})
					for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
						_, _ = l.AllowN(context.Background(), "k", n)
					}
					failed, byCaller := d.afterFailedPrefetch()
					require.Greater(t, failed, 10)
					assert.LessOrEqual(t, byCaller, failed/5, "of %d", failed)
				})
			}
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

// Near its end a busy key learns the window's end better, so that nobody waits because
// the clocks may differ.
func TestNobodyWaitsBeforeTheEnd(t *testing.T) {
	for _, n := range []int64{1, 5} {
		inBubble(t, fmt.Sprintf("n=%d", n), func(t *testing.T) {
			l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(600_000), reservoir.WithBatch(1, 0))
			second := allow(t, l, "k", n).Reset.Add(time.Minute)
			every(t, l, n, time.Millisecond, second.Add(-time.Second), nil)
			// 500 ppm of a minute are 30 ms, of what is left after a refresh about 1 ms.
			every(t, l, n, time.Millisecond, second.Add(-rtt), func(at time.Time, r reservoir.Result) {
				assert.Equal(t, reservoir.Local, r.Source, "%v before the end", second.Sub(at))
			})
		})
	}
}

// Requests for more than a batch are served from several that were ordered ahead. If they are
// far larger, batches cannot serve them, and so are not ordered by the dozen.
func TestRequestsLargerThanABatch(t *testing.T) {
	inBubbles(t, "", map[string]reservoir.Option{
		"adaptive": reservoir.WithBatch(1, 100),
		"fixed":    reservoir.WithFixedBatch(100),
		"ladder":   reservoir.WithLadder(1, 100),
	}, func(t *testing.T, _ string, opt reservoir.Option) {
		for _, n := range []int64{200, 4000, 1_000_000} {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(1_000_000_000), opt)
			for range 200 {
				require.True(t, allow(t, l, "k", n).Allowed)
				time.Sleep(50 * time.Millisecond)
			}
			most := 6 * 200
			if n == 200 {
				most = 2*200 + 50
				assert.LessOrEqual(t, l.Stats().Waited, int64(10))
			}
			assert.LessOrEqual(t, net.Count(""), most, n)
			assert.LessOrEqual(t, l.Stats().Held, max(5*100, n), n)
		}
	})
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

// Callers whose fetch is lost get the next one, once, whether the connection is cut or nothing comes back. Each learns the
// outcome of its own fetches: who came during the second gets the third.
func TestEachCallerLearnsItsOwnFetch(t *testing.T) {
	for _, lost := range []testnet.Fault{testnet.LoseRequest, testnet.LoseReply} {
		inBubble(t, lost.String(), func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			q := lineOf(t, open(t, net, reservoir.PerMinute(100), reservoir.WithFixedBatch(2)))
			net.Next("", lost, lost)
			early := q.allow(1)[0]
			time.Sleep(rtt * 3 / 4) // the second is in flight
			later := q.allow(1, 1)
			q.wg.Wait()
			var failure *reservoir.StoreError
			assert.ErrorAs(t, early.err, &failure)
			assert.True(t, later[0].allowed && later[1].allowed)
			assert.Equal(t, 2, net.Happened(lost))
		})
	}
	for _, lost := range []testnet.Fault{testnet.LoseRequest, testnet.LoseReply, testnet.Hang} {
		inBubbles(t, "every second "+lost.String(), everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
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

// Requests for more than is left are refused from memory while the store's rest stays what it
// is: only probes ask again, and no caller waits for one.
func TestRefusalsOfLargeRequests(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(rtt / 2)
		l := open(t, net, reservoir.PerMinute(100), opt)
		require.True(t, allow(t, l, "k", 97).Allowed)
		require.False(t, allow(t, l, "k", 5).Allowed)
		waited, calls := l.Stats().Waited, net.Count("")
		for range 500 {
			assert.False(t, allow(t, l, "k", 5).Allowed)
			time.Sleep(100 * time.Millisecond)
		}
		assert.Equal(t, waited, l.Stats().Waited)
		assert.InDelta(t, 20, net.Count("")-calls, 20, "probes")
	})
}

// A request without stock that is refused says that less is left than was asked for, also after tokens of a Wait came back, and
// the statement by which they did was lost.
func TestDirectRefusalAgreesWithItself(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1000), reservoir.WithDirect())
		r, err := l.WaitN(bg, "k", 2)
		require.NoError(t, err)
		require.True(t, allow(t, l, "k", 997).Allowed)
		net.Next("sync", testnet.LoseRequest) // by which they go back
		require.NoError(t, l.Refund(bg, r))
		r = allow(t, l, "k", 4)
		require.Equal(t, 1, net.Happened(testnet.LoseRequest))
		require.False(t, r.Allowed)
		assert.EqualValues(t, 3, r.Remaining)
		require.True(t, allow(t, l, "k", 3).Allowed)
	})
}

// line is callers of one key that came one after the other.
type line struct {
	t  *testing.T
	l  *reservoir.Limiter
	wg sync.WaitGroup
	in []*caller
}

// wait adds waiters for ns tokens each, and allow callers of AllowN. Each has its
// place in line before the next one comes.
func (q *line) wait(ns ...int64) []*caller { return q.add(context.Background(), true, ns) }

func (q *line) allow(ns ...int64) []*caller { return q.add(context.Background(), false, ns) }

func (q *line) add(ctx context.Context, wait bool, ns []int64) (added []*caller) {
	for _, n := range ns {
		c := &caller{n: n, wait: wait, ctx: ctx, done: make(chan struct{})}
		q.in, added = append(q.in, c), append(added, c)
		q.wg.Go(func() {
			defer close(c.done)
			if c.wait {
				c.err = waitFor(ctx, q.l, "k", n)
				c.allowed = c.err == nil
			} else {
				var r reservoir.Result
				r, c.err = q.l.AllowN(ctx, "k", n)
				c.allowed = c.err == nil && r.Allowed
			}
			c.at = time.Now()
		})
		synctest.Wait()
	}
	return added
}

// inOrder checks that nobody was served before who came earlier.
func (q *line) inOrder() {
	q.t.Helper()
	q.wg.Wait()
	for i, c := range q.in {
		require.NoError(q.t, c.err)
		if i > 0 {
			assert.False(q.t, c.at.Before(q.in[i-1].at), "caller %d for %d was served %v before the one for %d", i, c.n, q.in[i-1].at.Sub(c.at), q.in[i-1].n)
		}
	}
}

func lineOf(t *testing.T, l *reservoir.Limiter) *line { return &line{t: t, l: l} }

// caller is one of them.
type caller struct {
	n       int64
	wait    bool
	ctx     context.Context
	done    chan struct{}
	at      time.Time // when it had its answer
	allowed bool
	err     error
}

// answered reports whether c has its answer, and whether it was admitted.
func (c *caller) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// times returns n so often.
func times(count int, n int64) []int64 {
	all := make([]int64, count)
	for i := range all {
		all[i] = n
	}
	return all
}

// Waiters are served in the order in which they came, whatever each waits for.
func TestLineIsFirstComeFirstServed(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, gone := range []int64{0, 6, 10} { // tokens of the first window
			for i, sizes := range [][]int64{{8, 1, 1}, {1, 9, 1, 10, 2, 3, 10, 1}, times(35, 1)} {
				inBubble(t, fmt.Sprintf("%s/gone=%d/%d", name, gone, i), func(t *testing.T) {
					l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), opt)
					if gone > 0 {
						require.True(t, allow(t, l, "k", gone).Allowed)
					}
					q := lineOf(t, l)
					q.wait(sizes...)
					q.inOrder()
				})
			}
		}
	}
}

// A waiter holds nothing that it cannot use: others have it.
func TestWaiterHoardsNothing(t *testing.T) {
	defer chance.Seed(1)()
	for name, opt := range everyPolicy() {
		for _, wants := range []int64{70, 90, 100} {
			inBubble(t, fmt.Sprintf("%s/n=%d", name, wants), func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				all := fleet(t, 3, net, reservoir.PerMinute(100), opt)
				sixty := allow(t, all[0], "k", 60)
				require.True(t, allow(t, all[0], "k", 40).Allowed)
				exhaust(t, all, "k")
				q := lineOf(t, all[1])
				w := q.wait(wants)[0]
				time.Sleep(time.Second)
				require.NoError(t, all[0].Refund(context.Background(), sixty))
				require.NoError(t, all[0].Close(context.Background()))
				admitted := 0
				for time.Now().Before(sixty.Reset.Add(-3 * time.Second)) {
					time.Sleep(100 * time.Millisecond)
					if allow(t, all[2], "k", 1).Allowed {
						admitted++
					}
				}
				assert.Equal(t, 60, admitted)
				assert.False(t, w.answered())
				q.wg.Wait()
				assert.NoError(t, w.err)
				assert.Less(t, time.Until(sixty.Reset), time.Duration(0))
				assert.Less(t, time.Since(sixty.Reset), 5*time.Second, "it is served in the window that follows")
			})
		}
	}
}

// Waiters that cannot be served before their deadlines are told at once, by what is
// known of those before them, or by the reply that says so.
func TestWaitKnowsWhenItIsHopeless(t *testing.T) {
	within := func(t *testing.T, l *reservoir.Limiter, d time.Duration) (took time.Duration, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		begin := time.Now()
		err = waitFor(ctx, l, "k", 1)
		return time.Since(begin), err
	}
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(rtt / 2)
		a, b := open(t, net, reservoir.PerMinute(10), opt), open(t, net, reservoir.PerMinute(10), opt)
		drain(t, a, "k", 1)
		took, err := within(t, a, 30*time.Second)
		assert.ErrorIs(t, err, reservoir.ErrDeadline)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, took)
		took, err = within(t, b, 30*time.Second)
		assert.ErrorIs(t, err, reservoir.ErrDeadline)
		assert.LessOrEqual(t, took, 4*rtt, "one call, and those for what others may hold")

		q := lineOf(t, a)
		q.wait(times(10, 1)...)
		took, err = within(t, a, 90*time.Second)
		assert.ErrorIs(t, err, reservoir.ErrDeadline, "behind ten others the next window is not enough either")
		assert.Zero(t, took)
		assert.NoError(t, func() error { _, err := within(t, a, math.MaxInt64); return err }(), "no hurry")
		q.inOrder()
	})
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

// All processes together look about 20 times a window whether tokens have come back,
// though many more have used the key and left.
func TestProbesAfterOthersHaveLeft(t *testing.T) {
	defer chance.Seed(3)()
	for name, opt := range everyPolicy() {
		for _, left := range []int{0, 100} {
			for _, window := range []time.Duration{time.Minute, time.Hour} {
				inBubble(t, fmt.Sprintf("%s/left=%d/window=%v", name, left, window), func(t *testing.T) {
					net := testnet.Far(rtt / 2)
					limit := reservoir.Limit{Tokens: 1000, Window: window}
					for _, l := range fleet(t, left, net, limit, opt) {
						allow(t, l, "k", 1)
						require.NoError(t, l.Close(context.Background()))
					}
					stay := fleet(t, 3, net, limit, opt)
					last := allow(t, stay[0], "k", 40)
					exhaust(t, stay, "k")
					require.NoError(t, stay[0].Refund(context.Background(), last))
					require.NoError(t, stay[0].Close(context.Background()))
					before, calls, admitted := stats(stay...).Probes, net.Count(""), 0
					end := last.Reset.Add(-window / 20)
					for time.Now().Before(end) {
						time.Sleep(window / 1000)
						for _, l := range stay[1:] {
							if allow(t, l, "k", 1).Allowed {
								admitted++
							}
						}
					}
					assert.Equal(t, 40, admitted, "what came back is found")
					if probes := stats(stay...).Probes - before; name != "direct" {
						assert.GreaterOrEqual(t, probes, int64(4))
						assert.LessOrEqual(t, probes, int64(40))
					}
					assert.LessOrEqual(t, net.Count("")-calls, 40+2*40)
				})
			}
		}
	}
}

// The same where most of many processes never got a token: a refused one counts too.
func TestProbesOfManyRefusedProcesses(t *testing.T) {
	defer chance.Seed(5)()
	for _, c := range []struct{ processes, limit int }{{200, 5}, {100, 50}, {50, 1}} {
		for name, opt := range map[string]reservoir.Option{"adaptive": reservoir.WithBatch(1, 0), "fixed": reservoir.WithFixedBatch(1)} {
			inBubble(t, fmt.Sprintf("%s/processes=%d/limit=%d", name, c.processes, c.limit), func(t *testing.T) {
				all := fleet(t, c.processes, testnet.Far(rtt/2), reservoir.PerMinute(int64(c.limit)), opt)
				const most = 100 // about 20, and more where who came first knew of few others, or was told of tokens
				for window := range 3 {
					before := stats(all...)
					for range 55 {
						time.Sleep(time.Second)
						for _, l := range all {
							allow(t, l, "k", 1)
						}
					}
					now := stats(all...)
					require.Positive(t, now.Denied)
					assert.LessOrEqual(t, now.Probes-before.Probes, int64(most), "in window %d", window)
					assert.LessOrEqual(t, now.StoreCalls-before.StoreCalls, int64(2*c.processes+c.limit+most), "in window %d", window)
					time.Sleep(time.Minute - 55*time.Second + time.Millisecond)
				}
			})
		}
	}
}

var large = flag.Bool("large", false, "eight times as many `keys` in tests of the pace; make torture sets it")

// perSecond is the capacity of the store; Redis serves some 50,000 calls. inPace is the most calls in flight to a
// shard: the 16 of its lane that nobody waits for, and those of callers meanwhile.
const (
	perSecond = 50_000
	inPace    = 20
)

// sizes runs f for n keys and for 10 n, on one shard and on several.
func sizes(t *testing.T, f func(t *testing.T, p *paced)) {
	n := 250
	switch {
	case *large:
		n = 2_000
	case invariant.Enabled: // the race detector is ten times as slow, and fewer keys show the same
		n = 60
	}
	for _, keys := range []int{n, 10 * n} {
		for _, shards := range []int{1, 16} {
			inBubble(t, fmt.Sprintf("keys=%d,shards=%d", keys, shards), func(t *testing.T) {
				net := testnet.Far(rtt / 4)
				p := &paced{T: t, net: net, keys: keys, shards: shards}
				p.server.limitTo(net, perSecond)
				f(t, p)
			})
		}
	}
}

// paced is a limiter with so many keys, over a store of finite capacity.
type paced struct {
	*testing.T
	net    *testnet.Network
	server server
	keys   int
	shards int
	states states
	lim    *reservoir.Limiter
	last   []reservoir.Result // of each key
	failed atomic.Int64       // requests that ended in an error
	waited atomic.Int64       // requests that waited for the store
}

func (p *paced) open(l reservoir.Limit, opts ...reservoir.Option) {
	p.Helper()
	opts = append(opts, p.states.option())
	p.lim = open(p.T, sharded{p.net, nil}, l, opts...)
	p.last = make([]reservoir.Result, p.keys)
}

// owe settles the last result of each key, so that it has used n tokens more than it was charged.
func (p *paced) owe(n int64) {
	p.Helper()
	for _, r := range p.last {
		require.NoError(p, p.lim.Settle(bg, r, 1+n))
	}
}

func (p *paced) key(i int) string { return fmt.Sprintf("%d:%d", i%p.shards, i) }

// use asks for a token of each key i, from first to last, evenly over d.
func (p *paced) use(first, last int, d time.Duration) {
	var wg sync.WaitGroup
	begin := time.Now()
	for i := first; i < last; i++ {
		time.Sleep(time.Until(begin.Add(d * time.Duration(i-first) / time.Duration(last-first))))
		wg.Go(func() {
			r, err := p.lim.Allow(context.Background(), p.key(i))
			switch {
			case err != nil:
				p.failed.Add(1)
				return
			case r.Source == reservoir.Fetched:
				p.waited.Add(1)
			}
			if i < p.keys {
				p.last[i] = r
			}
		})
	}
	wg.Wait()
}

// opened is how often a circuit has opened.
func (p *paced) opened() (n int) {
	for _, s := range p.states.told() {
		if s.Away {
			n++
		}
	}
	return n
}

// inPace asserts that the store was asked at a pace that it serves, since the last time.
func (p *paced) inPace() {
	p.Helper()
	assert.LessOrEqual(p, p.net.MostInFlight(), inPace*p.shards, "calls in flight")
	assert.Zero(p, p.server.overloaded(), "calls that came too late")
	assert.Zero(p, p.opened(), "circuits opened")
	assert.Zero(p, p.failed.Load(), "requests failed")
}

// charged is the number of tokens that the store has charged to all keys.
func (p *paced) charged() (n int64) {
	for i := range p.keys {
		n += used(p, p.net, p.key(i))
	}
	return n
}

// server is a store of finite capacity: it serves calls one after another, in the order in
// which they arrive, so a call waits for all that came before. A call whose caller has left
// by then is not carried out, as redisstore's scripts see to, and yet has taken its time.
type server struct {
	mu   sync.Mutex
	each time.Duration // the time that a call takes
	free time.Time     // when all calls that have arrived are served
	late int           // calls that waited longer than their callers
}

// limitTo lets net's store serve so many calls in a second from now on.
func (s *server) limitTo(net *testnet.Network, perSecond int) {
	s.each = time.Second / time.Duration(perSecond)
	net.Lock()
	defer net.Unlock()
	net.Serve = s.serve
}

func (s *server) serve(ctx context.Context, c *testnet.Call) error {
	s.mu.Lock()
	wait := max(time.Until(s.free), 0) + s.each
	s.free = time.Now().Add(wait)
	s.mu.Unlock()
	err := testnet.Pass(ctx, wait)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late++
	return &backend.Error{Op: c.Op, Class: backend.Unknown, Err: err}
}

// overloaded is how many calls came too late to be served.
func (s *server) overloaded() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.late
}

// TestIdleKeysLeave: keys that go idle together give back what they hold, while others come.
func TestIdleKeysLeave(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.PerHour(1000), reservoir.WithIdle(time.Minute), reservoir.WithFixedBatch(10))
		p.use(0, p.keys, 10*time.Second)
		require.EqualValues(t, p.keys*10, p.charged())
		for range 3 { // a sweep each
			p.use(p.keys, p.keys+p.keys/10, time.Minute)
		}
		p.inPace()
		assert.EqualValues(t, p.keys, p.charged(), "the rest was handed back")
		assert.LessOrEqual(t, p.net.Count("sync"), 2*p.keys+3*p.keys/10, "one call to come and one to leave")
	})
}

// TestCommonReset: all keys are in use when their windows end, at midnight for example.
func TestCommonReset(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.PerMinute(1000), reservoir.WithFixedBatch(4))
		p.use(0, p.keys, 900*time.Millisecond) // windows of whole seconds end at one instant
		minute := time.Now().Truncate(time.Minute).Add(time.Minute)
		for range 8 {
			p.use(0, p.keys, 6*time.Second)
		}
		time.Sleep(time.Until(minute.Add(-3 * time.Second)))
		p.net.MostInFlight()
		calls := p.net.Count("sync")
		p.use(0, p.keys/5, 6*time.Second) // some callers come meanwhile
		p.inPace()
		assert.InDelta(t, p.keys, p.net.Count("sync")-calls, float64(p.keys)/10, "all have restocked")
		p.waited.Store(0)
		p.use(0, p.keys, 10*time.Second)
		assert.Zero(t, p.waited.Load(), "so callers find stock")
	})
}

// TestRecovery: the store comes back, and all keys owe what was settled above charges while it was away.
func TestRecovery(t *testing.T) {
	sizes(t, func(t *testing.T, p *paced) {
		p.open(reservoir.Limit{Tokens: 1000, Window: 4 * time.Minute}, reservoir.WithFixedBatch(2))
		p.use(0, p.keys, 10*time.Second)
		p.net.Always(testnet.Refuse)
		for range 3 { // of which the stock serves one
			p.use(0, p.keys, 10*time.Second)
		}
		require.Equal(t, p.shards, p.opened())
		p.owe(3)
		require.EqualValues(t, 3*p.keys, p.lim.Stats().Debt)
		time.Sleep(30 * time.Second) // until all of them would state it
		p.net.MostInFlight()
		asked := time.Now()
		calls := p.net.Count("")

		p.net.Faults(nil)
		var over time.Duration // how long it took until the last debt was stated
		for p.lim.Stats().Debt > 0 {
			require.Less(t, over, 10*time.Second, "owed: %d", p.lim.Stats().Debt)
			p.use(0, 100, 100*time.Millisecond)
			over = time.Since(asked)
		}
		assert.Less(t, over, toClose)
		assert.Equal(t, p.shards, p.opened(), "no circuit opened again")
		assert.Zero(t, p.server.overloaded())
		assert.Zero(t, p.lim.Stats().Overdrawn, "all of it was in time")
		assert.LessOrEqual(t, p.net.MostInFlight(), 3*inPace*p.shards)
		assert.LessOrEqual(t, p.net.Count("")-calls, 2*p.keys+1000)
	})
}

// TestCommonResetOfAFleet: the windows of all processes end together. Each has few calls in
// flight, but nobody tells it how many the others have.
func TestCommonResetOfAFleet(t *testing.T) {
	for _, processes := range []int{10, 50} {
		inBubble(t, fmt.Sprint("processes=", processes), func(t *testing.T) {
			const keys, capacity = 50, 10_000
			net, s, states := testnet.Far(rtt/4), new(server), &states{}
			var failed atomic.Int64
			all := fleet(t, processes, net, reservoir.PerMinute(100_000), reservoir.WithFixedBatch(4), states.option())
			use := func(d time.Duration) {
				crowd(processes, func(i int) {
					for k := range keys {
						time.Sleep(d / keys)
						if _, err := all[i].Allow(context.Background(), fmt.Sprint(k)); err != nil {
							failed.Add(1)
						}
					}
				})
			}
			use(900 * time.Millisecond)
			minute := time.Now().Truncate(time.Minute).Add(time.Minute)
			for range 8 {
				use(6 * time.Second)
			}
			time.Sleep(time.Until(minute.Add(-2 * time.Second))) // after the readings of the end
			s.limitTo(net, capacity)
			net.MostInFlight()
			calls := net.Count("sync")
			time.Sleep(10 * time.Second)
			assert.InDelta(t, processes*keys, net.Count("sync")-calls, float64(processes*keys)/5, "all have restocked")
			assert.LessOrEqual(t, net.MostInFlight(), capacity/10, "more would wait longer than the timeout")
			assert.Zero(t, s.overloaded())
			assert.Zero(t, len(states.told()), "circuits opened")
			use(6 * time.Second)
			assert.Zero(t, failed.Load())
		})
	}
}

// TestWaitersOfAllKeys: callers of all keys wait for one reset, or for the end of an outage.
func TestWaitersOfAllKeys(t *testing.T) {
	for _, outage := range []bool{false, true} {
		t.Run(fmt.Sprint("outage=", outage), func(t *testing.T) {
			sizes(t, func(t *testing.T, p *paced) {
				p.open(reservoir.PerMinute(1))
				over := time.Now().Add(30 * time.Second)
				if outage {
					p.net.Always(testnet.Refuse)
				} else {
					p.use(0, p.keys, 900*time.Millisecond)
					over = time.Now().Truncate(time.Minute).Add(time.Minute)
					time.Sleep(time.Until(over) - 3*time.Second)
				}
				time.AfterFunc(time.Until(over), func() { p.net.MostInFlight(); p.net.Faults(nil) })
				crowd(p.keys, func(i int) { assert.NoError(t, waitFor(t.Context(), p.lim, p.key(i), 1)) })
				assert.Less(t, time.Since(over), toClose)
				assert.LessOrEqual(t, p.net.MostInFlight(), 300*p.shards)
				assert.Zero(t, p.server.overloaded())
				assert.Equal(t, map[bool]int{true: p.shards}[outage], p.opened(), "no circuit opened again")
			})
		})
	}
}

// TestCallersGoFirst: while so many keys stand in line that the last one's turn comes long
// after the fetch timeout, a caller of any of them waits for one round trip, and no
// statement times out in line.
func TestCallersGoFirst(t *testing.T) {
	const keys, way = 5_000, 40 * time.Millisecond
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(way)
		p := &paced{T: t, net: net, keys: keys, shards: 1}
		p.open(reservoir.PerHour(100_000), reservoir.WithFixedBatch(10), reservoir.WithIdle(time.Minute))
		p.use(0, keys, 20*time.Second)
		calls := net.Count("sync")
		for net.Count("sync") == calls { // until the sweep
			time.Sleep(time.Second)
		}
		waited := 0
		for i := range 50 {
			begin := time.Now()
			r := allow(t, p.lim, p.key(keys-1-i), 20) // more than its stock
			require.True(t, r.Allowed)
			if r.Source == reservoir.Direct { // and than a batch may bring
				waited++
			}
			require.LessOrEqual(t, time.Since(begin), 4*way, "its own round trip, and one that was in flight")
		}
		require.Equal(t, 50, waited)
		require.Less(t, net.Count("sync")-calls, keys/2, "most keys still stand in line")
		time.Sleep(2 * time.Minute)
		assert.Zero(t, p.server.overloaded())
		assert.Zero(t, p.opened())
		assert.Equal(t, keys+50, net.Count("sync")-calls)
	})
}

// TestLinesHoldNothing: keys in line have no goroutine, while the store is away and after.
func TestLinesHoldNothing(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const keys, few = 2_000, 100 // goroutines of tests before this one may still begin and end
		net := testnet.Far(rtt / 2)
		p := &paced{T: t, net: net, keys: keys, shards: 1}
		p.open(reservoir.Limit{Tokens: 1000, Window: 10 * time.Minute}, reservoir.WithFixedBatch(1))
		p.use(0, keys, time.Second)
		before := runtime.NumGoroutine()
		net.Always(testnet.Refuse)
		p.owe(1)
		p.use(0, keys, time.Second)
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine(), before+few)
		require.Equal(t, 1, p.opened())
		calls := net.Count("")
		time.Sleep(time.Minute) // in which all of them come to stand in line
		require.EqualValues(t, keys, p.lim.Stats().Debt)
		assert.LessOrEqual(t, net.Count("")-calls, 2*60+1, "the probes")
		assert.LessOrEqual(t, runtime.NumGoroutine(), before+few)
		net.Faults(nil)
		time.Sleep(toClose)
		assert.Zero(t, p.lim.Stats().Debt)
		assert.Zero(t, p.lim.Stats().Overdrawn)
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine(), before+few)
	})
}

// A function of WithLimits that blocks holds up its own key and a slot, and no other key, when all restock at a reset.
func TestBlockedLimitHoldsUpItsKey(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const hung = 10
		p := &paced{T: t, net: testnet.Far(rtt / 4), keys: 200, shards: 1}
		var blocking, blocked atomic.Int64
		end := make(chan struct{})
		p.open(reservoir.Block(), reservoir.WithFixedBatch(4), reservoir.WithLimits(func(string) reservoir.Limit {
			if blocking.Add(-1) >= 0 {
				blocked.Add(1)
				<-end
			}
			return reservoir.PerMinute(1000)
		}))
		p.use(0, p.keys, 900*time.Millisecond)
		minute := time.Now().Truncate(time.Minute).Add(time.Minute)
		for range 9 {
			p.use(0, p.keys, 6*time.Second)
		}
		time.Sleep(time.Until(minute.Add(-time.Second)))
		blocking.Store(hung)
		calls := p.net.Count("sync")
		time.Sleep(2 * time.Second)
		assert.EqualValues(t, hung, blocked.Load())
		assert.InDelta(t, p.keys-hung, p.net.Count("sync")-calls, float64(p.keys)/10, "the others have restocked")
		close(end)
		time.Sleep(time.Second)
		assert.GreaterOrEqual(t, p.net.Count("sync")-calls, p.keys*9/10, "and those that hung")
		assert.Zero(t, p.failed.Load())
	})
}

// Keys that move to another shard while theirs is away state there what they owe.
func TestKeysInLineMove(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const keys = 100
		on := new(atomic.Pointer[string])
		on.Store(new("old"))
		net := sharded{testnet.Far(rtt / 4), func() string { return *on.Load() }}
		l := open(t, net, reservoir.PerHour(1000), reservoir.WithIdle(time.Minute), reservoir.WithFixedBatch(1))
		stays := allow(t, l, "old:stays", 1)
		var all []reservoir.Result
		for i := range keys {
			all = append(all, allow(t, l, fmt.Sprint(i), 1))
		}
		net.Always(testnet.Refuse)
		for _, r := range append(all, stays) {
			require.NoError(t, l.Settle(bg, r, 2))
		}
		for i := range toOpen {
			_, err := l.Allow(bg, fmt.Sprint(i))
			require.Error(t, err)
		}
		require.EqualValues(t, keys+1, l.Stats().Debt)
		time.Sleep(5 * time.Minute) // until all of them stand in line
		require.EqualValues(t, keys+1, l.Stats().Debt)
		on.Store(new("new"))
		net.OnKey("old:stays", testnet.Refuse)
		time.Sleep(2 * time.Minute)
		assert.EqualValues(t, 1, l.Stats().Debt)
		net.Faults(nil)
		time.Sleep(toClose)
		assert.Zero(t, l.Stats().Debt)
		for i := range keys {
			require.EqualValues(t, 2, used(t, net, fmt.Sprint(i)))
		}
	})
}

// Keys that are forgotten in an outage take no memory, though they stood in line.
func TestForgottenKeysLeaveTheLine(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		const keys = 8_000
		net := testnet.Far(rtt / 4)
		l := open(t, net, reservoir.PerMinute(1000), reservoir.WithIdle(time.Minute))
		breakdown(t, l, net, testnet.Refuse)
		before := heap()
		for i := range keys {
			ctx, cancel := context.WithTimeout(bg, time.Millisecond)
			require.Error(t, waitFor(ctx, l, fmt.Sprint(i), 1))
			cancel()
		}
		require.Positive(t, l.Stats().Keys)
		time.Sleep(5 * time.Minute)
		require.Zero(t, l.Stats().Keys)
		assert.Less(t, (int64(heap())-int64(before))/keys, int64(200), "bytes a key")
	})
}

// make torture passes 5 million.
var cardinality = flag.Int("cardinality", 20_000, "distinct `keys` of TestCardinalityAttack")

// lavish is a store that answers at once and remembers nothing.
type lavish struct {
	backend.Store
	alone atomic.Int64 // statements without an account
}

func (s *lavish) Sync(_ context.Context, q backend.Statement) (backend.Reply, error) {
	if q.Client == "" {
		s.alone.Add(1)
	}
	return backend.Reply{
		State: backend.State{Window: backend.Window{End: 4102444800000}, Left: time.Hour, Remaining: q.Limit.Tokens / 2},
		Mine:  q.Mine + q.Change + q.Need, Grant: q.Need, Used: q.Limit.Tokens / 2, Clients: 1,
	}, nil
}

// A caller who invents keys gets an answer for each, and the memory of no more than
// WithMaxKeys. Keys that were there before are still served from memory.
func TestCardinalityAttack(t *testing.T) {
	const held, perKey = 10_000, 400 // bytes; an idle key's are measured elsewhere
	s := new(lavish)
	l, err := reservoir.New(s, reservoir.PerHour(1000), reservoir.WithMaxKeys(held), reservoir.WithFetchTimeout(time.Hour))
	require.NoError(t, err)
	before, most := heap(), uint64(0)
	for i := range *cardinality {
		if !allow(t, l, fmt.Sprintf("attacker:%015d", i), 1).Allowed {
			require.Fail(t, "refused", "caller %d", i)
		}
		if i%(*cardinality/5) == 0 || i == *cardinality-1 {
			most = max(most, heap())
			require.LessOrEqual(t, l.Stats().Keys, held)
		}
	}
	require.Equal(t, held, l.Stats().Keys)
	require.EqualValues(t, *cardinality-held, s.alone.Load(), "past the bound each request is a call of its own")
	require.Less(t, most, before+held*perKey)
	t.Logf("%d keys: %d held, %.1f MB more heap at most, %.0f bytes for each held", *cardinality, held,
		float64(most-before)/1e6, float64(most-before)/held)
	calls := l.Stats().StoreCalls
	require.NotEqual(t, reservoir.Direct, allow(t, l, "attacker:000000000000007", 1).Source)
	require.LessOrEqual(t, l.Stats().StoreCalls, calls+1)
	require.NoError(t, l.Close(context.Background()))
}

// share has two processes use a key: one busy for a while and then idle, the other
// until near the end of the window. It returns both, and what they have spent.
func share(t *testing.T, limit reservoir.Limit, active, interval time.Duration, opts ...reservoir.Option) (idle, busy *reservoir.Limiter, spent int64) {
	all := fleet(t, 2, testnet.Far(rtt/2), limit, opts...)
	end := allow(t, all[0], "k", 1).Reset.Add(-limit.Window / 20)
	begin := time.Now()
	crowd(2, func(i int) {
		every(t, all[i], 1, interval, []time.Time{begin.Add(active), end}[i], nil)
	})
	return all[0], all[1], stats(all...).Spent
}

// What a process holds that has gone idle goes back while others will need it, and
// stays where it is while there is enough for all.
func TestIdleExcessIsGivenBack(t *testing.T) {
	for _, window := range []time.Duration{time.Minute, time.Hour} {
		inBubble(t, window.String(), func(t *testing.T) {
			const tokens = 60_000
			limit := reservoir.Limit{Tokens: tokens, Window: window}
			idle, _, spent := share(t, limit, window/6, window/tokens)
			assert.Positive(t, idle.Stats().Returned)
			assert.LessOrEqual(t, idle.Stats().Held, int64(tokens/100), "except what may be stranded")
			assert.GreaterOrEqual(t, spent, int64(tokens*97/100), "and others have spent it")

			idle, busy, _ := share(t, limit, window/2, 10*window/tokens)
			assert.Zero(t, idle.Stats().GiveBacks+busy.Stats().GiveBacks)
		})
	}
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

// Half of a small limit is asked for, at random processes. A key that will hardly use a token
// before the window ends hardly ever orders one ahead, so there are hardly more calls than requests.
func TestSmallDemand(t *testing.T) {
	const processes, tokens, requests = 20, 10, 1000
	synctest.Test(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		all := fleet(t, processes, testnet.Far(rtt/2), reservoir.PerMinute(tokens))
		for range requests {
			time.Sleep(time.Duration(rnd.ExpFloat64() * 2 * float64(time.Minute) / tokens))
			_, err := all[rnd.IntN(processes)].Allow(t.Context(), "k")
			require.NoError(t, err)
		}
		var ahead, calls int64
		for _, l := range all {
			s := l.Stats()
			ahead, calls = ahead+s.Prefetches, calls+s.StoreCalls
		}
		require.LessOrEqual(t, ahead, int64(2))
		require.LessOrEqual(t, calls, int64(1.02*requests))
	})
}

// A limit that is small for the processes that share it is served nearly to the token,
// and nobody waits for longer than a call and three round trips.
func TestSmallLimitIsServedToTheToken(t *testing.T) {
	for _, c := range []struct{ processes, limit int64 }{{100, 60}, {20, 7}} {
		var sum int64
		for seed := range uint64(10) {
			synctest.Test(t, func(t *testing.T) { sum += small(t, seed, c.processes, c.limit) })
		}
		assert.GreaterOrEqual(t, sum, 10*c.limit-3, "hardly ever is one stranded")
	}
}

// small is how many of limit tokens so many processes get at, asking at random.
func small(t *testing.T, seed uint64, processes, limit int64) int64 {
	all := fleet(t, int(processes), testnet.Far(rtt/2), reservoir.PerMinute(limit))
	end := time.Now().Truncate(time.Second).Add(59 * time.Second)
	crowd(len(all), func(i int) {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		mean := float64(9*time.Second) * float64(processes) / float64(limit)
		for {
			time.Sleep(min(time.Duration(rnd.ExpFloat64()*mean), time.Until(end)))
			begin := time.Now()
			if !begin.Before(end) {
				return
			}
			allow(t, all[i], "k", 1)
			assert.LessOrEqual(t, time.Since(begin), 5*rtt, "behind a call for somebody else")
		}
	})
	return stats(all...).Spent
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

// TestManyKeysRecalled: if many keys of a process are used up at one instant, what others hold of each comes back
// before a caller is refused. Their returns would be too late if they went one after the other.
func TestManyKeysRecalled(t *testing.T) {
	const keys, limit = 200, 60
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(rtt / 2)
		all := fleetOn(t, 4, net, reservoir.PerHour(limit))
		var admitted [keys]int64
		for i := range keys {
			for _, l := range all[:3] {
				for range 8 {
					require.True(t, allow(t, l, fmt.Sprint(i), 1).Allowed)
				}
			}
			admitted[i] = 3 * 8
		}
		require.Positive(t, stats(all...).Held)
		crowd(keys, func(i int) { admitted[i] += drain(t, all[3], fmt.Sprint(i), 1) })
		for i := range keys {
			require.EqualValues(t, limit, admitted[i], "key %d", i)
		}
	})
}

// TestLateReplies: nothing of a window is spent after its end, though replies to requests that were charged in it come later: those
// callers get tokens of the next window, or an error if their statement has no account. So no more than one limit
// is spent after the end.
func TestLateReplies(t *testing.T) {
	for name, opt := range map[string]reservoir.Option{"direct": reservoir.WithDirect(), "fixed=1": reservoir.WithFixedBatch(1), "adaptive": reservoir.WithBatch(1, 0), "no room": reservoir.WithMaxKeys(0)} {
		inBubble(t, name, func(t *testing.T) {
			const tokens = 10
			net := testnet.Far(200 * time.Millisecond)
			l := open(t, net, reservoir.Limit{Tokens: tokens, Window: 10 * time.Second}, opt, reservoir.WithFetchTimeout(2*time.Second))
			end := allow(t, l, "k", 1).Reset
			time.Sleep(time.Until(end) - 300*time.Millisecond) // the store charges these before the end
			var after, late atomic.Int64
			crowd(2*tokens, func(i int) {
				if i >= tokens {
					time.Sleep(100*time.Millisecond + time.Until(end)) // and these after it
				}
				r, err := l.Allow(bg, "k")
				var failure *reservoir.StoreError
				switch {
				case err != nil:
					assert.ErrorAs(t, err, &failure)
					late.Add(1)
				case r.Allowed:
					after.Add(1)
					assert.True(t, time.Now().After(end) && r.Reset.After(time.Now()), "charged to %v", r.Reset)
				}
			})
			assert.LessOrEqual(t, after.Load(), int64(tokens))
			assert.Equal(t, name == "no room", late.Load() > 0)
			assert.Positive(t, l.Stats().Expired, "tokens came too late")
			balance(t, l)
		})
	}
}

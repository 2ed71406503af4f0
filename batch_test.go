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
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// Requests of any size are served from batches.
func TestRequestsOfAnySizeAreBatched(t *testing.T) {
	for name, opt := range batches() {
		for _, n := range []int64{2, 5, 40} {
			for _, before := range []int{0, 2} { // requests for one token that came first
				inBubble(t, fmt.Sprintf("%s/n=%d/ones=%d", name, n, before), func(t *testing.T) {
					net := testnet.Far(rtt / 2)
					l := open(t, net, reservoir.PerMinute(600_000), opt)
					for range before {
						allow(t, l, "k", 1)
					}
					for range 1000 {
						require.True(t, allow(t, l, "k", n).Allowed)
						time.Sleep(time.Millisecond)
					}
					assert.LessOrEqual(t, int64(net.Count("")), max(40, 2*1000*n/64), "batches hold 64 tokens, 100 or more")
					assert.Zero(t, net.Count("take"))
				})
			}
		}
	}
}

// A request that is larger than a batch loses nothing with its reply either.
func TestLostReplyOfALargeRequest(t *testing.T) {
	for name, opt := range batches() {
		for _, n := range []int64{1, 50, 500} {
			inBubble(t, fmt.Sprintf("%s/n=%d", name, n), func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				l := open(t, net, reservoir.PerHour(1000), opt)
				net.Next("", testnet.LoseReply)
				_, _ = l.AllowN(context.Background(), "k", n)
				require.Equal(t, 1, net.Happened(testnet.LoseReply))
				time.Sleep(time.Second)
				require.True(t, allow(t, l, "k", n).Allowed)
				require.NoError(t, l.Close(context.Background()))
				assert.Equal(t, l.Stats().Spent, used(t, net, "k"))
				assert.Zero(t, l.Stats().Unknown)
			})
		}
	}
}

// The same token rate costs about as many store calls whatever the size of requests.
func TestStoreCallsPerToken(t *testing.T) {
	const perWindow = 30_000 // tokens that are used, of twice as many
	for name, opt := range map[string]reservoir.Option{
		"fixed":    reservoir.WithBatch(reservoir.Fixed(600)),
		"ladder":   reservoir.WithBatch(reservoir.Ladder(1, 600)),
		"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 0)),
	} {
		for _, c := range []struct {
			processes int
			window    time.Duration
		}{{1, 5 * time.Second}, {4, 5 * time.Second}, {4, time.Minute}, {1, time.Hour}} {
			t.Run(fmt.Sprintf("%s/processes=%d/window=%v", name, c.processes, c.window), func(t *testing.T) {
				perN := map[int64]int{}
				for _, n := range []int64{1, 5, 100} {
					synctest.Test(t, func(t *testing.T) {
						net := testnet.Far(rtt / 2)
						all := fleet(t, c.processes, net, reservoir.Limit{Tokens: 2 * perWindow, Window: c.window}, opt)
						end := time.Now().Add(2 * c.window) // one in which the key is new, and one in which it is known
						crowd(c.processes, func(i int) {
							every(t, all[i], n, c.window*time.Duration(n)*time.Duration(c.processes)/perWindow, end, nil)
						})
						perN[n] = net.Count("")
					})
				}
				least, most := min(perN[1], perN[5], perN[100]), max(perN[1], perN[5], perN[100])
				assert.LessOrEqual(t, float64(most), 1.5*float64(least), "%v calls by the size of requests", perN)
			})
		}
	}
}

// steady is the use of a key that the limit can serve, request after request.
type steady struct {
	n        int64
	distance time.Duration
	window   time.Duration
	policy   string
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

func (s steady) test(t *testing.T) {
	const requests = 1500 // a window, half of what the limit allows
	perTrip := int64(requests * s.distance / s.window)
	batch := s.n * (100 + 4*perTrip)
	opt := map[string]reservoir.Option{
		"fixed":    reservoir.WithBatch(reservoir.Fixed(batch)),
		"ladder":   reservoir.WithBatch(reservoir.Ladder(s.n, 2*batch)),
		"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 0)),
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

// Policies of a set size restock ahead as well: a batch is ordered before the last
// token leaves.
func TestFixedAndLadderRestockAhead(t *testing.T) {
	for name, opt := range batches() {
		inBubble(t, name, func(t *testing.T) {
			l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(600_000), opt)
			every(t, l, 1, time.Millisecond, time.Now().Add(time.Second), nil)
			before, waited := l.Stats(), 0
			every(t, l, 1, time.Millisecond, time.Now().Add(10*time.Second), func(_ time.Time, r reservoir.Result) {
				if r.Source != reservoir.Local {
					waited++
				}
			})
			assert.LessOrEqual(t, waited, 20, "of 10,000")
			assert.Greater(t, l.Stats().Prefetches, before.Prefetches)
		})
	}
}

// A prefetch that fails is made again before the stock is gone, and not by the next
// caller who finds none.
func TestFailedPrefetchIsTriedAgain(t *testing.T) {
	for _, n := range []int64{1, 3} {
		for name, opt := range map[string]reservoir.Option{
			"fixed":    reservoir.WithBatch(reservoir.Fixed(200 * n)),
			"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 200*n)),
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

// afterFailedPrefetch is how many prefetches failed, and after how many of them a
// caller had to wait for the next call.
func (d *diary) afterFailedPrefetch() (failed, byCaller int) {
	calls := d.all()
	for i, c := range calls[:len(calls)-1] {
		if c.Err != nil && c.Cause == "prefetch" {
			failed++
			if calls[i+1].Cause == "wait" {
				byCaller++
			}
		}
	}
	return failed, byCaller
}

// A store that is far away and works gives nobody an error: neither callers who come
// while a fetch that does not cover them is under way, nor a crowd.
func TestFarStoreGivesNoErrors(t *testing.T) {
	sizings := everyPolicy()
	sizings["fixed=100"] = reservoir.WithBatch(reservoir.Fixed(100))
	for name, opt := range sizings {
		for _, far60 := range []time.Duration{60 * time.Millisecond, 90 * time.Millisecond} {
			for _, n := range []int64{1, 25, 60} {
				inBubble(t, fmt.Sprintf("%s/rtt=%v/n=%d", name, far60, n), func(t *testing.T) {
					l := open(t, testnet.Far(far60/2), reservoir.PerMinute(10_000_000), opt)
					for range 3 {
						crowd(5, func(i int) {
							time.Sleep(time.Duration(i) * 7 * time.Millisecond)
							_, err := l.AllowN(context.Background(), "k", n)
							assert.NoError(t, err)
						})
					}
					var failed atomic.Int64
					crowd(512, func(int) {
						for range 6 { // batches are small at first, so all of these rounds wait for one
							if _, err := l.AllowN(context.Background(), "k", n); err != nil {
								failed.Add(1)
							}
						}
					})
					assert.Zero(t, failed.Load(), "of %d", 512*6)
				})
			}
		}
	}
}

// While the store learns what it had granted before it lost its data, a crowd costs a
// few calls, as on any other key.
func TestCrowdOnALearningStore(t *testing.T) {
	for name, opt := range batches() {
		for _, n := range []int64{1, 4} {
			for _, limit := range []reservoir.Limit{reservoir.PerHour(2000), reservoir.PerMinute(100_000)} {
				inBubble(t, fmt.Sprintf("%s/n=%d/limit=%d", name, n, limit.Tokens), func(t *testing.T) {
					net := testnet.Far(rtt / 2)
					all := fleet(t, 3, net, limit, opt)
					for range 30 {
						for _, l := range all {
							allow(t, l, "k", 1)
						}
					}
					net.LoseData()
					for _, l := range all { // the first fetch tells the store that it has
						drainLocal(t, l)
					}
					before := net.Count("")
					admitted, failed := crowdOnce(all[0], 200, n)
					assert.Zero(t, failed)
					assert.EqualValues(t, 200, admitted)
					assert.LessOrEqual(t, net.Count("")-before, 6)
				})
			}
		}
	}
}

// drainLocal spends the stock of l and fetches once more.
func drainLocal(t *testing.T, l *reservoir.Limiter) {
	for range 200 {
		if allow(t, l, "k", 1).Source != reservoir.Local {
			return
		}
	}
}

// The fetch belongs to nobody: who started it may leave, at once and uncharged, and
// the others are served by it all the same.
func TestFetchOutlivesItsCaller(t *testing.T) {
	for _, wait := range []bool{false, true} {
		inBubble(t, fmt.Sprintf("wait=%t", wait), func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			q := lineOf(t, open(t, net, reservoir.PerMinute(100), reservoir.WithBatch(reservoir.Fixed(2))))
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

// Where the first in line leaves, what it kept others waiting for serves them.
func TestLeavingHeadFreesItsPlace(t *testing.T) {
	inBubble(t, "waiters", func(t *testing.T) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10))
		drain(t, l, "k", 1)
		q := lineOf(t, l)
		ctx, cancel := context.WithCancel(context.Background())
		big := q.add(ctx, true, []int64{10})[0]
		small := q.wait(times(10, 1)...)
		begin := time.Now()
		cancel()
		<-big.done
		assert.ErrorIs(t, big.err, context.Canceled)
		assert.Equal(t, begin, big.at)
		q.wg.Wait()
		assert.Less(t, time.Since(begin), 61*time.Second, "all in the next window")
		assert.NoError(t, small[9].err)
	})
	inBubble(t, "stock", func(t *testing.T) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), reservoir.WithBatch(reservoir.Fixed(5)))
		require.True(t, allow(t, l, "k", 2).Allowed) // 3 in stock
		time.Sleep(time.Second)
		q := lineOf(t, l)
		ctx, cancel := context.WithCancel(context.Background())
		q.add(ctx, false, []int64{4})
		small := q.allow(3)[0]
		cancel()
		begin := time.Now()
		<-small.done
		assert.True(t, small.allowed)
		assert.Equal(t, begin, small.at, "from the stock, without waiting for the fetch")
	})
}

// overlap is the longest time for which two of the calls were under way together.
func overlap(calls []diaryEntry) (most time.Duration) {
	for i, a := range calls {
		for _, b := range calls[:i] {
			if from, to := a.begun, b.ended; b.begun.Before(to) && from.Before(to) && a.ended.After(b.begun) {
				most = max(most, to.Sub(from))
			}
		}
	}
	return most
}

// However many callers see the stock at the re-order point, one fetch is under way.
func TestOneFetchAtATime(t *testing.T) {
	for name, opt := range batches() {
		inBubble(t, name, func(t *testing.T) {
			var d diary
			l := open(t, testnet.Far(10*time.Millisecond), reservoir.PerMinute(600_000), opt, d.keep())
			for range 200 { // crowds, each of which may see it
				crowd(30, func(int) { assert.True(t, allow(t, l, "k", 1).Allowed) })
				time.Sleep(10 * time.Millisecond)
			}
			assert.Zero(t, overlap(d.all()))
			assert.LessOrEqual(t, len(d.all()), 220)
		})
	}
}

// At the reset every process that used the key restocks by itself, soon and not all at
// once, so that the first request after it finds stock.
func TestRestockAtReset(t *testing.T) {
	for name, opt := range batches() {
		for _, limit := range []reservoir.Limit{reservoir.PerMinute(60_000), {Tokens: 50_000, Window: 2 * time.Second}} {
			inBubble(t, fmt.Sprintf("%s/%v", name, limit.Window), func(t *testing.T) {
				var d diary
				all := fleet(t, 10, testnet.Far(rtt/2), limit, opt, d.keep())
				reset := allow(t, all[0], "k", 1).Reset
				crowd(10, func(i int) { every(t, all[i], 1, limit.Window/100, reset.Add(-limit.Window/20), nil) })
				latest := reset.Add(limit.Window/1000 + 5*time.Millisecond + 3*rtt)
				time.Sleep(time.Until(latest))
				instants, made := map[time.Time]bool{}, 0
				for _, c := range d.all() {
					if c.ended.After(reset) {
						made++
						instants[c.begun] = true
					}
				}
				assert.Equal(t, 10, made, "one each")
				assert.Greater(t, len(instants), 5, "spread")
				for _, l := range all {
					r := allow(t, l, "k", 1)
					assert.Equal(t, reservoir.Local, r.Source)
					assert.True(t, r.Reset.After(reset))
				}
			})
		}
	}
}

// A key that nobody uses any more falls silent after its window's end: no call, and no
// timer that makes one.
func TestIdleKeyFallsSilent(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
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
}

// Near its end a busy key learns the window's end better, so that nobody waits because
// the clocks may differ.
func TestNobodyWaitsBeforeTheEnd(t *testing.T) {
	for _, n := range []int64{1, 5} {
		inBubble(t, fmt.Sprintf("n=%d", n), func(t *testing.T) {
			l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(600_000), reservoir.WithBatch(reservoir.Adaptive(1, 0)))
			second := allow(t, l, "k", n).Reset.Add(time.Minute)
			every(t, l, n, time.Millisecond, second.Add(-time.Second), nil)
			// 500 ppm of a minute are 30 ms, of what is left after a refresh about 1 ms.
			every(t, l, n, time.Millisecond, second.Add(-rtt), func(at time.Time, r reservoir.Result) {
				assert.Equal(t, reservoir.Local, r.Source, "%v before the end", second.Sub(at))
			})
		})
	}
}

// No batch is larger than the bound that was set, however fast the key is used.
func TestLargestBatchIsABound(t *testing.T) {
	for _, n := range []int64{1, 3} {
		var d diary
		l := open(t, memstore.New(), reservoir.PerHour(100_000), reservoir.WithBatch(reservoir.Adaptive(1, 50)),
			reservoir.WithFetchTimeout(time.Minute), d.keep())
		for range 20_000 {
			require.True(t, allow(t, l, "k", n).Allowed)
		}
		most := int64(0)
		for _, c := range d.all() {
			most = max(most, c.Granted)
		}
		assert.LessOrEqual(t, most, int64(50))
		assert.Greater(t, most, int64(25))
	}
}

// Requests for more than a batch are served from several that were ordered ahead. If they are
// far larger, batches cannot serve them, and so are not ordered by the dozen.
func TestRequestsLargerThanABatch(t *testing.T) {
	inBubbles(t, "", map[string]reservoir.Option{
		"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 100)),
		"fixed":    reservoir.WithBatch(reservoir.Fixed(100)),
		"ladder":   reservoir.WithBatch(reservoir.Ladder(1, 100)),
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

// A burst on a new key strands more than later use, because nothing is known of the demand:
// up to half of the limit, for up to half of the window.
func TestBurstOnANewKey(t *testing.T) {
	for _, burst := range []int{2, 3, 6, 10} {
		for _, gap := range []time.Duration{0, 10 * time.Millisecond, 300 * time.Millisecond} {
			inBubble(t, fmt.Sprintf("burst=%d/gap=%v", burst, gap), func(t *testing.T) {
				all := fleet(t, 3, testnet.Far(time.Millisecond), reservoir.Limit{Tokens: 100, Window: 10 * time.Second})
				for _, l := range all[:2] {
					for range burst {
						require.True(t, allow(t, l, "k", 1).Allowed)
						time.Sleep(gap)
					}
				}
				admitted := 2 * burst
				for range 120 {
					if allow(t, all[2], "k", 1).Allowed {
						admitted++
					}
				}
				assert.GreaterOrEqual(t, admitted, 50, "before the first refusal")
				time.Sleep(5 * time.Second)
				assert.LessOrEqual(t, all[0].Stats().Held+all[1].Stats().Held, int64(12))
			})
		}
	}
}

// A client that goes on to another process leaves at most half of the limit in the first.
func TestClientGoesToAnotherProcess(t *testing.T) {
	for _, limit := range []reservoir.Limit{reservoir.PerHour(1000), reservoir.PerMinute(300)} {
		for _, requests := range []int{20, 50, 100} {
			for _, gap := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond} {
				inBubble(t, fmt.Sprintf("limit=%d/%v/requests=%d/gap=%v", limit.Tokens, limit.Window, requests, gap), func(t *testing.T) {
					all := fleet(t, 2, testnet.Far(time.Millisecond), limit)
					for range requests {
						require.True(t, allow(t, all[0], "k", 1).Allowed)
						time.Sleep(gap)
					}
					admitted := int64(requests)
					for admitted < limit.Tokens && allow(t, all[1], "k", 1).Allowed {
						admitted++
						time.Sleep(gap)
					}
					assert.GreaterOrEqual(t, admitted, limit.Tokens*45/100)
				})
			}
		}
	}
}

// A stock that is used up while a statement is under way that asks for nothing is restocked
// after it, and not when the next caller waits.
func TestUsedUpDuringAStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(20 * time.Millisecond)
		l := open(t, net, reservoir.PerMinute(1000), reservoir.WithBatch(reservoir.Fixed(10)))
		asksNothing := make(chan struct{}, 1)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if c.Op == "sync" && c.Want == 0 {
				asksNothing <- struct{}{}
			}
			return testnet.Fine
		})
		allow(t, l, "k", 1)
		require.True(t, allow(t, l, "k", 15).Allowed)
		<-asksNothing // near the window's end it is read once more
		for l.Stats().Held > 0 {
			require.Equal(t, reservoir.Local, allow(t, l, "k", 1).Source)
		}
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, reservoir.Local, allow(t, l, "k", 1).Source)
	})
}

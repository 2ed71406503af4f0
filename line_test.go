package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// line is callers of one key that came one after the other.
type line struct {
	t  *testing.T
	l  *reservoir.Limiter
	wg sync.WaitGroup
	in []*caller
}

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

func lineOf(t *testing.T, l *reservoir.Limiter) *line { return &line{t: t, l: l} }

// wait adds waiters for ns tokens each, and allow callers of AllowN. Each has its
// place in line before the next one comes.
func (q *line) wait(ns ...int64) []*caller  { return q.add(context.Background(), true, ns) }
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

// answered reports whether c has its answer, and whether it was admitted.
func (c *caller) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
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

// times returns n so often.
func times(count int, n int64) []int64 {
	all := make([]int64, count)
	for i := range all {
		all[i] = n
	}
	return all
}

// Who waits is served in the order of coming, whatever each waits for.
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

// Tokens that come back go to the first in line that they suffice for in order, at
// once, and not to who comes later.
func TestReturnedTokensServeTheLine(t *testing.T) {
	for name, opt := range batches() {
		inBubble(t, name, func(t *testing.T) {
			ctx := context.Background()
			l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), opt)
			three, four := allow(t, l, "k", 3), allow(t, l, "k", 4)
			drain(t, l, "k", 1)
			q := lineOf(t, l)
			first := q.wait(1, 2, 3, 1)
			begin := time.Now()
			require.NoError(t, l.Refund(ctx, "k", three))
			synctest.Wait()
			assert.True(t, first[0].answered() && first[1].answered())
			assert.False(t, first[2].answered() || first[3].answered())
			assert.False(t, allow(t, l, "k", 1).Allowed)
			require.NoError(t, l.Refund(ctx, "k", four))
			q.inOrder()
			assert.Zero(t, time.Since(begin))
		})
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
				require.NoError(t, all[0].Refund(context.Background(), "k", sixty))
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

// A process that waits for the whole limit again and again leaves it to others while
// it cannot have it.
func TestWaiterForTheWholeLimit(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
			const limit, windows = 100, 20
			all := fleet(t, 4, testnet.Far(rtt/2), reservoir.PerSecond(limit), opt)
			ctx, cancel := context.WithTimeout(context.Background(), windows*time.Second)
			defer cancel()
			crowd(4, func(i int) {
				for ctx.Err() == nil {
					if i == 0 {
						_ = waitFor(ctx, all[0], "k", limit)
						time.Sleep(time.Millisecond) // who was told that it is hopeless asks again
						continue
					}
					time.Sleep(10 * time.Millisecond)
					_, err := all[i].Allow(context.Background(), "k")
					assert.NoError(t, err)
				}
			})
			assert.GreaterOrEqual(t, stats(all...).Spent, int64(windows*limit*85/100))
		})
	}
}

// A large waiter does not keep small requests of its own process from tokens that it
// cannot use, and is served after the reset.
func TestBlockedWaiterLetsRequestsThrough(t *testing.T) {
	for name, opt := range batches() {
		inBubble(t, name, func(t *testing.T) {
			l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), opt)
			r := allow(t, l, "k", 6)
			q := lineOf(t, l)
			w := q.wait(8)[0]
			time.Sleep(10 * rtt)
			assert.EqualValues(t, 4, drain(t, l, "k", 1))
			q.inOrder()
			assert.Less(t, w.at.Sub(r.Reset), time.Second)
			assert.EqualValues(t, 2, drain(t, l, "k", 1))
		})
	}
}

// A caller whose context has ended gets its error, whatever there is to be had.
func TestDeadContext(t *testing.T) {
	l := open(t, memstore.New(), reservoir.PerMinute(100))
	allow(t, l, "k", 1)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := l.Allow(ctx, "k")
	assert.ErrorIs(t, err, context.Canceled)
	_, err = l.Key("k").Allow(ctx)
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, waitFor(ctx, l, "k", 1), context.Canceled)
	_, err = l.Check(ctx, "k")
	assert.ErrorIs(t, err, context.Canceled)
	assert.EqualValues(t, 1, l.Stats().Spent)
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
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			a, b := open(t, net, reservoir.PerMinute(10), opt), open(t, net, reservoir.PerMinute(10), opt)
			drain(t, a, "k", 1)
			took, err := within(t, a, 30*time.Second)
			assert.ErrorIs(t, err, reservoir.ErrDeadline)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Zero(t, took)
			took, err = within(t, b, 30*time.Second)
			assert.ErrorIs(t, err, reservoir.ErrDeadline)
			assert.Equal(t, rtt, took, "one call")

			q := lineOf(t, a)
			q.wait(times(10, 1)...)
			took, err = within(t, a, 90*time.Second)
			assert.ErrorIs(t, err, reservoir.ErrDeadline, "behind ten others the next window is not enough either")
			assert.Zero(t, took)
			assert.NoError(t, func() error { _, err := within(t, a, math.MaxInt64); return err }(), "no hurry")
			q.inOrder()
		})
	}
}

// A Wait is not hopeless if its deadline is a little after the reset, though the reading that
// tells of the reset is old, and so the window may end a little later.
func TestWaitUntilShortlyAfterTheReset(t *testing.T) {
	defer chance.Seed(1)()
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerDay(1, nil), opt)
		for range 10 {
			r := allow(t, l, "k", 1)
			require.True(t, r.Allowed)
			ctx, cancel := context.WithDeadline(context.Background(), r.Reset.Add(20*time.Second))
			require.NoError(t, waitFor(ctx, l, "k", 1))
			cancel()
			time.Sleep(48 * time.Hour)
		}
	})
}

// Waiters of several processes pass the resets together: in order within each, with
// no token idle, and without a herd.
func TestWaitersOfAFleet(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
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
			assert.LessOrEqual(t, calls, windows*(2*20+3*processes))
		})
	}
}

// Callers whose deadlines are shorter than a round trip get their contexts' errors, at
// once, and no patient caller hears of it: the store is well.
func TestCallersOwnDeadlines(t *testing.T) {
	const trip = 20 * time.Millisecond
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
			var opened, told atomic.Int64
			l := open(t, testnet.Far(trip/2), reservoir.PerHour(1_000_000), opt, reservoir.WithHooks(reservoir.Hooks{
				ShardState: func(reservoir.ShardState) { opened.Add(1) },
			}))
			end := time.Now().Add(30 * trip)
			crowd(40, func(i int) {
				for n := int64(1 + i%3); time.Now().Before(end); time.Sleep(time.Millisecond) {
					if i < 10 {
						allow(t, l, "k", n) // a patient caller
					} else if impatient(t, l, n, time.Duration(1+i%15)*time.Millisecond) {
						told.Add(1)
					}
				}
			})
			if name == "direct" || name == "fixed=1" {
				require.Positive(t, told.Load())
			}
			assert.Zero(t, opened.Load(), "of a breaker")
			assert.Zero(t, l.Stats().Failed)
		})
	}
}

// impatient asks for n tokens within d. It reports whether the time was too short.
func impatient(t *testing.T, l *reservoir.Limiter, n int64, d time.Duration) bool {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	_, err := l.AllowN(ctx, "k", n)
	if err == nil {
		return false
	}
	var failure *reservoir.StoreError
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.False(t, errors.As(err, &failure), "%v", err)
	assert.LessOrEqual(t, time.Since(begin), d+time.Millisecond)
	return true
}

// Wait lasts through an outage, until its context ends.
func TestWaitLastsThroughAnOutage(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, f := range []testnet.Fault{testnet.Refuse, testnet.Hang, testnet.LoseRequest} {
			for _, failure := range []reservoir.Failure{reservoir.FailClosed(), reservoir.FailLocal(0)} {
				inBubble(t, fmt.Sprintf("%s/fault=%v/%v", name, f, failure == reservoir.FailClosed()), func(t *testing.T) {
					net := testnet.Far(rtt / 2)
					l := open(t, net, reservoir.PerMinute(1000), opt, reservoir.WithFailure(failure))
					net.Always(f)
					q := lineOf(t, l)
					q.wait(times(250, 1)...)
					q.wait(3)
					short, cancel := context.WithTimeout(context.Background(), 3*time.Second)
					defer cancel()
					begin := time.Now()
					given := q.add(short, true, []int64{1})[0]
					<-given.done
					assert.ErrorIs(t, given.err, context.DeadlineExceeded)
					assert.Equal(t, 3*time.Second, time.Since(begin))
					time.Sleep(7 * time.Second)
					q.in = q.in[:251]
					require.False(t, q.in[0].answered() || q.in[250].answered())
					calls := net.Count("")
					net.Faults(nil)
					healed := time.Now()
					q.inOrder()
					assert.Less(t, time.Since(healed), 5*time.Second)
					assert.Less(t, calls, 150, "no storm of calls")
				})
			}
		}
	}
}

// What waiting cannot mend is an error at once, and FailOpen admits who waits.
func TestWaitInAnOutageThatIsAnOperators(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			net.Always(testnet.Reject)
			closed := open(t, net, reservoir.PerMinute(10), opt)
			lenient := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithFailure(reservoir.FailOpen()))
			for range 20 {
				begin := time.Now()
				err := waitFor(context.Background(), closed, "k", 1)
				var failure *reservoir.StoreError
				require.ErrorAs(t, err, &failure)
				assert.Equal(t, backend.Rejected, failure.Class)
				require.NoError(t, waitFor(context.Background(), lenient, "k", 1))
				assert.LessOrEqual(t, time.Since(begin), 2*rtt)
			}
			net.Always(testnet.Refuse)
			require.NoError(t, waitFor(context.Background(), lenient, "other", 1))
		})
	}
}

// A panic in the store reaches callers or is an error to them: it hangs nobody, and
// the key goes on.
func TestPanicsReachWaiters(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			l := open(t, net, reservoir.PerMinute(1000), opt)
			net.Next("", testnet.Panic)
			var ended atomic.Int64
			crowd(20, func(i int) {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				defer func() { _ = recover(); ended.Add(1) }()
				if i%2 == 0 {
					_, _ = l.Allow(ctx, "k")
				} else {
					_ = waitFor(ctx, l, "k", 1)
				}
			})
			assert.EqualValues(t, 20, ended.Load())
			require.Equal(t, 1, net.Happened(testnet.Panic))
			assert.True(t, allow(t, l, "k", 1).Allowed)
			assert.NoError(t, waitFor(context.Background(), l, "k", 2))
			assert.True(t, allow(t, l, "other", 1).Allowed)
		})
	}
}

// The sum of what callers in line ask for may be larger than any number of tokens. They are
// served as any others.
func TestHugeRequestsInLine(t *testing.T) {
	const huge, crowd = backend.MaxTokens, 1100
	for name, opt := range batches() {
		inBubble(t, name, func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			l := open(t, net, reservoir.PerSecond(huge), opt)
			net.Next("sync", testnet.Refuse)
			q := lineOf(t, l)
			first := q.allow(huge)[0]
			all := q.add(context.Background(), false, times(crowd, huge))
			q.wg.Wait()
			require.Error(t, first.err)
			admitted := 0
			for _, c := range all {
				require.NoError(t, c.err)
				if c.allowed {
					admitted++
				}
			}
			assert.Equal(t, 1, admitted)

			q = lineOf(t, l)
			ctx, leave := context.WithCancel(context.Background())
			q.add(ctx, true, times(crowd, huge))
			hopeless, cancel := context.WithTimeout(context.Background(), (crowd-1)*time.Second)
			defer cancel()
			begin := time.Now()
			assert.ErrorIs(t, waitFor(hopeless, l, "k", huge), reservoir.ErrDeadline)
			assert.Zero(t, time.Since(begin))
			q.in = q.in[:3]
			for _, c := range q.in {
				<-c.done
			}
			assert.InDelta(t, 3, time.Since(begin).Seconds(), 1)
			leave()
		})
	}
}

// In an outage the failure policy is asked again about those who wait, when it has more
// tokens: by a refund, and in the next window. Those who come later are asked about at once.
func TestPolicyIsAskedAgainAboutTheLine(t *testing.T) {
	for name, opt := range batches() {
		inBubble(t, name, func(t *testing.T) {
			net := testnet.Far(rtt / 2)
			l := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithFailure(reservoir.FailLocal(0.5)))
			net.Always(testnet.Refuse)
			four := allow(t, l, "k", 4)
			require.True(t, four.Allowed)
			for range 10 { // until the circuit is open
				allow(t, l, "other", 5)
			}
			q := lineOf(t, l)
			w := q.wait(6, 3, 2, 1, 2, 1)
			time.Sleep(3 * time.Second)
			answered := func() (s string) {
				synctest.Wait()
				for _, c := range w {
					s += map[bool]string{true: "x", false: "."}[c.answered()]
				}
				return s
			}
			assert.Equal(t, "...x..", answered())
			require.NoError(t, l.Refund(context.Background(), "k", four))
			time.Sleep(3 * time.Second) // the next look at the circuit
			assert.Equal(t, ".x.x.x", answered(), "four tokens came back")
			time.Sleep(time.Until(four.Reset) + 3*time.Second)
			assert.Equal(t, ".xxxxx", answered(), "the next window has begun")
			net.Faults(nil)
			q.wg.Wait()
			for _, c := range w {
				assert.NoError(t, c.err)
			}
		})
	}
}

package reservoir_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/testnet"
	"github.com/go-reservoir/reservoir/sloglimit"
)

// Stores that fail, hang, lose data or answer late: circuits, failure policies, and what
// becomes of debt.

// outcome is what a failure policy does with a small request: it admits, refuses or
// fails it.
type outcome struct {
	reservoir.Option
	admits, fails bool
}

var failures = map[string]outcome{
	"closed": {failClosed, false, true},
	"open":   {reservoir.WithFailOpen(), true, false},
	"local":  {reservoir.WithFailLocal(0.1), true, false},
	"none":   {reservoir.WithFailLocal(0.001), false, false}, // less than a token
}

// Before the circuit opens a caller without stock has the policy's answer within two
// fetch timeouts, and afterwards at once. A caller with stock never notices. An open
// circuit lets probes through, ever more rarely, and these charge nothing. The hook
// is told of the end, and that comes without traffic.
func TestPolicyAnswersInAnOutage(t *testing.T) {
	for name, policy := range failures {
		for how, opt := range map[string]reservoir.Option{"batches": reservoir.WithFixedBatch(10),
			"direct": reservoir.WithDirect(), "no memory": reservoir.WithMaxKeys(0)} {
			inBubble(t, name+"/"+how, func(t *testing.T) {
				net, heard := testnet.Far(0), new(states)
				l := open(t, net, reservoir.PerMinute(100), policy.Option, opt, heard.option())
				answer := func(within time.Duration) {
					begin := time.Now()
					r, err := l.Allow(bg, "k")
					assert.LessOrEqual(t, time.Since(begin), within)
					if policy.fails || how == "no memory" && name != "open" {
						var failure *reservoir.StoreError
						require.ErrorAs(t, err, &failure)
						return
					}
					require.NoError(t, err)
					assert.Equal(t, reservoir.Fallback, r.Source)
					assert.Equal(t, policy.admits, r.Allowed)
					assert.Equal(t, !policy.admits, r.RetryAfter > 0)
					assert.WithinDuration(t, time.Now().Add(time.Minute), r.Reset, time.Second)
				}
				allow(t, l, "stocked", 1)
				net.Always(testnet.Hang)
				if how == "batches" {
					begin := time.Now()
					assert.Equal(t, reservoir.Local, allow(t, l, "stocked", 1).Source)
					assert.Zero(t, time.Since(begin))
				}
				if how == "no memory" {
					answer(100 * time.Millisecond)
				} else { // the first fetch may only have lost its reply
					answer(200 * time.Millisecond)
				}
				breakdown(t, l, net, testnet.Hang)
				calls, charged := net.Count(""), used(t, net, "k")
				for range 5 {
					answer(0)
				}
				time.Sleep(10 * time.Second)
				probes := net.Count("") - calls
				assert.LessOrEqual(t, probes, 30, "in 10 s")
				require.True(t, heard.away(""))
				net.Faults(nil)
				time.Sleep(toClose)
				assert.False(t, heard.away(""), "nobody asked")
				begin := time.Now()
				assert.NotEqual(t, reservoir.Fallback, allow(t, l, "new", 1).Source)
				assert.Zero(t, time.Since(begin))
				assert.LessOrEqual(t, used(t, net, "k"), charged+6, "a probe charges nothing")
				require.Len(t, heard.told(), 2)
			})
		}
	}
}

// A shard that does not answer is nobody else's affair, nor is a key that it answers
// about with an error of the key's own: it opens no circuit, and a shard that is away
// is not given up because of it.
func TestCircuitIsOfAShard(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net, heard := sharded{Network: testnet.Far(time.Millisecond)}, new(states)
		l := open(t, net, reservoir.PerMinute(100), opt, heard.option())
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if strings.HasPrefix(c.Key, "sick:") {
				return testnet.Hang
			}
			return testnet.Fine
		})
		for i := range toOpen {
			_, err := l.Allow(bg, fmt.Sprint("sick:", i))
			assert.Error(t, err)
		}
		synctest.Wait() // the hook comes after the answers
		require.True(t, heard.away("sick"))
		assert.True(t, allow(t, l, "well:1", 1).Allowed)
		assert.False(t, heard.away("well"))
	})
}

func TestAnswerAboutAKeyOpensNoCircuit(t *testing.T) {
	for _, class := range []backend.Class{backend.Unavailable, backend.Rejected} {
		inBubbles(t, fmt.Sprint(class), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			bad := testnet.Answer(class, "TRYAGAIN Multiple keys request during rehashing of slot", true)
			net, heard := testnet.Far(time.Millisecond), new(states)
			l := open(t, net, reservoir.PerMinute(1000), opt, heard.option())
			net.OnKey("bad", bad)
			ask := func(rounds int) (failed int) {
				for i := range rounds {
					_, err := l.Allow(bg, "bad")
					assert.Error(t, err)
					if _, err := l.Allow(bg, fmt.Sprint("good ", i)); err != nil {
						failed++
					}
					time.Sleep(20 * time.Millisecond)
				}
				return failed
			}
			assert.Zero(t, ask(50))
			assert.Empty(t, heard.told())
			require.Positive(t, net.Happened(bad))
			net.Always(testnet.Hang)
			ask(20)
			require.True(t, heard.away(""))
			net.OnKey("bad", bad)
			ask(int(toClose / (20 * time.Millisecond)))
			assert.False(t, heard.away(""))
			assert.Zero(t, ask(20), "probes went to the bad key")
		})
	}
}

// onTime is a context that ends at ctx's deadline by a timer of its own, as a transport's
// does, a moment before the context's own timer fires.
func onTime(ctx context.Context, _ *testnet.Call) context.Context {
	if at, ok := ctx.Deadline(); ok {
		timed, cancel := context.WithDeadline(context.WithoutCancel(ctx), at)
		context.AfterFunc(timed, cancel)
		return timed
	}
	return ctx
}

// tardy is a context whose timer fires a moment after its deadline.
type tardy struct {
	context.Context
	at time.Time
}

func (c tardy) Deadline() (time.Time, bool) { return c.at, true }

// Callers whose own deadlines are shorter than a round trip get their context's
// error, and open nobody's circuit: the patient ones are served.
func TestShortDeadlinesOpenNoCircuit(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, policy := range []string{"closed", "open"} {
			inBubble(t, name+"/"+policy, func(t *testing.T) {
				net, heard := testnet.Far(5*time.Millisecond), new(states)
				net.Enter = onTime
				l := open(t, net, reservoir.PerMinute(100_000), opt, heard.option(), failures[policy].Option)
				crowd(20, func(i int) {
					for j := range 20 {
						key := fmt.Sprint(i, " ", j)
						if i%4 == 0 {
							assert.NotEqual(t, reservoir.Fallback, allow(t, l, key, int64(1+j%3)).Source)
							continue
						}
						at := time.Now().Add(time.Duration(1+j%8) * time.Millisecond)
						ctx, cancel := context.WithDeadline(bg, at.Add(50*time.Microsecond))
						_, err := l.AllowN(tardy{ctx, at}, key, int64(1+j%3))
						var failure *reservoir.StoreError
						assert.ErrorIs(t, err, context.DeadlineExceeded)
						assert.NotErrorAs(t, err, &failure)
						cancel()
					}
				})
				assert.Empty(t, heard.told())
			})
		}
	}
}

// A store that rejects every call opens no circuit. Keys that have something to state, and for which
// nobody waits, do not call it every second meanwhile.
func TestRejectedStatementsAreRare(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		const keys = 100
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100_000), opt, reservoir.WithIdle(time.Minute))
		for i := range keys {
			r := allow(t, l, fmt.Sprint(i), 1)
			require.NoError(t, l.Settle(bg, r, 200)) // debt or, later, an idle stock
		}
		net.Always(testnet.Reject)
		time.Sleep(5 * time.Minute)
		calls := net.Count("")
		time.Sleep(10 * time.Minute)
		assert.LessOrEqual(t, net.Count("")-calls, 10*60+keys*20) // the probes, and each key about once a minute
		net.Faults(nil)
		time.Sleep(5 * time.Minute)
		assert.Zero(t, l.Stats().Debt)
	})
}

// Wait lasts through an outage, until its context ends.
func TestWaitLastsThroughAnOutage(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, f := range []testnet.Fault{testnet.Refuse, testnet.Hang, testnet.LoseRequest} {
			for how, failure := range map[string]reservoir.Option{"closed": failClosed, "local": reservoir.WithFailLocal(0)} {
				inBubble(t, fmt.Sprintf("%s/fault=%v/%s", name, f, how), func(t *testing.T) {
					net := testnet.Far(rtt / 2)
					l := open(t, net, reservoir.PerMinute(1000), opt, failure)
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
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(rtt / 2)
		net.Always(testnet.Reject)
		closed := open(t, net, reservoir.PerMinute(10), opt)
		lenient := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithFailOpen())
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

// In an outage the failure policy is asked again about those who wait, when it has more
// tokens: by a refund, and in the next window. Those who come later are asked about at once.
func TestPolicyIsAskedAgainAboutTheLine(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(rtt / 2)
		l := open(t, net, reservoir.PerMinute(10), opt, reservoir.WithFailLocal(0.5))
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
		require.NoError(t, l.Refund(context.Background(), four))
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

// FailLocal admits its share of a window and no more, however long the outage lasts and
// the keys are idle. What a policy admits is Overdrawn at once, unless it is refunded, and charged to
// no window: when the store is back, it has what came from stock.
func TestPolicyChargesNothing(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, policy := range []string{"open", "local"} {
			for _, known := range []bool{true, false} {
				for _, outage := range []int{10, 50, 130} {
					inBubble(t, fmt.Sprint(name, "/", policy, "/", known, "/", outage), func(t *testing.T) {
						net := testnet.Far(time.Millisecond)
						l := open(t, net, reservoir.PerMinute(100), opt, failures[policy].Option, reservoir.WithIdle(5*time.Second))
						stocked := map[time.Time]int64{} // spent from stock, by window
						ask := func(n int64) reservoir.Result {
							r := allow(t, l, "k", n)
							if r.Allowed && r.Source != reservoir.Fallback {
								stocked[r.Reset] += n
							}
							return r
						}
						if known {
							ask(20)
							time.Sleep(5 * time.Second)
						}
						net.Always(testnet.LoseRequest)
						var reset time.Time
						var overdrawn int64
						admitted := map[time.Time]int64{}
						for range outage {
							r := ask(3)
							require.True(t, reset.IsZero() || !time.Now().Before(reset) || reset.Equal(r.Reset), "the reset does not wobble")
							if reset = r.Reset; r.Allowed && r.Source == reservoir.Fallback {
								admitted[reset] += 3
								overdrawn += 3
							}
							switch extra := ask(1); {
							case !extra.Allowed:
							case extra.Source == reservoir.Fallback:
								overdrawn++
								require.NoError(t, l.Refund(bg, extra))
							default:
								stocked[extra.Reset]--
								require.NoError(t, l.Refund(bg, extra))
							}
							time.Sleep(time.Second)
						}
						if policy == "local" {
							require.LessOrEqual(t, admitted[reset], int64(9), "a tenth of 100, in threes")
						}
						require.True(t, outage == 10 || admitted[reset] >= 7)
						require.Equal(t, overdrawn, l.Stats().Overdrawn)
						require.Zero(t, l.Stats().Debt)
						net.Faults(nil)
						time.Sleep(2 * toClose)
						now := ask(3)
						require.True(t, now.Allowed && now.Source != reservoir.Fallback)
						time.Sleep(time.Second)
						require.Equal(t, overdrawn, l.Stats().Overdrawn)
						require.Equal(t, stocked[now.Reset], used(t, net, "k")-l.Stats().Held)
						time.Sleep(time.Until(now.Reset) + time.Second)
						require.EqualValues(t, 100, drain(t, l, "k", 1))
					})
				}
			}
		}
	}
}

// FailLocal admits its share of a window once, though the store comes and goes and the key is idle
// in between. That window ends with the store's, if one was known as the outage began.
func TestShareOutlivesRecovery(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(1000), opt, reservoir.WithFailLocal(0.1), reservoir.WithIdle(time.Minute))
		byPolicy, first := map[time.Time]int64{}, allow(t, l, "k", 1).Reset
		for range 9 { // outages, ten minutes apart
			breakdown(t, l, net, testnet.Refuse)
			for range 300 {
				if r := allow(t, l, "k", 1); r.Allowed && r.Source == reservoir.Fallback {
					byPolicy[r.Reset]++
				}
			}
			repair(t, l, net, "k", 1)
			time.Sleep(10 * time.Minute)
		}
		require.EqualValues(t, 100, byPolicy[first])
		require.Len(t, byPolicy, 2, "an hour and a half: each other window of the policy would be a further share")
		for reset, n := range byPolicy {
			require.LessOrEqual(t, n, int64(100), reset)
		}
	})
}

// … nor does it bring another share that the key's limit is another one in between.
func TestShareOutlivesLeaving(t *testing.T) {
	for what, other := range map[string]reservoir.Limit{
		"blocked": reservoir.Block(), "unlimited": reservoir.Unlimited(), "another length": reservoir.PerMinute(1000), "blocked for longer": reservoir.Block(),
	} {
		inBubble(t, what, func(t *testing.T) {
			net, limit := testnet.Far(time.Millisecond), planned(reservoir.PerHour(1000))
			l := open(t, net, reservoir.PerHour(1000), limit.option(), reservoir.WithFailLocal(0.1))
			net.Always(testnet.Refuse)
			var reset time.Time
			for round := range 5 {
				for range 200 {
					r := allow(t, l, "k", 1)
					require.Equal(t, reservoir.Fallback, r.Source)
					require.True(t, reset.IsZero() || reset.Equal(r.Reset))
					if reset = r.Reset; r.Allowed {
						require.Zero(t, round)
					}
				}
				require.EqualValues(t, 100, l.Stats().Overdrawn)
				limit.set(other)
				require.Error(t, l.Refresh(bg, "k"), "no message goes out, but this process has asked")
				if what == "blocked for longer" { // until the store answers, so that the key is forgotten
					net.Faults(nil)
					time.Sleep(time.Minute)
					require.Zero(t, l.Stats().Keys)
					net.Always(testnet.Refuse)
				}
				limit.set(reservoir.PerHour(1000))
			}
			time.Sleep(time.Until(reset) + time.Second)
			require.True(t, allow(t, l, "k", 1).Allowed, "the next window has a share of its own")
		})
	}
}

// A grant whose reply is lost is undone by the next statement, which asks anew, or by that of Close:
// all of it can be spent. A statement without an account is not repeated, and counted.
func TestLostRepliesLoseNothing(t *testing.T) {
	how := everyPolicy()
	how["no room"] = reservoir.WithMaxKeys(0)
	for _, n := range []int64{1, 7, 50} {
		inBubbles(t, fmt.Sprint("n=", n), how, func(t *testing.T, name string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			l := open(t, net, reservoir.PerMinute(100), opt)
			for _, key := range []string{"k", "closed"} {
				net.Next("", testnet.LoseReply, testnet.LoseReply)
				_, err := l.AllowN(bg, key, n) // it gets the next fetch, too
				require.Error(t, err)
				if name == "no room" { // it is never repeated
					_, err := l.AllowN(bg, key, n)
					require.Error(t, err)
				}
				net.Faults(nil)
			}
			require.Equal(t, 4, net.Happened(testnet.LoseReply))
			unknown := l.Stats().Unknown
			assert.Equal(t, name == "no room", unknown == 4*n)
			assert.EqualValues(t, 100, drain(t, l, "k", 1)+unknown/2)
			assert.EqualValues(t, 100, used(t, net, "k"))
			require.NoError(t, l.Close(bg))
			assert.Equal(t, unknown/2, used(t, net, "closed"))
		})
	}
}

// A panic of the function of WithLimits in a caller's goroutine, which a server may recover from, goes up to
// the caller. It leaves nothing locked, counted or charged.
func TestPanicsOfLimits(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		var panics atomic.Bool
		net := testnet.Far(time.Millisecond)
		limits := reservoir.WithLimits(func(key string) reservoir.Limit {
			if key != "other" && panics.Load() {
				panic("a user's bug")
			}
			return reservoir.PerHour(100)
		})
		other, l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithName("other"), patient), open(t, net, reservoir.PerHour(100), opt, limits, patient)
		allow(t, l, "k", 10)
		allow(t, other, "k", 3)
		panics.Store(true)
		asks := map[string]func(){
			"a new key":       func() { _, _ = l.Allow(bg, "new") },
			"a Wait":          func() { _, _ = l.Wait(bg, "new") },
			"above the limit": func() { _, _ = l.AllowN(bg, "k", 1000) },
			"Check":           func() { _, _ = l.Check(bg, "k") },
			"Reset":           func() { _ = l.Reset(bg, "k") },
			"Refresh":         func() { _ = l.Refresh(bg, "k") },
			"a group":         func() { _, _ = reservoir.NewGroup(other, l).Allow(bg, "k", "new") },
			"a group's Wait":  func() { _, _ = reservoir.NewGroup(l, other, l).Wait(bg, "other", "k", "new") },
			"a free limit":    func() { _, _ = reservoir.NewGroup(other, l).AllowEach(bg, []int64{1, 0}, "k", "new") },
		}
		for ask, f := range asks {
			assert.PanicsWithValue(t, "a user's bug", f, ask)
		}
		panics.Store(false)
		for _, key := range []string{"new", "k"} {
			require.NoError(t, waitFor(bg, l, key, 7))
		}
		require.NoError(t, l.Close(bg))
		require.NoError(t, other.Close(bg))
		assert.EqualValues(t, 17+7, l.Stats().Spent-l.Stats().Refunded)
		assert.EqualValues(t, 3, other.Stats().Spent-other.Stats().Refunded, "no group was served")
	})
}

// The first calls to a server make the connection, which takes longer than the fetch timeout if the server is far, or this
// machine slow. That is no outage, so no policy admits uncharged. Later calls that take as long are one.
func TestFirstContact(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(300 * time.Millisecond)
		l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithFailLocal(0.5))
		ask := func(key string) (uncharged int64) {
			crowd(10, func(i int) {
				_, err := l.Allow(bg, fmt.Sprint(key, i))
				assert.NoError(t, err)
			})
			return l.Stats().Fallbacks
		}
		assert.Zero(t, ask("first"))
		assert.EqualValues(t, 10, ask("second"))
	})
	inBubble(t, "the first call fails late, but in time", func(t *testing.T) {
		net, legs := testnet.Far(0), 0
		net.Travel = func(int, testnet.Leg) time.Duration {
			if legs++; legs == 1 {
				return 150 * time.Millisecond
			}
			return time.Millisecond
		}
		l := open(t, net, reservoir.PerHour(100))
		net.Next("", testnet.Refuse)
		var came sync.WaitGroup
		came.Go(func() {
			time.Sleep(140 * time.Millisecond)
			_, err := l.Allow(bg, "k")
			assert.NoError(t, err, "who came during the call has a call of its own")
		})
		_, err := l.Allow(bg, "k")
		require.Error(t, err)
		came.Wait()
		require.Equal(t, 1, net.Happened(testnet.Refuse))
	})
	inBubble(t, "nobody is there", func(t *testing.T) {
		net := testnet.Far(0)
		net.Always(testnet.Hang)
		l := open(t, net, reservoir.PerHour(100))
		begin := time.Now()
		_, err := l.Allow(bg, "k")
		require.Error(t, err)
		require.LessOrEqual(t, time.Since(begin), 2200*time.Millisecond)
		require.Positive(t, net.Happened(testnet.Hang))
	})
}

// A longer or shorter period of the calendar begins while the store is away. What the policy admits in it is Overdrawn, the period ends at its
// own end, and when the store is back, it admits its limit once.
func TestPeriodThatBeginsInAnOutage(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for what, c := range map[string]struct {
		limit      reservoir.Limit
		begin, end time.Time // of the period that begins in the outage
	}{
		"30 to 31 days": {reservoir.PerMonth(100, nil), at(time.UTC, 5, 1, 0), at(time.UTC, 6, 1, 0)},
		"23 hours":      {reservoir.PerDay(100, berlin), at(berlin, 3, 26, 0), at(berlin, 3, 27, 0)},
	} {
		for _, known := range []bool{true, false} {
			inBubble(t, fmt.Sprint(what, "/", known), func(t *testing.T) {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, c.limit, reservoir.WithFailLocal(0.4), reservoir.WithIdle(72*time.Hour))
				time.Sleep(time.Until(c.begin.Add(-time.Hour)))
				if known {
					drain(t, l, "k", 1)
				}
				breakdown(t, l, net, testnet.Refuse)
				time.Sleep(time.Until(c.begin))
				before, byPolicy := l.Stats().Overdrawn, int64(0)
				for range 100 {
					r := allow(t, l, "k", 1)
					require.Equal(t, reservoir.Fallback, r.Source)
					require.True(t, c.end.Equal(r.Reset), "the period ends at %v", r.Reset)
					if r.Allowed {
						byPolicy++
					}
				}
				require.EqualValues(t, 40, byPolicy)
				require.Equal(t, byPolicy, l.Stats().Overdrawn-before)
				net.Faults(nil)
				time.Sleep(2 * toClose)
				require.EqualValues(t, 100, drain(t, l, "k", 1))
				require.True(t, c.end.Equal(allow(t, l, "k", 1).Reset))
			})
		}
	}
}

// Tokens that come into memory while the circuit is open serve the line before its callers
// get the error.
func TestOpenCircuitServesFromMemoryFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(10), reservoir.WithFixedBatch(1), reservoir.WithFetchTimeout(time.Second))
		paid := allow(t, l, "k", 1)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if c.Key == "k" {
				return testnet.Hang
			}
			return testnet.Refuse
		})
		waits := lineOf(t, l).allow(1)[0] // of key k
		for i := range 10 {
			_, _ = l.Allow(bg, fmt.Sprint(i))
		}
		require.False(t, waits.answered())
		require.NoError(t, l.Refund(bg, paid))
		<-waits.done
		assert.NoError(t, waits.err)
		assert.True(t, waits.allowed)
	})
}

// A shard whose keys have left while it was away is not away for ever, and its outcome is not the new shard's.
func TestShardIsLeft(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		on, heard := new(atomic.Pointer[string]), new(states)
		on.Store(new("old"))
		net := sharded{testnet.Far(0), func() string { return *on.Load() }}
		l := open(t, net, reservoir.PerMinute(100), heard.option())
		net.Always(testnet.Hang)
		crowd(2*toOpen, func(i int) {
			if i >= toOpen { // while those before are in flight
				time.Sleep(50 * time.Millisecond)
				net.Faults(nil)
				on.Store(new("new"))
			}
			_, _ = l.Allow(bg, fmt.Sprint(i%toOpen))
		})
		require.Equal(t, toOpen, net.Happened(testnet.Hang))
		crowd(toOpen, func(i int) { assert.True(t, allow(t, l, fmt.Sprint(i), 1).Allowed) })
		time.Sleep(5 * time.Second)
		require.NotEmpty(t, heard.told())
		assert.False(t, heard.away("old"))
		assert.False(t, heard.away("new"))
	})
}

// A store that rejects every call is told of once per shard, in the hook and in the log, and again when that is over; requests get what the
// policy says.
func TestRejectionsAreToldOnce(t *testing.T) {
	inBubbles(t, "", failures, func(t *testing.T, _ string, policy outcome) {
		var text bytes.Buffer
		net, heard := sharded{Network: testnet.Far(time.Millisecond)}, new(states)
		l := open(t, net, reservoir.PerMinute(1_000_000), policy.Option,
			reservoir.WithHooks(heard.hooks()), reservoir.WithHooks(sloglimit.Hooks(slog.New(slog.NewTextHandler(&text, nil)))))
		net.Always(testnet.Reject)
		for i := range 100 {
			for _, shard := range []string{"a", "b"} {
				r, err := l.Allow(bg, fmt.Sprint(shard, ":", i))
				assert.Equal(t, policy.fails, err != nil)
				assert.Equal(t, !policy.fails, r.Allowed)
			}
		}
		net.Faults(nil)
		for i := range 40 {
			_, _ = l.Allow(bg, fmt.Sprint("ab"[i%2:i%2+1], ":", i/2))
			time.Sleep(100 * time.Millisecond)
		}
		require.Len(t, heard.told(), 4)
		for i, state := range heard.told() {
			assert.False(t, state.Away, "it answers")
			if assert.Equal(t, i < 2, state.Rejecting); i < 2 {
				assert.ErrorContains(t, state.Err, "WRONGPASS")
			}
		}
		assert.Equal(t, 2, strings.Count(text.String(), "level=WARN"), text.String())
	})
}

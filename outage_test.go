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
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
	"github.com/go-reservoir/reservoir/sloglimit"
)

// Stores that fail, hang, lose data or answer late: circuits, failure policies, and what
// becomes of debt.

// toOpen is how many failures in a row open a shard's circuit at the most, and
// toClose how long it takes at the most to see that the shard answers again.
const (
	toOpen  = 10
	toClose = 3 * time.Second
)

// breakdown makes every call meet f, and asks for other keys until an answer takes
// no time: the circuit is open.
func breakdown(t *testing.T, l *reservoir.Limiter, net *testnet.Network, f testnet.Fault) {
	t.Helper()
	net.Always(f)
	for i := range toOpen {
		_, _ = l.Allow(bg, fmt.Sprint("other ", i))
	}
	synctest.Wait()
	calls := net.Count("")
	_, _ = l.Allow(bg, "one more")
	require.Equal(t, calls, net.Count(""), "the circuit did not open")
}

// repair ends a breakdown, and asks now and then until the store is asked again.
func repair(t *testing.T, l *reservoir.Limiter, net *testnet.Network, key string, n int64) {
	t.Helper()
	net.Faults(nil)
	for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		r, err := l.AllowN(bg, key, n)
		if err == nil && r.Source != reservoir.Fallback {
			return
		}
		require.Less(t, time.Since(begin), 2*toClose)
	}
}

// outcome is what a failure policy does with a small request: it admits, refuses or
// fails it.
type outcome struct {
	reservoir.Option
	admits, fails bool
}

// failClosed is the default, so it is an option that changes nothing.
var failClosed = reservoir.WithHooks(reservoir.Hooks{})

var failures = map[string]outcome{
	"closed": {failClosed, false, true},
	"open":   {reservoir.WithFailOpen(), true, false},
	"local":  {reservoir.WithFailLocal(0.1), true, false},
	"none":   {reservoir.WithFailLocal(0.001), false, false}, // less than a token
}

// inTwoWays is how a policy may be asked: by the end of a fetch or of a direct call.
var inTwoWays = map[string]reservoir.Option{"batches": reservoir.WithBatch(1, 0), "direct": reservoir.WithDirect()}

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

// The error of an open circuit says why it is open.
func TestOpenCircuitSaysWhy(t *testing.T) {
	for text, f := range map[string]testnet.Fault{
		"READONLY":             testnet.Answer(backend.Unavailable, "READONLY You can't write against a read only replica.", false),
		"NOREPLICAS":           testnet.Answer(backend.Unavailable, "NOREPLICAS Not enough good replicas to write.", false),
		testnet.ErrCut.Error(): testnet.LoseRequest,
	} {
		inBubble(t, text, func(t *testing.T) {
			net, heard := testnet.Far(time.Millisecond), new(states)
			l := open(t, net, reservoir.PerMinute(100), heard.option())
			breakdown(t, l, net, f)
			class := backend.Unknown
			if f != testnet.LoseRequest {
				class = backend.Unavailable
			}
			ctx, cancel := context.WithTimeout(bg, time.Second)
			defer cancel()
			_, check := l.Check(ctx, "k")
			_, err := l.AllowN(ctx, "k", 3)
			for _, err := range []error{err, check, heard.told()[0].Err} {
				var failure *reservoir.StoreError
				require.ErrorAs(t, err, &failure)
				assert.Equal(t, class, failure.Class)
				assert.ErrorContains(t, err, text)
			}
		})
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

// A shard whose circuit opens after its keys have left is not away for ever, and its
// outcome is not the new shard's.
func TestShardIsLeft(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		var mu sync.Mutex
		on := "old"
		net := sharded{testnet.Far(0), func() string { mu.Lock(); defer mu.Unlock(); return on }}
		heard := new(states)
		l := open(t, net, reservoir.PerMinute(100), opt, heard.option())
		net.Always(testnet.Hang)
		crowd(2*toOpen, func(i int) {
			if i < toOpen {
				_, _ = l.Allow(bg, fmt.Sprint(i))
				return
			}
			time.Sleep(50 * time.Millisecond)
			net.Faults(nil)
			mu.Lock()
			on = "new"
			mu.Unlock()
			_, _ = l.Allow(bg, fmt.Sprint(i-toOpen))
		})
		require.Equal(t, toOpen, net.Happened(testnet.Hang))
		crowd(toOpen, func(i int) { assert.True(t, allow(t, l, fmt.Sprint(i), 1).Allowed) })
		for range 50 {
			time.Sleep(100 * time.Millisecond)
			allow(t, l, "another", 1)
		}
		assert.False(t, heard.away("old"))
		assert.False(t, heard.away("new"))
	})
}

// A store that rejects every call is told of once per shard, in the hook and in the
// log, and again when that is over; requests get what the policy says.
func TestRejectionsAreToldOnce(t *testing.T) {
	for name, policy := range failures {
		inBubbles(t, name, everyPolicy(), func(t *testing.T, how string, opt reservoir.Option) {
			var text bytes.Buffer
			net, heard := sharded{Network: testnet.Far(time.Millisecond)}, new(states)
			l := open(t, net, reservoir.PerMinute(1_000_000), opt, policy.Option,
				reservoir.WithHooks(heard.hooks()), reservoir.WithHooks(sloglimit.Hooks(slog.New(slog.NewTextHandler(&text, nil)))))
			net.Always(testnet.Reject)
			for i := range 100 {
				for _, shard := range []string{"a", "b"} {
					r, err := l.Allow(bg, fmt.Sprint(shard, ":", i))
					assert.Equal(t, policy.fails, err != nil)
					assert.Equal(t, !policy.fails, r.Allowed)
				}
			}
			synctest.Wait()
			require.Len(t, heard.told(), 2)
			for _, state := range heard.told() {
				assert.True(t, state.Rejecting)
				assert.False(t, state.Away, "it answers")
				assert.ErrorContains(t, state.Err, "WRONGPASS")
			}
			assert.Equal(t, 2, strings.Count(text.String(), "level=WARN"), text.String())
			net.Faults(nil)
			for i := range 40 {
				_, _ = l.Allow(bg, fmt.Sprint("ab"[i%2:i%2+1], ":", i/2))
				time.Sleep(100 * time.Millisecond)
			}
			require.Len(t, heard.told(), 4)
			for _, state := range heard.told()[2:] {
				assert.Equal(t, reservoir.ShardState{Shard: state.Shard}, state)
			}
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

// A store that hangs is found out though every caller's deadline is shorter than the
// fetch timeout: then the policy answers them.
func TestHungStoreAndShortDeadlines(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubbles(t, name, failures, func(t *testing.T, policy string, want outcome) {
			net, heard := testnet.Far(time.Millisecond), new(states)
			l := open(t, net, reservoir.PerMinute(100), opt, heard.option(), want.Option)
			net.Always(testnet.Hang)
			var r reservoir.Result
			var err error
			for i := range 200 {
				ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
				r, err = l.AllowN(ctx, fmt.Sprint(i), int64(1+i%3))
				cancel()
				time.Sleep(5 * time.Millisecond)
			}
			assert.True(t, heard.away(""))
			if want.fails {
				var failure *reservoir.StoreError
				assert.ErrorAs(t, err, &failure)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, reservoir.Fallback, r.Source)
			assert.Equal(t, want.admits, r.Allowed)
		})
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

// A circuit that opens while a key with stock wants its next batch delays the batch, but not
// until a request needs it: requests on either side of the outage are served from memory.
func TestRestockAfterAnOutage(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		const n, interval = 20, 4 * time.Second
		net := testnet.Far(20 * time.Millisecond)
		l := open(t, net, reservoir.PerHour(100_000), opt)
		outages := 0
		for i := range 800 {
			before := l.Stats().Prefetches
			if i > 400 {
				net.Always(testnet.Refuse)
			}
			r, err := l.AllowN(bg, "k", n)
			if i > 400 && err == nil && r.Source == reservoir.Local && l.Stats().Prefetches > before { // which fails
				breakdown(t, l, net, testnet.Refuse)
				time.Sleep(interval / 8)
				net.Faults(nil)
				time.Sleep(interval)
				outages++
				require.Equal(t, reservoir.Local, allow(t, l, "k", n).Source, "outage %d", outages)
			}
			net.Faults(nil)
			time.Sleep(interval)
		}
		require.Positive(t, outages)
	})
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

// A caller whose context ends just when the policy refuses it has nothing to give back: the
// share stays used up, and what was admitted is Overdrawn, and no debt.
func TestRefusedCallerGivesNothingBack(t *testing.T) {
	for try := range 30 { // whether a context ends at such a moment is up to the scheduler
		inBubble(t, fmt.Sprint(try), func(t *testing.T) {
			net := testnet.Far(0)
			l := open(t, net, reservoir.PerMinute(100), reservoir.WithFailLocal(0.1), reservoir.WithFixedBatch(1))
			allow(t, l, "k", 1)
			net.Always(testnet.Hang)
			var admitted, gone atomic.Int64
			for range 4 {
				crowd(60, func(i int) {
					ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond) // the fetch timeout
					defer cancel()
					switch r, err := l.Allow(ctx, "k"); {
					case err != nil:
						gone.Add(1)
					case r.Allowed:
						admitted.Add(1)
					}
				})
			}
			assert.Positive(t, gone.Load())
			assert.LessOrEqual(t, admitted.Load(), int64(10))
			s := l.Stats()
			assert.Equal(t, admitted.Load(), s.Overdrawn-s.Refunded, "who left at that moment took back what it got")
			assert.Zero(t, s.Debt)
		})
	}
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

// A longer or shorter period of the calendar begins while the store is away. What the policy
// admits in it is Overdrawn, the period ends at its own end, and when the store is back, it
// admits its limit once.
func TestPeriodThatBeginsInAnOutage(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for what, c := range map[string]struct {
		limit      reservoir.Limit
		begin, end time.Time // of the period that begins in the outage
	}{
		"30 to 31 days": {reservoir.PerMonth(100, nil), at(time.UTC, 5, 1, 0), at(time.UTC, 6, 1, 0)},
		"31 to 30 days": {reservoir.PerMonth(100, nil), at(time.UTC, 6, 1, 0), at(time.UTC, 7, 1, 0)},
		"23 hours":      {reservoir.PerDay(100, berlin), at(berlin, 3, 26, 0), at(berlin, 3, 27, 0)},
		"24 hours":      {reservoir.PerDay(100, berlin), at(berlin, 3, 27, 0), at(berlin, 3, 28, 0)},
	} {
		for policy, share := range map[string]float64{"local": 0.4, "open": 1} {
			for _, known := range []bool{true, false} {
				inBubbles(t, fmt.Sprint(what, "/", policy, "/", known), inTwoWays, func(t *testing.T, _ string, opt reservoir.Option) {
					failure := reservoir.WithFailOpen()
					if policy == "local" {
						failure = reservoir.WithFailLocal(share)
					}
					net := testnet.Far(time.Millisecond)
					l := open(t, net, c.limit, opt, failure, reservoir.WithIdle(72*time.Hour))
					time.Sleep(time.Until(c.begin.Add(-2 * time.Hour)))
					if known {
						drain(t, l, "k", 1)
					}
					time.Sleep(time.Until(c.begin.Add(-time.Minute)))
					breakdown(t, l, net, testnet.Refuse)
					byPolicy, others := int64(0), l.Stats().Overdrawn
					time.Sleep(time.Until(c.begin))
					for range 4 {
						for range 25 {
							r := allow(t, l, "k", 1)
							require.Equal(t, reservoir.Fallback, r.Source)
							require.True(t, c.end.Equal(r.Reset), "the period ends at %v", r.Reset)
							if r.Allowed {
								byPolicy++
							}
						}
						time.Sleep(time.Minute)
					}
					if policy == "local" {
						require.EqualValues(t, 40, byPolicy)
					} else {
						require.NoError(t, l.Settle(bg, allow(t, l, "k", 1), 4))
						byPolicy += 4
					}
					require.EqualValues(t, byPolicy, l.Stats().Overdrawn-others)
					require.Zero(t, l.Stats().Debt)
					net.Faults(nil)
					time.Sleep(2 * toClose)
					require.Zero(t, used(t, net, "k"))
					require.EqualValues(t, 100, drain(t, l, "k", 1))
					require.True(t, c.end.Equal(allow(t, l, "k", 1).Reset))
					time.Sleep(time.Until(c.end) + time.Second)
					require.EqualValues(t, 100, drain(t, l, "k", 1))
					balance(t, l)
				})
			}
		}
	}
}

// The store's clock is ahead. Nothing is spent after the end of a window that the process has
// opened by its own clock, or whose end it knew by its own clock when it settled a forgotten key.
func TestWindowsByTheWallClock(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		const ahead = 5 * time.Second
		store := memstore.New()
		net := testnet.New(store, time.Millisecond)
		net.Skew(ahead)
		l := open(t, net, reservoir.Limit{Tokens: 1000, Window: 10 * time.Second}, opt, reservoir.WithIdle(500*time.Millisecond), reservoir.WithFailLocal(0.1))
		spend := func() {
			for range 1200 {
				if r := allow(t, l, "k", 1); r.Source == reservoir.Local {
					require.True(t, time.Now().Add(ahead).Before(r.Reset))
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		breakdown(t, l, net, testnet.Refuse)
		require.Equal(t, reservoir.Fallback, allow(t, l, "k", 1).Source)
		net.Faults(nil)
		spend()
		time.Sleep(time.Minute)
		r := allow(t, l, "k", 1)
		time.Sleep(3 * time.Second)
		require.Zero(t, l.Stats().Keys)
		require.NoError(t, l.Settle(bg, r, 3))
		spend()
		r = allow(t, l, "k", 1)
		breakdown(t, l, net, testnet.Refuse)
		time.Sleep(time.Until(r.Reset) - ahead + time.Second)
		refused := allow(t, l, "k", 101)
		require.False(t, refused.Allowed)
		require.LessOrEqual(t, refused.RetryAfter, 10*time.Second)
	})
}

// alone are the ways in which each request of a key makes a call of its own.
var alone = map[string]reservoir.Limit{"no room": reservoir.PerHour(100), "rolling/no room": reservoir.PerHour(100).Rolling()}

// What a call of one request has charged expires if its reply comes after the caller has left, also if Close comes in between. If
// the reply comes after the fetch timeout, nobody knows whether it was charged.
func TestLateCallsServeNobody(t *testing.T) {
	for _, trip := range []time.Duration{50 * time.Millisecond, 150 * time.Millisecond} {
		for _, closing := range []bool{false, true} {
			inBubbles(t, fmt.Sprint(trip, "/", closing), alone, func(t *testing.T, _ string, limit reservoir.Limit) {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, limit, reservoir.WithMaxKeys(0))
				require.True(t, allow(t, l, "k", 5).Allowed)
				net.MoveTo(trip / 2)
				for range 3 {
					ctx, cancel := context.WithTimeout(bg, 30*time.Millisecond)
					defer cancel()
					_, err := l.AllowN(ctx, "k", 7)
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				if closing {
					require.NoError(t, l.Close(bg))
				} else {
					time.Sleep(10 * time.Second)
				}
				net.MoveTo(0)
				assert.EqualValues(t, 5+3*7, used(t, net, "k"))
				stats := l.Stats()
				assert.EqualValues(t, 5+3*7, stats.Taken+stats.Unknown)
				assert.Equal(t, stats.Taken-5, stats.Expired)
				assert.Equal(t, trip > 100*time.Millisecond, stats.Unknown > 0)
			})
		}
	}
}

// A server that always answers too late for callers of little patience is away, although it
// answers.
func TestAnswersThatAreAlwaysLate(t *testing.T) {
	inBubbles(t, "", alone, func(t *testing.T, _ string, limit reservoir.Limit) {
		net, heard := testnet.Far(75*time.Millisecond), new(states)
		l := open(t, net, limit, reservoir.WithMaxKeys(0), heard.option())
		for range 20 {
			ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
			_, err := l.Allow(ctx, "k")
			require.Error(t, err)
			cancel()
		}
		time.Sleep(time.Second)
		require.NotEmpty(t, heard.told())
	})
}

// A store that lost its data learns from any one process what all had been granted, and
// keeps the window's end.
func TestLostData(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		all := fleet(t, 3, net, reservoir.PerMinute(1000), opt)
		var admitted, syncs, heard int64 // heard: what all[1] had been granted when all[0] was last answered
		use := func(l *reservoir.Limiter, n int64) reservoir.Result {
			r := allow(t, l, "k", n)
			if r.Allowed {
				admitted += n
			}
			time.Sleep(10 * time.Millisecond) // nothing is in flight
			if now := all[0].Stats().Syncs; now > syncs {
				syncs, heard = now, all[1].Stats().Taken
			}
			return r
		}
		for i := range 200 {
			require.True(t, use(all[i%2], 2).Allowed)
		}
		large := use(all[0], 100)
		unknown := all[1].Stats().Taken - heard // to all[0], which speaks first
		net.LoseData()
		for _, l := range []*reservoir.Limiter{all[0], all[2], all[1], all[2]} {
			admitted += drain(t, l, "k", 1)
			time.Sleep(4 * time.Second) // longer than the store learns
			assert.Equal(t, large.Reset, allow(t, l, "k", 1).Reset)
		}
		assert.LessOrEqual(t, admitted, 1000+unknown)
		assert.GreaterOrEqual(t, admitted, int64(700), "but for what idle processes hold")
	})
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

// TestReplyAfterItsBucket: what a rolling limit has granted for a bucket that is over by the time of the reply is asked for again at once.
func TestReplyAfterItsBucket(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		slow := true
		net := testnet.Far(rtt / 2)
		net.Travel = func(_ int, leg testnet.Leg) time.Duration {
			if slow && leg == testnet.Coming { // the first call may take two seconds
				slow = false
				return 1500 * time.Millisecond
			}
			return rtt / 2
		}
		l := open(t, net, reservoir.PerMinute(600).Rolling(), opt)
		time.Sleep(2500 * time.Millisecond) // a bucket lasts for three seconds
		begin := time.Now()
		require.True(t, allow(t, l, "k", 1).Allowed)
		require.False(t, slow)
		require.Less(t, time.Since(begin), 2*time.Second)
		require.Positive(t, l.Stats().Expired+l.Stats().Returned+l.Stats().Held)
	})
}

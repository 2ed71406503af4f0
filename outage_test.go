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

// inBubbles is a bubble for each case.
func inBubbles[C any](t *testing.T, prefix string, cases map[string]C, f func(t *testing.T, name string, c C)) {
	for name, c := range cases {
		inBubble(t, strings.TrimPrefix(prefix+"/"+name, "/"), func(t *testing.T) { f(t, name, c) })
	}
}

// toOpen is how many failures in a row open a shard's circuit at the most, and
// toClose how long it takes at the most to see that the shard answers again.
const (
	toOpen  = 10
	toClose = 3 * time.Second
)

// sharded is a network whose shards are named by what stands before the colon of a
// key, and by name for keys without one.
type sharded struct {
	*testnet.Network
	name func() string
}

func (s sharded) Shard(key string) string {
	if name, _, ok := strings.Cut(key, ":"); ok || s.name == nil {
		return name
	}
	return s.name()
}

// states records what the hooks are told of shards.
type states struct {
	mu  sync.Mutex
	all []reservoir.ShardState
}

func (s *states) hooks() reservoir.Hooks {
	return reservoir.Hooks{ShardState: func(state reservoir.ShardState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, state)
	}}
}

func (s *states) option() reservoir.Option { return reservoir.WithHooks(s.hooks()) }

func (s *states) told() []reservoir.ShardState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]reservoir.ShardState(nil), s.all...)
}

// away reports whether the last that was told of shard is that it does not answer.
func (s *states) away(shard string) (away bool) {
	for _, state := range s.told() {
		if state.Shard == shard {
			away = state.Away
		}
	}
	return away
}

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
	reservoir.Failure
	admits, fails bool
}

var failures = map[string]outcome{
	"closed": {reservoir.FailClosed(), false, true},
	"open":   {reservoir.FailOpen(), true, false},
	"local":  {reservoir.FailLocal(0.1), true, false},
	"none":   {reservoir.FailLocal(0.001), false, false}, // less than a token
}

// Before the circuit opens a caller without stock has the policy's answer within the
// fetch timeout, and afterwards at once. A caller with stock never notices. An open
// circuit lets probes through, ever more rarely, and these charge nothing. The hook
// is told of the end, and that comes without traffic.
func TestPolicyAnswersInAnOutage(t *testing.T) {
	for name, policy := range failures {
		for how, opt := range map[string]reservoir.Option{"batches": reservoir.WithBatch(reservoir.Fixed(10)),
			"direct": reservoir.WithDirect(), "no memory": reservoir.WithMaxKeys(0)} {
			inBubble(t, name+"/"+how, func(t *testing.T) {
				net, heard := testnet.Far(0), new(states)
				l := open(t, net, reservoir.PerMinute(100), reservoir.WithFailure(policy.Failure), opt, heard.option())
				answer := func(within time.Duration) {
					begin := time.Now()
					r, err := l.Allow(bg, "k")
					assert.LessOrEqual(t, time.Since(begin), within)
					if policy.fails || how == "no memory" && policy.Failure != reservoir.FailOpen() {
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
				answer(100 * time.Millisecond)
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

// However many calls an outage has cut, the first probe is soon after. What was still
// to time out by then does not open the circuit again.
func TestProbeComesSoonAfterACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, heard := testnet.Far(time.Millisecond), new(states)
		l := open(t, net, reservoir.PerMinute(100), heard.option())
		net.Always(testnet.Hang)
		crowd(50, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			_, err := l.Allow(bg, fmt.Sprint(i))
			assert.Error(t, err)
		})
		synctest.Wait()
		require.GreaterOrEqual(t, net.Happened(testnet.Hang), 50)
		require.True(t, heard.away(""))
		net.Faults(nil)
		time.Sleep(300 * time.Millisecond)
		assert.False(t, heard.away(""))
		assert.Len(t, heard.told(), 2)
	})
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
				_, err := l.Allow(bg, fmt.Sprint(i))
				assert.Error(t, err)
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

// The stock of a key that has left a shard goes back at Close, though that shard is away.
func TestCloseOfAKeyThatHasMoved(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		on := "old"
		net := sharded{testnet.Far(time.Millisecond), func() string { return on }}
		l := open(t, net, reservoir.PerHour(1000), opt)
		for range 70 {
			allow(t, l, "k", 1)
		}
		require.Positive(t, l.Stats().Held)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if strings.HasPrefix(c.Key, "old:") {
				return testnet.Refuse
			}
			return testnet.Fine
		})
		for i := range toOpen {
			_, err := l.Allow(bg, fmt.Sprint("old:", i))
			require.Error(t, err)
		}
		on = "new"
		_ = l.Close(bg)
		require.Positive(t, net.Happened(testnet.Refuse))
		assert.EqualValues(t, 70, used(t, net, "k"))
	})
}

// A store that rejects every call is told of once per shard, in the hook and in the
// log, and again when that is over; requests get what the policy says.
func TestRejectionsAreToldOnce(t *testing.T) {
	for name, policy := range failures {
		inBubbles(t, name, everyPolicy(), func(t *testing.T, how string, opt reservoir.Option) {
			var text bytes.Buffer
			net, heard := sharded{Network: testnet.Far(time.Millisecond)}, new(states)
			l := open(t, net, reservoir.PerMinute(1_000_000), opt, reservoir.WithFailure(policy.Failure),
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
				l := open(t, net, reservoir.PerMinute(100_000), opt, heard.option(), reservoir.WithFailure(failures[policy].Failure))
				crowd(20, func(i int) {
					for j := range 50 {
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
			l := open(t, net, reservoir.PerMinute(100), opt, heard.option(), reservoir.WithFailure(want.Failure))
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

// An outage lasts past the end of a window, so the policy opens one without the store. Then a
// server takes over whose clock is behind: the old window is open there. Its tokens are not
// handed over again.
func TestClockStepsBackInAnOutage(t *testing.T) {
	for what, policy := range map[string]reservoir.Failure{"local": reservoir.FailLocal(0.1), "open": reservoir.FailOpen()} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			store := memstore.New()
			net := testnet.New(store, time.Millisecond)
			l := open(t, net, reservoir.Limit{Tokens: 1000, Window: 10 * time.Second}, reservoir.WithFailure(policy), opt)
			charged := map[time.Time]int64{}
			ask := func() {
				if r := allow(t, l, "k", 1); r.Allowed && r.Source != reservoir.Fallback {
					charged[r.Reset]++
				}
			}
			for range 900 {
				ask()
			}
			net.Always(testnet.Refuse)
			for range 600 {
				ask()
				time.Sleep(20 * time.Millisecond)
			}
			net.Skew(-5 * time.Second)
			net.Faults(nil)
			for range 3000 {
				ask()
				time.Sleep(2 * time.Millisecond)
			}
			require.Greater(t, len(charged), 1)
			for reset, n := range charged {
				assert.LessOrEqual(t, n, int64(1000), "until %v", reset)
			}
		})
	}
}

// A store that rejects every call opens no circuit. Keys that have something to state, and for which
// nobody waits, do not call it every second meanwhile.
func TestRejectedStatementsAreRare(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		const keys = 300
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(100_000), opt, reservoir.WithIdle(time.Minute))
		for i := range keys {
			r := allow(t, l, fmt.Sprint(i), 1)
			require.NoError(t, l.Settle(bg, fmt.Sprint(i), r, 200)) // debt or, later, an idle stock
		}
		net.Always(testnet.Reject)
		time.Sleep(5 * time.Minute)
		calls := net.Count("")
		time.Sleep(10 * time.Minute)
		assert.LessOrEqual(t, net.Count("")-calls, 10*60+keys*20) // the probes, and each key about once a minute
		net.Faults(nil)
		time.Sleep(5 * time.Minute)
		assert.Zero(t, l.Stats().Owed)
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

// Keys that want their next batch when a shard is back do not all ask at once.
func TestRestockIsSpread(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		const keys, n = 300, 20
		net := testnet.Far(20 * time.Millisecond)
		l := open(t, net, reservoir.PerHour(100_000), opt)
		round := func() {
			for i := range keys {
				_, _ = l.AllowN(bg, fmt.Sprint("k", i), n)
			}
			time.Sleep(4 * time.Second)
		}
		for range 20 {
			round()
		}
		net.Always(testnet.Refuse)
		for range 40 {
			round()
		}
		for i := range keys * n { // what is too little for n
			_, _ = l.Allow(bg, fmt.Sprint("k", i%keys))
		}
		net.Faults(nil)
		before, most := net.Count(""), 0
		for range 150 {
			was := net.Count("")
			time.Sleep(20 * time.Millisecond)
			most = max(most, net.Count("")-was)
		}
		all := net.Count("") - before
		require.Greater(t, all, keys/20)
		require.Less(t, most, all/4, "of %d, in 20 ms", all)
	})
}

// What FailOpen admits is charged when the store is back, though the key still has stock, nobody
// asks for it again, and its timer is set for the reset.
func TestDebtIsChargedWithoutTraffic(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(10_000), opt, reservoir.WithFailure(reservoir.FailOpen()))
		for range 300 {
			allow(t, l, "k", 1)
			time.Sleep(time.Second)
		}
		breakdown(t, l, net, testnet.Refuse)
		require.Equal(t, reservoir.Fallback, allow(t, l, "k", 5000).Source)
		net.Faults(nil)
		time.Sleep(2 * toClose)
		assert.Zero(t, l.Stats().Owed)
	})
}

// What FailOpen admitted counts as Owed until its window ends, and then as Overdrawn, though nobody
// asks for the key again.
func TestDebtIsOverdrawnWithoutTraffic(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(10_000), opt, reservoir.WithFailure(reservoir.FailOpen()))
		allow(t, l, "k", 1)
		breakdown(t, l, net, testnet.Refuse)
		require.Equal(t, reservoir.Fallback, allow(t, l, "k", 5000).Source)
		for range 200 {
			time.Sleep(time.Second)
			s := l.Stats()
			require.EqualValues(t, 5000+toOpen+1, s.Owed+s.Overdrawn)
		}
		assert.Zero(t, l.Stats().Owed)
	})
}

// The store's clock is ahead. Nothing is spent after the end of a window that the process has
// opened by its own clock, or whose end it knew by its own clock when it settled a forgotten key.
func TestWindowsByTheWallClock(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		const ahead = 5 * time.Second
		store := memstore.New()
		net := testnet.New(store, time.Millisecond)
		net.Skew(ahead)
		l := open(t, net, reservoir.Limit{Tokens: 1000, Window: 10 * time.Second}, opt, reservoir.WithIdle(500*time.Millisecond), reservoir.WithFailure(reservoir.FailLocal(0.1)))
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
		require.NoError(t, l.Settle(bg, "k", r, 3))
		spend()
		r = allow(t, l, "k", 1)
		breakdown(t, l, net, testnet.Refuse)
		time.Sleep(time.Until(r.Reset) - ahead + time.Second)
		refused := allow(t, l, "k", 101)
		require.False(t, refused.Allowed)
		require.LessOrEqual(t, refused.RetryAfter, 10*time.Second)
	})
}

// The window that a process opens in an outage gives way to one of an older length. Later the
// store, whose clock is behind, opens a window of the same name: it is the store's.
func TestWindowWithTheNameOfAnOwnOne(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		net.Skew(-30 * time.Second)
		limit := changingLimit(100)
		l := open(t, net, reservoir.PerMinute(100), opt, limit.option(), reservoir.WithFailure(reservoir.FailOpen()))
		allow(t, open(t, net, reservoir.Limit{Tokens: 100, Window: 90 * time.Second}), "k", 1)
		time.Sleep(time.Minute)
		breakdown(t, l, net, testnet.Refuse)
		own := allow(t, l, "k", 1)
		require.Equal(t, reservoir.Fallback, own.Source)
		net.Faults(nil)
		time.Sleep(30*time.Second + 100*time.Millisecond)
		r := allow(t, l, "k", 1)
		require.Equal(t, own.Reset, r.Reset)
		require.Equal(t, reservoir.Fetched, r.Source)
		assert.EqualValues(t, 99, drain(t, l, "k", 1))
	})
}

// A late refund of what FailOpen admitted in an earlier window cancels no debt of this one.
func TestLateRefundOfAFallback(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), opt, reservoir.WithFailure(reservoir.FailOpen()))
		breakdown(t, l, net, testnet.Refuse)
		r := allow(t, l, "k", 90)
		require.Equal(t, reservoir.Fallback, r.Source)
		net.Faults(nil)
		time.Sleep(2 * time.Minute)
		before := l.Stats().Overdrawn
		require.NoError(t, l.Settle(bg, "k", allow(t, l, "k", 100), 150))
		require.NoError(t, l.Refund(bg, "k", r))
		time.Sleep(10 * time.Second)
		assert.EqualValues(t, 150, used(t, net, "k"))
		assert.EqualValues(t, 50, l.Stats().Overdrawn-before)
	})
}

// The store's clock steps back after an outage, and the limiter is closed before it has asked which
// window is open: what was spent there does not go back.
func TestCloseAfterTheClockStepsBack(t *testing.T) {
	limit := reservoir.Limit{Tokens: 1000, Window: 10 * time.Second}
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, limit, reservoir.WithFailure(reservoir.FailOpen()), opt)
		drain(t, l, "k", 1)
		end := allow(t, l, "k", 1).Reset
		time.Sleep(time.Until(end))
		net.Always(testnet.Refuse)
		for allow(t, l, "k", 1).Reset.Equal(end) {
			time.Sleep(time.Millisecond)
		}
		net.Skew(-5 * time.Second)
		net.Faults(nil)
		require.NoError(t, l.Close(bg))
		state, err := net.Check(bg, "k", limit)
		require.NoError(t, err)
		assert.Zero(t, state.Remaining)
	})
}

// The length of the limit changes in an outage, and another process goes on in the open window, with
// the new limit. What the policy has admitted is charged there, by the next statement or at Close.
func TestLengthChangesInAnOutage(t *testing.T) {
	for _, closes := range []bool{false, true} {
		inBubbles(t, fmt.Sprint("close=", closes), everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := testnet.Far(time.Millisecond)
			var limit atomic.Value
			limit.Store(reservoir.PerHour(1000))
			limits := reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) })
			opts := []reservoir.Option{opt, limits, reservoir.WithFailure(reservoir.FailOpen())}
			l, other := open(t, net, reservoir.PerMinute(1000), opts...), open(t, net.Store(), reservoir.PerMinute(1000), opts...)
			allow(t, l, "k", 1)
			breakdown(t, l, net, testnet.Refuse)
			time.Sleep(2 * time.Minute)
			require.Equal(t, reservoir.Fallback, allow(t, l, "k", 400).Source)
			limit.Store(reservoir.PerMinute(2000))
			allow(t, other, "k", 1)
			net.Faults(nil)
			if !closes {
				time.Sleep(2 * toClose)
				assert.Zero(t, l.Stats().Owed)
			}
			require.NoError(t, l.Close(bg))
			assert.EqualValues(t, 402, used(t, net, "k")-other.Stats().Held)
			assert.LessOrEqual(t, l.Stats().Overdrawn, int64(toOpen+1), "of other keys")
		})
	}
}

// The same, and the window that the process opened is over by then. It asks once more with the length
// of the other process' window, not again and again.
func TestLengthChangedBeforeTheOutageEnds(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net, limit := testnet.Far(time.Millisecond), changingLimit(100)
		allow(t, open(t, net.Store(), reservoir.PerHour(100)), "k", 1)
		l := open(t, net, reservoir.PerMinute(100), opt, limit.option(), reservoir.WithFailure(reservoir.FailOpen()))
		breakdown(t, l, net, testnet.Refuse)
		require.Equal(t, reservoir.Fallback, allow(t, l, "k", 30).Source)
		time.Sleep(time.Minute + time.Second)
		net.Faults(nil)
		time.Sleep(2 * toClose)
		calls := net.Count("")
		require.NotEqual(t, reservoir.Fallback, allow(t, l, "k", 1).Source)
		assert.LessOrEqual(t, net.Count("")-calls, 3)
	})
}

// Close states debt to a window of the length that the limit had, which is open again because the
// store's clock has stepped back.
func TestCloseAfterTheLengthHasChanged(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		var limit atomic.Value
		limit.Store(reservoir.PerMinute(100))
		l := open(t, net, reservoir.PerMinute(100), opt, reservoir.WithLimits(func(string) reservoir.Limit { return limit.Load().(reservoir.Limit) }))
		r := allow(t, l, "k", 100)
		net.Always(testnet.Refuse)
		require.NoError(t, l.Settle(bg, "k", r, 150))
		time.Sleep(61 * time.Second)
		limit.Store(reservoir.PerHour(100))
		_, err := l.Allow(bg, "k")
		require.Error(t, err)
		net.Skew(-30 * time.Second)
		net.Faults(nil)
		require.NoError(t, l.Close(bg))
		c, err := net.Inspect(bg, "k")
		require.NoError(t, err)
		assert.EqualValues(t, 150, c.Used)
		assert.EqualValues(t, 50, l.Stats().Overdrawn)
	})
}

// The window that a process opens in an outage may have the name of the store's. What direct calls
// charge there before the store is asked for its window can still be refunded.
func TestRefundInAWindowOfTheSameName(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerHour(10), reservoir.WithDirect(), reservoir.WithFailure(reservoir.FailLocal(0.05)))
		net.Always(testnet.Refuse)
		away := allow(t, l, "k", 1)
		require.Equal(t, reservoir.Fallback, away.Source)
		net.Faults(nil)
		r := allow(t, l, "k", 1)
		require.Equal(t, reservoir.Direct, r.Source)
		require.Equal(t, away.Reset, r.Reset)
		require.NoError(t, waitFor(bg, l, "k", 1))
		require.NoError(t, l.Refund(bg, "k", r))
		assert.EqualValues(t, 1, used(t, net, "k"))
		assert.EqualValues(t, 1, l.Stats().Refunded)
	})
}

// A caller whose context ends just when the policy refuses it has nothing to give back: the
// debt of those that were admitted stays, and with it the share that is used up.
func TestRefusedCallerCancelsNoDebt(t *testing.T) {
	for try := range 30 { // whether a context ends at such a moment is up to the scheduler
		inBubble(t, fmt.Sprint(try), func(t *testing.T) {
			net := testnet.Far(0)
			l := open(t, net, reservoir.PerMinute(100), reservoir.WithFailure(reservoir.FailLocal(0.1)), reservoir.WithBatch(reservoir.Fixed(1)))
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
			assert.Equal(t, admitted.Load(), l.Stats().Owed)
		})
	}
}

// Tokens that come into memory while the circuit is open serve the line before its callers
// get the error.
func TestOpenCircuitServesFromMemoryFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(10), reservoir.WithBatch(reservoir.Fixed(1)), reservoir.WithFetchTimeout(time.Second))
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
		require.NoError(t, l.Refund(bg, "k", paid))
		<-waits.done
		assert.NoError(t, waits.err)
		assert.True(t, waits.allowed)
	})
}

// A Wait of a key that has no room in memory is served if the store is back before its
// deadline and a probe has shown it, however long the pauses have become.
func TestWaitPastMaxKeysTriesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(10), reservoir.WithMaxKeys(0))
		net.Always(testnet.Refuse)
		time.AfterFunc(8800*time.Millisecond, func() { net.Always(testnet.Fine) })
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		r, err := l.Wait(ctx, "k")
		require.NoError(t, err)
		assert.True(t, r.Allowed)
	})
}

// A direct call gives back what it was charged after its caller has left. If the store panics
// then, nobody is there to get it.
func TestPanicInAnUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(50 * time.Millisecond)
		l := open(t, net, reservoir.PerMinute(10), reservoir.WithDirect(), patient)
		net.Faults(func(c *testnet.Call) testnet.Fault {
			if c.Op == "settle" {
				return testnet.Panic
			}
			return testnet.Fine
		})
		ctx, cancel := context.WithTimeout(bg, 60*time.Millisecond)
		defer cancel()
		_, err := l.Allow(ctx, "k")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		assert.Equal(t, 1, net.Happened(testnet.Panic))
		balance(t, l)
	})
}

// inTwoWays is how a policy may be asked: by the end of a fetch or of a direct call.
var inTwoWays = map[string]reservoir.Option{"batches": reservoir.WithBatch(reservoir.Adaptive(1, 0)), "direct": reservoir.WithDirect()}

// A longer or shorter period of the calendar begins while the store is away. What the policy
// admits in it is charged when the store is back, the period ends at its own end, and it
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
					failure := reservoir.FailOpen()
					if policy == "local" {
						failure = reservoir.FailLocal(share)
					}
					net := testnet.Far(time.Millisecond)
					l := open(t, net, c.limit, opt, reservoir.WithFailure(failure), reservoir.WithIdle(72*time.Hour))
					time.Sleep(time.Until(c.begin.Add(-2 * time.Hour)))
					if known {
						drain(t, l, "k", 1)
					}
					time.Sleep(time.Until(c.begin.Add(-5 * time.Minute)))
					breakdown(t, l, net, testnet.Refuse)
					byPolicy, others := int64(0), l.Stats().Owed
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
						time.Sleep(5 * time.Minute)
					}
					if unused := allow(t, l, "k", 1); unused.Allowed {
						require.NoError(t, l.Refund(bg, "k", unused))
					}
					if policy == "local" {
						require.EqualValues(t, 40, byPolicy)
					} else {
						require.NoError(t, l.Settle(bg, "k", allow(t, l, "k", 1), 4))
						byPolicy += 4
					}
					require.EqualValues(t, byPolicy, l.Stats().Owed)
					require.GreaterOrEqual(t, l.Stats().Overdrawn, others, "debt of the period before is not charged to this one")
					net.Faults(nil)
					time.Sleep(2 * toClose)
					require.Zero(t, l.Stats().Owed, "charged without traffic")
					require.Equal(t, byPolicy, used(t, net, "k")-l.Stats().Held)
					require.EqualValues(t, max(100-byPolicy, 0), drain(t, l, "k", 1))
					require.True(t, c.end.Equal(allow(t, l, "k", 1).Reset))
					time.Sleep(time.Until(c.end) + time.Second)
					require.EqualValues(t, 100, drain(t, l, "k", 1))
					balance(t, l)
				})
			}
		}
	}
}

package reservoir_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// gauges are the fields of Stats that may go down.
var gauges = []string{"Keys", "Held", "Stranded", "Owed"}

// Every field of Stats is a figure, once, also one that is yet to come.
func TestEveryFieldOfStatsIsAFigure(t *testing.T) {
	figures := reservoir.Figures()
	fields := reflect.TypeFor[reservoir.Stats]()
	assert.Len(t, figures, fields.NumField())
	for i := range fields.NumField() {
		var s reservoir.Stats
		reflect.ValueOf(&s).Elem().Field(i).SetInt(1)
		field := fields.Field(i).Name
		shown := slices.DeleteFunc(slices.Clone(figures), func(f reservoir.Figure) bool { return f.Value(&s) != 1 })
		require.Len(t, shown, 1, field)
		assert.Equal(t, slices.Contains(gauges, field), shown[0].Gauge, field)
	}
}

func TestFiguresHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range reservoir.Figures() {
		assert.Regexp(t, `^[a-z]+([._][a-z]+)*$`, f.Name)
		assert.False(t, seen[f.Name], "%s is there twice", f.Name)
		seen[f.Name] = true
		assert.Contains(t, []string{"token", "call", "request", "key"}, f.Unit, f.Name)
		assert.Regexp(t, `^[A-Z].*\.$`, f.Help, f.Name)
	}
}

// counters are the figures of Stats that never go down.
var counters = slices.DeleteFunc(reservoir.Figures(), func(f reservoir.Figure) bool { return f.Gauge })

// requireGrowth checks that no counter has gone back.
func requireGrowth(t *testing.T, was, is reservoir.Stats) {
	for _, f := range counters {
		if f.Value(&is) < f.Value(&was) {
			t.Helper()
			require.Failf(t, "a counter went back", "%s from %d to %d", f.Name, f.Value(&was), f.Value(&is))
		}
	}
}

// No counter ever goes back, whatever the network loses, and at rest every token is
// accounted for, once. Processes fall idle in turn, so that they give back.
func TestCountersNeverGoBack(t *testing.T) {
	for name, opt := range everyPolicy() {
		for seed := range uint64(2) {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				defer chance.Seed(seed)()
				synctest.Test(t, func(t *testing.T) { countUnderFaults(t, seed, opt) })
			})
		}
	}
}

func countUnderFaults(t *testing.T, seed uint64, opt reservoir.Option) {
	net, random := testnet.Far(2*time.Millisecond), rand.New(rand.NewPCG(seed, 1))
	faults := []testnet.Fault{testnet.LoseReply, testnet.LoseReply, testnet.LoseRequest, testnet.ArriveLate, testnet.Repeat}
	net.Faults(func(*testnet.Call) testnet.Fault { // under the network's lock
		if random.IntN(3) > 0 {
			return testnet.Fine
		}
		return faults[random.IntN(len(faults))]
	})
	const window = 6 * time.Second
	all := fleet(t, 3, net, reservoir.Limit{Tokens: 3000, Window: window}, opt,
		reservoir.WithIdle(time.Second), reservoir.WithStranding(0.001), reservoir.WithFailure(reservoir.FailLocal(0.01)))
	last, begin, done := make([]reservoir.Stats, len(all)), time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		crowd(2*len(all), func(i int) {
			random, key := rand.New(rand.NewPCG(seed, uint64(i))), fmt.Sprint(i/len(all))
			for n := int64(0); time.Since(begin) < 2*window; n++ {
				if int(time.Since(begin)/(window/7))%3 == i%3 {
					time.Sleep(window / 7)
				}
				r, err := all[i%3].AllowN(bg, key, 1+n%7*n%2)
				if err == nil && random.IntN(9) == 0 {
					_ = all[i%3].Refund(bg, key, r)
				}
				time.Sleep(time.Duration(random.Int64N(int64(10 * time.Millisecond))))
			}
		})
	}()
	defer func() { <-done }()
	for time.Since(begin) < 3*window {
		time.Sleep(13 * time.Millisecond)
		for i, l := range all {
			is := l.Stats()
			requireGrowth(t, last[i], is)
			last[i] = is
		}
	}
	require.Positive(t, net.Happened(testnet.LoseReply))
}

// Nor do they go back where cores race, while keys come and go.
func TestCountersNeverGoBackInARace(t *testing.T) {
	l := open(t, memstore.New(), reservoir.PerHour(1000), reservoir.WithBatch(reservoir.Fixed(3)), reservoir.WithIdle(time.Millisecond), patient)
	var over atomic.Bool
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for last := l.Stats(); !over.Load(); {
			is := l.Stats()
			requireGrowth(t, last, is)
			last = is
		}
	}()
	crowd(4, func(i int) {
		for j := range 1500 {
			_, err := l.Allow(bg, fmt.Sprint(i, j/3))
			assert.NoError(t, err)
		}
	})
	over.Store(true)
	<-looked
}

// A key that was used once and lies idle takes at most 320 bytes, all counted.
func TestMemoryOfAnIdleKey(t *testing.T) {
	const keys = 20_000
	l := open(t, new(lavish), reservoir.PerHour(1000), reservoir.WithFetchTimeout(time.Hour))
	heap := func() (m runtime.MemStats) { runtime.GC(); runtime.GC(); runtime.ReadMemStats(&m); return m }
	before := heap()
	for i := range keys {
		allow(t, l, strings.Clone(fmt.Sprintf("user:%015d", i)), 1)
	}
	each := float64(heap().HeapAlloc-before.HeapAlloc) / keys
	t.Logf("%.0f bytes a key", each)
	assert.LessOrEqual(t, each, 320.0)
	assert.Equal(t, keys, l.Stats().Keys)
}

// About twenty probes a window are made of a refused key by all processes together,
// however often each is asked, and tokens that come back are found by one of them.
func TestProbesAreShared(t *testing.T) {
	const rounds = 6
	for name, opt := range everyPolicy() {
		for _, processes := range []int{1, 20} {
			t.Run(fmt.Sprint(name, "/", processes), func(t *testing.T) {
				var probes, found int
				for seed := range uint64(rounds) {
					defer chance.Seed(seed)()
					synctest.Test(t, func(t *testing.T) {
						net := testnet.Far(time.Millisecond)
						all := fleet(t, processes, net, reservoir.Limit{Tokens: 2000, Window: time.Minute}, opt)
						for _, n := range []int64{30, 1} { // in turn, so that each has some
							for _, l := range all {
								drain(t, l, "k", n)
								allow(t, l, "k", 1)
							}
						}
						ask := func(d time.Duration) (got int) {
							for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
								for _, l := range all {
									if allow(t, l, "k", 1).Allowed {
										got++
									}
								}
							}
							return got
						}
						calls := net.Count("")
						require.Zero(t, ask(30*time.Second))
						probes += net.Count("") - calls
						require.Equal(t, 5, int(giveBack(t, net, "k", 5)))
						if ask(15*time.Second) == 5 {
							found++
						}
					})
				}
				t.Logf("%.1f probes in half a window", float64(probes)/rounds)
				expected := 15.0
				if name == "direct" { // the first of each is heard by the store of who it is
					expected += float64(processes)
				}
				assert.InDelta(t, expected, float64(probes)/rounds, 10)
				assert.GreaterOrEqual(t, found, rounds-2)
			})
		}
	}
}

// giveBack refunds tokens to the store, past all limiters.
func giveBack(t *testing.T, net *testnet.Network, key string, n int64) int64 {
	t.Helper()
	before, err := net.Inspect(bg, key)
	require.NoError(t, err)
	_, err = net.Store().Settle(bg, backend.SettleRequest{Key: key, Window: before.Window, Tokens: -n, Limit: 1})
	require.NoError(t, err)
	return before.Used - used(t, net, key)
}

// FailLocal admits its share of a window and no more, however long the outage lasts and
// the keys are idle. What a policy admits is charged when the store is back, in the
// window in which it was admitted and in no later one; a refund of it is not charged.
func TestDebtIsOfItsWindow(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, policy := range []string{"open", "local"} {
			for _, known := range []bool{true, false} {
				for _, outage := range []int{10, 50, 130} {
					inBubble(t, fmt.Sprint(name, "/", policy, "/", known, "/", outage), func(t *testing.T) {
						net := testnet.Far(time.Millisecond)
						l := open(t, net, reservoir.PerMinute(100), opt, reservoir.WithFailure(failures[policy].Failure), reservoir.WithIdle(5*time.Second))
						if known {
							allow(t, l, "k", 20)
							time.Sleep(5 * time.Second)
						}
						net.Always(testnet.LoseRequest)
						var reset time.Time
						admitted := map[time.Time]int64{}
						for range outage {
							r := allow(t, l, "k", 3)
							require.True(t, reset.IsZero() || !time.Now().Before(reset) || reset.Equal(r.Reset), "the reset does not wobble")
							if reset = r.Reset; r.Allowed && r.Source == reservoir.Fallback {
								admitted[reset] += 3
							}
							if extra := allow(t, l, "k", 1); extra.Allowed {
								owed := l.Stats().Owed
								require.NoError(t, l.Refund(bg, "k", extra))
								if extra.Source == reservoir.Local { // it pays for debt
									admitted[reset] -= owed - l.Stats().Owed
								}
							}
							time.Sleep(time.Second)
						}
						if policy == "local" {
							require.LessOrEqual(t, admitted[reset], int64(9), "a tenth of 100, in threes")
						}
						require.True(t, outage == 10 || admitted[reset] >= 7)
						if !known || outage > 60 { // in a window that the store has not named
							s := l.Stats()
							require.Zero(t, s.Owed)
							require.GreaterOrEqual(t, s.Overdrawn, admitted[reset])
							return
						}
						require.Equal(t, admitted[reset], l.Stats().Owed)
						repair(t, l, net, "k", 3)
						time.Sleep(time.Second)
						require.True(t, time.Now().Before(reset))
						require.Zero(t, l.Stats().Owed)
						require.GreaterOrEqual(t, used(t, net, "k"), min(admitted[reset], 100))
						time.Sleep(time.Until(reset) + time.Second)
						require.EqualValues(t, 100, drain(t, l, "k", 1))
					})
				}
			}
		}
	}
}

// What a policy admitted stays part of the account, though the reply to its statement
// is lost and its window is long: it is charged once, and never handed out again. A
// share is remembered while a key is idle.
func TestDebtIsChargedOnce(t *testing.T) {
	for name, opt := range everyPolicy() {
		for policy, share := range map[string]int64{"open": 150, "local": 10} {
			inBubble(t, name+"/"+policy, func(t *testing.T) {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerHour(100), opt, reservoir.WithFailure(failures[policy].Failure), reservoir.WithIdle(time.Minute))
				require.True(t, allow(t, l, "k", 1).Allowed)
				net.Always(testnet.LoseRequest)
				admitted, byPolicy := int64(1), int64(0)
				for range 150 {
					switch r := allow(t, l, "k", 1); {
					case r.Allowed && r.Source == reservoir.Fallback:
						byPolicy++
						fallthrough
					case r.Allowed:
						admitted++
					}
					time.Sleep(10 * time.Second)
				}
				if policy == "open" {
					byPolicy = admitted - 1
				}
				require.Equal(t, share, byPolicy)
				lost := 0
				net.Faults(func(c *testnet.Call) testnet.Fault {
					if c.Key == "k" && lost < 2 {
						lost++
						return testnet.LoseReply
					}
					return testnet.Fine
				})
				for range 50 {
					if r := allow(t, l, "k", 1); r.Allowed {
						admitted++
					}
					time.Sleep(time.Second)
				}
				admitted += drain(t, l, "k", 1)
				time.Sleep(time.Minute)
				assert.Zero(t, l.Stats().Owed)
				assert.Equal(t, 2, net.Happened(testnet.LoseReply))
				assert.LessOrEqual(t, admitted, max(share, 100)+70, "a batch more at the most, granted before the store heard of it")
				assert.GreaterOrEqual(t, used(t, net, "k"), min(admitted, 100))
			})
		}
	}
}

// A key is Exhausted if the store has too little for a request, though a smaller one passes,
// and if it has nothing, though this process still holds tokens; no longer after the reset.
func TestExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, memstore.New(), reservoir.PerMinute(10), reservoir.WithBatch(reservoir.Fixed(10)))
		exhausted := func(key string) bool {
			for k, s := range l.Keys() {
				if k == key {
					return s.Exhausted
				}
			}
			return false
		}
		require.True(t, allow(t, l, "small", 8).Allowed)
		require.False(t, allow(t, l, "small", 5).Allowed)
		require.True(t, exhausted("small"))
		require.True(t, allow(t, l, "small", 1).Allowed)

		require.True(t, allow(t, l, "held", 1).Allowed)
		require.True(t, exhausted("held"), "the store has granted all ten")
		time.Sleep(time.Minute + time.Second)
		require.False(t, exhausted("small"))
	})
}

// FailOpen admits more than can be counted, and counts as far as there are numbers.
func TestFailOpenBeyondNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.Limit{Tokens: backend.MaxTokens, Window: time.Hour}, reservoir.WithFailure(reservoir.FailOpen()))
		breakdown(t, l, net, testnet.LoseRequest)
		for range 3000 {
			require.True(t, allow(t, l, "k", backend.MaxTokens).Allowed)
		}
		repair(t, l, net, "new", 1)
		_, _ = l.Allow(bg, "k")
		time.Sleep(time.Second)
		calls := net.Count("")
		time.Sleep(time.Minute)
		assert.LessOrEqual(t, net.Count("")-calls, 3, "told once, and a probe now and then")
	})
}

// A grant whose reply is lost is handed over with the next one, or goes back on Close:
// charged once, all of it spendable. A direct call is not repeated, and counted.
func TestLostRepliesLoseNothing(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, n := range []int64{1, 7} {
			inBubble(t, fmt.Sprint(name, "/", n), func(t *testing.T) {
				net := testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerMinute(100), opt)
				for _, key := range []string{"k", "closed"} {
					net.Next("", testnet.LoseReply, testnet.LoseReply)
					for range 2 {
						_, err := l.AllowN(bg, key, n)
						require.Error(t, err)
					}
					net.Faults(nil)
				}
				require.Equal(t, 4, net.Happened(testnet.LoseReply))
				unknown := l.Stats().Unknown
				assert.Equal(t, name == "direct", unknown == 4*n)
				assert.EqualValues(t, 100, drain(t, l, "k", 1)+unknown/2)
				assert.EqualValues(t, 100, used(t, net, "k"))
				require.NoError(t, l.Close(bg))
				assert.Equal(t, unknown/2, used(t, net, "closed"))
			})
		}
	}
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
		assert.Positive(t, all[0].Stats().Reasserted)
		assert.LessOrEqual(t, admitted, 1000+unknown)
		assert.GreaterOrEqual(t, admitted, int64(700), "but for what idle processes hold")
	})
}

// When a ledger alone is lost nobody is charged twice.
func TestLostLedger(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for name, opt := range everyPolicy() {
		for _, n := range []int64{1, 7} {
			t.Run(fmt.Sprint(name, "/", n), func(t *testing.T) {
				key := fmt.Sprint(name, n)
				all := fleet(t, 4, redisstore.New(rdb), reservoir.PerHour(1200), opt, patient)
				admitted := int64(0)
				for range 10 {
					for _, l := range all {
						require.True(t, allow(t, l, key, n).Allowed)
						admitted += n
					}
				}
				require.Equal(t, name != "direct", rdb.Del(bg, "{"+key+"}:own").Val() == 1)
				for range 3 {
					for _, l := range all {
						admitted += drain(t, l, key, 1)
					}
				}
				assert.EqualValues(t, 1200, admitted)
			})
		}
	}
}

// survives calls f and returns what it panicked with as an error.
func survives(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// A panic in a hook, in the function of WithLimits or in the store leaves the key, the
// shard and the limiter usable, and does not end the process. Nor does a store that ends
// the goroutine in which it was called, as a failed test does.
func TestPanics(t *testing.T) {
	t.Run("panics", func(t *testing.T) {
		testPanics(t, testnet.Panic, "StoreCall", "ShardState", "Shard", "limits", "sync", "take", "check", "settle")
	})
	t.Run("exits", func(t *testing.T) { testPanics(t, testnet.Exit, "sync", "take", "check", "settle") })
}

func testPanics(t *testing.T, f testnet.Fault, wheres ...string) {
	for _, where := range wheres {
		inBubbles(t, where, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			var on atomic.Bool
			mayPanic := func(here string) {
				if where == here && on.Load() {
					panic(here)
				}
			}
			net := testnet.Far(time.Millisecond)
			l := open(t, sharded{net, func() string { mayPanic("Shard"); return "" }}, reservoir.PerMinute(1000), opt,
				reservoir.WithHooks(reservoir.Hooks{
					StoreCall:  func(reservoir.StoreCall) { mayPanic("StoreCall") },
					ShardState: func(reservoir.ShardState) { mayPanic("ShardState") },
				}),
				reservoir.WithLimits(func(string) reservoir.Limit { mayPanic("limits"); return reservoir.PerMinute(1000) }))
			before := allow(t, l, "k", 3)
			on.Store(true)
			net.Faults(func(c *testnet.Call) testnet.Fault {
				switch where {
				case c.Op:
					return f
				case "ShardState":
					return testnet.LoseRequest
				}
				return testnet.Fine
			})
			for i := range 12 {
				short, cancel := context.WithTimeout(bg, 5*time.Second)
				begin := time.Now()
				_ = survives(func() error { _, err := l.AllowN(short, "k", int64(1+i*13)); return err })
				_ = survives(func() error { _, err := l.Allow(short, fmt.Sprint(i)); return err })
				_ = survives(func() error { _, err := l.Check(short, "k"); return err })
				assert.Less(t, time.Since(begin), time.Second)
				cancel()
			}
			_ = survives(func() error { return l.Refund(bg, "k", before) })
			synctest.Wait()
			on.Store(false)
			repair(t, l, net, "k", 1)
			time.Sleep(toClose)
			assert.True(t, allow(t, l, "new", 1).Allowed)
			long, cancel := context.WithTimeout(bg, 3*time.Minute)
			defer cancel()
			require.NoError(t, waitFor(long, l, "k", 900))
			require.NoError(t, l.Close(long))
		})
	}
}

package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
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
	"github.com/go-reservoir/reservoir/httplimit"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

var bg = context.Background()

// patient rides out a busy machine where a test counts and does not time.
var patient = reservoir.WithFetchTimeout(time.Minute)

// changing is a limit per minute for WithLimits that a test sets. It counts how
// often it is asked.
type changing struct {
	atomic.Int64
	asked atomic.Int64
}

func changingLimit(tokens int64) *changing {
	c := new(changing)
	c.Store(tokens)
	return c
}

func (c *changing) option() reservoir.Option {
	return reservoir.WithLimits(func(string) reservoir.Limit {
		c.asked.Add(1)
		return reservoir.PerMinute(c.Load())
	})
}

// inspected is a store that tests can look into.
type inspected interface {
	backend.Store
	backend.Inspector
}

// Two limits of different lengths on one key: the second gets a clear error, also
// where its policy would admit, and neither charges, shortens nor moves the open
// window.
func TestTwoLimitsOnOneKey(t *testing.T) {
	minute, hour := reservoir.PerMinute(10), reservoir.PerHour(1000)
	stores := map[string]inspected{"memory": memstore.New(), "redis": redisstore.New(redistest.Start(t).Client())}
	how := everyPolicy()
	how["no room"] = reservoir.WithMaxKeys(0)
	for where, store := range stores {
		for name, opt := range how {
			for i, limits := range [][2]reservoir.Limit{{minute, hour}, {hour, minute}, {reservoir.PerHour(5), hour}} {
				key := fmt.Sprint(name, i)
				t.Run(where+"/"+key, func(t *testing.T) {
					first := open(t, store, limits[0], opt, patient)
					second := open(t, store, limits[1], opt, patient, reservoir.WithFailure(reservoir.FailOpen()))
					opened := allow(t, first, key, 2)
					same := limits[0].Window == limits[1].Window
					for n := range int64(20) {
						r, err := second.AllowN(bg, key, 1+n%3)
						if same {
							require.NoError(t, err)
							require.Equal(t, opened.Reset, r.Reset)
							continue
						}
						require.ErrorIs(t, err, reservoir.ErrConflict)
						_, _ = second.Check(bg, key)
						require.Zero(t, second.Stats().Taken)
						require.Equal(t, opened.Reset, allow(t, first, key, 1).Reset)
					}
				})
			}
		}
	}
}

// Whichever of two limits opens a window, no reset is ever moved before it is reached,
// and each limit holds.
func TestTwoLimitsOverTime(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		store := memstore.New()
		limits := []reservoir.Limit{reservoir.PerMinute(10), {Tokens: 25, Window: 7 * time.Minute}}
		var all []*reservoir.Limiter
		for _, l := range limits {
			all = append(all, open(t, store, l, opt, reservoir.WithIdle(time.Second)))
		}
		var reset time.Time
		admitted, conflicts := [2]map[time.Time]int64{{}, {}}, 0
		for round := range 1200 {
			i := (round / 3) % 2
			r, err := all[i].AllowN(bg, "k", 1+int64(round%2))
			if err != nil {
				require.ErrorIs(t, err, reservoir.ErrConflict)
				conflicts++
			} else {
				require.True(t, !time.Now().Before(reset) || r.Reset.Equal(reset), "moved from %v to %v", reset, r.Reset)
				reset = r.Reset
				if r.Allowed {
					admitted[i][reset] += 1 + int64(round%2)
				}
				requireFair(t, r, limits[i])
			}
			time.Sleep(time.Second)
		}
		require.Positive(t, conflicts)
		for i, windows := range admitted {
			for reset, n := range windows {
				assert.LessOrEqual(t, n, limits[i].Tokens, reset)
			}
		}
	})
}

// Limits that have names share a key and nothing else, whatever the names.
func TestNamedLimitsShareNothing(t *testing.T) {
	stores := map[string]inspected{"memory": memstore.New(), "redis": redisstore.New(redistest.Start(t).Client())}
	for where, store := range stores {
		for how, opt := range everyPolicy() {
			t.Run(where+"/"+how, func(t *testing.T) {
				key := "user:" + how
				second := open(t, store, reservoir.Limit{Tokens: 10, Window: 90 * time.Second}, opt, patient, reservoir.WithName("per second"))
				hour := open(t, store, reservoir.PerHour(1000), opt, patient, reservoir.WithName("hour"))
				g := reservoir.NewGroup(second, hour)
				for i := range 12 {
					r, err := g.Allow(bg, key, key)
					require.NoError(t, err)
					require.Equal(t, i < 10, r.Allowed)
				}
				assert.EqualValues(t, 10, drain(t, hour, key, 1)-980)
				assert.EqualValues(t, 1000, used(t, store, "hour\x1f"+key))
			})
		}
	}
	store := memstore.New()
	for _, x := range [][2]string{{"a", "b:c"}, {"a:b", "c"}, {"a%3Ab", "c"}, {"a", "b%3Ac"}, {"A", "b:c"}} {
		l := open(t, store, reservoir.PerHour(7), reservoir.WithName(x[0]))
		assert.EqualValues(t, 7, drain(t, l, x[1], 1), x)
	}
}

// requireFair checks what every Result promises, to the millisecond in which windows
// end.
func requireFair(t *testing.T, r reservoir.Result, l reservoir.Limit) {
	t.Helper()
	left := time.Until(r.Reset)
	require.LessOrEqual(t, r.Remaining, r.Limit)
	require.GreaterOrEqual(t, r.Remaining, int64(0))
	require.LessOrEqual(t, r.RetryAfter, max(left, 0)+time.Millisecond)
	require.LessOrEqual(t, left, l.Window+time.Millisecond)
	require.Equal(t, !r.Allowed, r.RetryAfter > 0)
}

// Remaining is at most the limit, and RetryAfter at most the time until Reset, at any
// moment of a window of any length, while limits change and tokens come back.
func TestResultsAgreeWithThemselves(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, window := range []time.Duration{1500 * time.Millisecond, time.Minute, time.Hour, 24 * time.Hour} {
			inBubble(t, fmt.Sprint(name, "/", window), func(t *testing.T) {
				limit := reservoir.Limit{Tokens: 1000, Window: window}
				var now atomic.Int64 // tokens
				now.Store(limit.Tokens)
				store := memstore.New()
				changes := reservoir.WithLimits(func(string) reservoir.Limit {
					return reservoir.Limit{Tokens: now.Load(), Window: window}
				})
				l, other := open(t, store, limit, opt, changes), open(t, store, limit, opt, changes)
				for round := range 400 {
					for _, l := range []*reservoir.Limiter{l, other} {
						r, err := l.AllowN(bg, "k", int64(1+round%10))
						require.NoError(t, err)
						requireFair(t, r, limit)
						if round%7 == 0 && r.Allowed {
							require.NoError(t, l.Refund(bg, "k", r))
						}
					}
					if round%50 == 49 {
						now.Store([]int64{10, 5000, 1000}[round/50%3])
					}
					time.Sleep(window / 97)
					r, err := l.Check(bg, "k")
					require.NoError(t, err)
					require.LessOrEqual(t, r.Remaining, r.Limit)
					require.LessOrEqual(t, r.RetryAfter, max(time.Until(r.Reset), 0)+time.Millisecond)
				}
			})
		}
	}
}

// A window of whole seconds ends at a whole second, rounded down, so the first window of a
// second may be a few milliseconds long, and twice the limit passes within it and the next.
// Another length lasts.
func TestTwiceTheLimitAroundAReset(t *testing.T) {
	for _, test := range []struct {
		window, left time.Duration
	}{{time.Second, 10 * time.Millisecond}, {time.Minute, 59*time.Second + 10*time.Millisecond}, {999 * time.Millisecond, 999 * time.Millisecond}} {
		inBubble(t, test.window.String(), func(t *testing.T) {
			time.Sleep(990 * time.Millisecond) // since a whole second
			l := open(t, memstore.New(), reservoir.Limit{Tokens: 10, Window: test.window})
			begin := time.Now()
			require.EqualValues(t, 10, drain(t, l, "k", 1))
			r, err := l.Check(bg, "k")
			require.NoError(t, err)
			require.Equal(t, test.left, r.Reset.Sub(begin))
			time.Sleep(test.left + 10*time.Millisecond)
			require.EqualValues(t, 10, drain(t, l, "k", 1))
			require.Less(t, time.Since(begin), test.left+time.Second/20)
		})
	}
}

// RetryAfter is at most the window, also if the window does not end at a whole second and opens
// within a millisecond, whoever answers: a batch, memory, a direct call, Check, FailLocal. Reset
// stays the stored end.
func TestRetryAfterIsAtMostTheWindow(t *testing.T) {
	for _, window := range []time.Duration{time.Millisecond, 1500 * time.Millisecond, time.Second} {
		for name, opts := range map[string][]reservoir.Option{
			"batches": nil, "direct": {reservoir.WithDirect()}, "no memory": {reservoir.WithMaxKeys(0)}, "group": nil,
			"local": {reservoir.WithFailure(reservoir.FailLocal(1))}, // its window is the process' own
		} {
			inBubble(t, fmt.Sprint(name, "/", window), func(t *testing.T) {
				time.Sleep(7*time.Millisecond + 10*time.Microsecond)
				net := testnet.Far(0)
				l := open(t, net, reservoir.Limit{Tokens: 10, Window: window}, opts...)
				if name == "local" {
					net.Always(testnet.Answer(backend.Unavailable, "away", false))
				}
				ask := func() reservoir.Result { return allow(t, l, "k", 1) }
				if name == "group" {
					ask = func() reservoir.Result {
						r, err := reservoir.NewGroup(l).Allow(bg, "k")
						require.NoError(t, err)
						return r.Result
					}
				}
				var reset time.Time
				admitted := 0
				for range 20 {
					r := ask()
					if r.Allowed {
						admitted++
					} else {
						require.Positive(t, r.RetryAfter)
						require.LessOrEqual(t, r.RetryAfter, window)
						require.InDelta(t, time.Until(r.Reset), r.RetryAfter, float64(time.Millisecond))
					}
					require.True(t, reset.IsZero() || reset.Equal(r.Reset))
					reset = r.Reset
				}
				require.Equal(t, 10, admitted)
				if name == "local" {
					return
				}
				r, err := l.Check(bg, "k")
				require.NoError(t, err)
				require.False(t, r.Allowed)
				require.LessOrEqual(t, r.RetryAfter, window)
				require.True(t, reset.Equal(r.Reset))
			})
		}
	}
}

// A window of whole seconds ends at one instant for all: the header of httplimit, the
// end in Redis, GitHub's script and every Result name the same whole second. Of
// another length it ends at the same millisecond.
func TestOneNumberForReset(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client()
	text, err := os.ReadFile("backend/redisstore/testdata/rate.lua")
	require.NoError(t, err)
	script := func(key string, window time.Duration) int64 {
		now := time.Now()
		reply, err := rdb.Eval(bg, string(text), []string{"{" + key + "}"}, 1, now.Add(window).Unix(), float64(now.UnixMicro())/1e6).Int64Slice()
		require.NoError(t, err)
		return reply[1]
	}
	for _, window := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 90*time.Second + time.Millisecond} {
		for name, opt := range everyPolicy() {
			for _, scriptFirst := range []bool{true, false} {
				key := fmt.Sprintf("%s-%v-%t", name, window, scriptFirst)
				t.Run(key, func(t *testing.T) {
					whole := window%time.Second == 0
					l := open(t, redisstore.New(rdb), reservoir.Limit{Tokens: 100, Window: window}, opt, patient)
					if scriptFirst {
						script(key, window)
					}
					r := allow(t, l, key, 1)
					requireFair(t, r, reservoir.Limit{Window: window})
					if whole || scriptFirst {
						require.Equal(t, r.Reset.Unix(), script(key, window))
						require.Equal(t, strconv.FormatInt(r.Reset.Unix(), 10), rdb.Get(bg, "{"+key+"}:exp").Val())
						require.Zero(t, r.Reset.Nanosecond())
						h := httplimit.New(l, httplimit.WithKey(func(*http.Request) string { return key }))
						w := httptest.NewRecorder()
						h(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
						require.Equal(t, strconv.FormatInt(r.Reset.Unix(), 10), w.Header().Get("X-RateLimit-Reset"))
					}
					require.Equal(t, r.Reset, allow(t, l, key, 1).Reset)
				})
			}
		}
	}
}

// A refused key that nobody asks for costs nothing: no store call, and no call of the
// function of WithLimits.
func TestIdleRefusedKeysCostNothing(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, n := range []int64{1, 10} {
			inBubble(t, fmt.Sprint(name, "/", n), func(t *testing.T) {
				limit, net := changingLimit(50), testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerMinute(1), opt, limit.option())
				for i := range 100 {
					require.EqualValues(t, 50, drain(t, l, fmt.Sprint(i), n))
				}
				synctest.Wait()
				asked, calls := limit.asked.Load(), net.Count("")
				time.Sleep(55 * time.Second)
				assert.Equal(t, asked, limit.asked.Load())
				assert.Equal(t, calls, net.Count(""))
			})
		}
	}
}

// A limit that is raised in mid-window is there within a twentieth of it and serves
// larger requests at once; one that is lowered stops grants at once, and what was
// charged may still be spent. Out of range it is the error of the next fetch, and not
// for good.
func TestLimitChangesInMidWindow(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		limit, store := changingLimit(100), memstore.New()
		all := fleet(t, 2, store, reservoir.PerMinute(1), limit.option(), opt, reservoir.WithFailure(reservoir.FailOpen()))
		both := func() int64 { return drain(t, all[0], "k", 1) + drain(t, all[1], "k", 1) }
		look := func(tokens int64) { limit.Store(tokens); time.Sleep(4 * time.Second) } // a twentieth, and more
		assert.EqualValues(t, 100, both())
		look(150)
		assert.EqualValues(t, 50, both())
		_, err := all[0].AllowN(bg, "k", 151)
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		limit.Store(400)
		assert.True(t, allow(t, all[0], "k", 160).Allowed)
		look(-1)
		for _, l := range all {
			_, _ = l.Allow(bg, "k") // who has stock spends it
		}
		_, err = all[0].AllowN(bg, "k", 399)
		require.ErrorIs(t, err, reservoir.ErrLimit)
		look(20)
		before := used(t, store, "k")
		both()
		require.Equal(t, before, used(t, store, "k"))
		r := allow(t, all[0], "k", 1)
		assert.False(t, r.Allowed)
		time.Sleep(time.Until(r.Reset) + time.Second)
		assert.EqualValues(t, 20, both(), "the next window")
	})
}

// A waiter for more than a lowered limit is told, and those behind it are served.
func TestLimitLoweredUnderWaiters(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		limit := changingLimit(100)
		l := open(t, memstore.New(), reservoir.PerMinute(1), limit.option(), opt)
		require.EqualValues(t, 100, drain(t, l, "k", 50))
		large, small := make(chan error, 1), make(chan error, 1)
		go func() { large <- waitFor(bg, l, "k", 50) }()
		synctest.Wait()
		go func() { small <- waitFor(bg, l, "k", 5) }()
		synctest.Wait()
		limit.Store(10)
		assert.ErrorIs(t, <-large, reservoir.ErrExceedsLimit)
		assert.NoError(t, <-small)
	})
}

// Hooks of several WithHooks are called in order, also if one of them panics.
func TestHooksAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []int
		hooks := func(i int) reservoir.Option {
			return reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) {
				assert.NotEmpty(t, c.Op)
				order = append(order, i)
				if i == 2 {
					panic("a fault of the hook")
				}
			}})
		}
		l, err := reservoir.New(memstore.New(), reservoir.PerMinute(1), hooks(1), reservoir.WithHooks(reservoir.Hooks{}), hooks(2), hooks(3), reservoir.WithDirect())
		require.NoError(t, err)
		_, err = l.Allow(t.Context(), "k")
		require.NoError(t, err)
		require.NoError(t, l.Close(t.Context()))
		assert.Equal(t, []int{1, 2, 3}, order)
	})
}

func TestFaultyOptions(t *testing.T) {
	for i, opt := range []reservoir.Option{
		reservoir.WithFailure(reservoir.Failure{}), reservoir.WithFailure(reservoir.FailLocal(-0.1)), reservoir.WithFailure(reservoir.FailLocal(1.1)),
		reservoir.WithStranding(2), reservoir.WithFetchTimeout(0), reservoir.WithFetchTimeout(math.MaxInt64), reservoir.WithMaxKeys(-1), reservoir.WithIdle(0), reservoir.WithBatch(reservoir.Fixed(0)),
	} {
		_, err := reservoir.New(memstore.New(), reservoir.PerMinute(1), opt)
		assert.ErrorIs(t, err, reservoir.ErrOption, i)
	}
	_, err := reservoir.New(nil, reservoir.PerMinute(1))
	require.ErrorIs(t, err, reservoir.ErrOption)
	_, err = reservoir.New(memstore.New(), reservoir.Limit{Tokens: 1})
	require.ErrorIs(t, err, reservoir.ErrLimit)
}

// Check charges nothing, and counts the stock at hand as there to be had.
func TestCheck(t *testing.T) {
	for name, opt := range everyPolicy() {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			l := open(t, store, reservoir.PerHour(100), opt)
			r, err := l.Check(bg, "k")
			require.NoError(t, err)
			require.Equal(t, reservoir.Result{Allowed: true, Limit: 100, Remaining: 100, Source: reservoir.Direct}, r)
			allow(t, l, "k", 60)
			r, err = l.Check(bg, "k")
			require.NoError(t, err)
			require.EqualValues(t, 40, r.Remaining)
			require.EqualValues(t, 40, drain(t, l, "k", 1))
			r, err = l.Check(bg, "k")
			require.NoError(t, err)
			require.False(t, r.Allowed)
			require.Positive(t, r.RetryAfter)
			_, err = l.Check(bg, "")
			require.ErrorIs(t, err, reservoir.ErrKey)
		})
	}
}

// A key that loses its limit while its shard is away does not keep it there.
func TestProbeOfAKeyWithoutLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net, limit := testnet.New(memstore.New(), time.Millisecond), changingLimit(100)
		l := open(t, net, reservoir.PerMinute(100), limit.option())
		breakdown(t, l, net, testnet.LoseRequest)
		limit.Store(-1)
		net.Faults(nil)
		time.Sleep(time.Second)
		_, _ = l.Allow(bg, "one more")
		time.Sleep(toClose)
		_, err := l.Allow(bg, "k")
		assert.ErrorIs(t, err, reservoir.ErrLimit)
		limit.Store(100)
		assert.True(t, allow(t, l, "k", 1).Allowed)
	})
}

// A probe knows no limit of a key's own: that its window has another length is no error.
func TestProbeOfAKeyWithAnotherLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes, conflicts atomic.Int64
		hooks := reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) {
			if c.Cause == "reopen" && c.Err == nil {
				probes.Add(1)
			}
			if errors.Is(c.Err, reservoir.ErrConflict) {
				conflicts.Add(1)
			}
		}}
		net := testnet.Far(time.Millisecond)
		l := open(t, net, reservoir.PerMinute(100), reservoir.WithHooks(hooks), reservoir.WithBatch(reservoir.Fixed(1)),
			reservoir.WithLimits(func(string) reservoir.Limit { return reservoir.PerHour(100) }))
		allow(t, l, "k", 1)
		net.Always(testnet.LoseRequest)
		for range 10 {
			_, _ = l.Allow(bg, "k")
		}
		net.Faults(nil)
		time.Sleep(5 * time.Second)
		assert.True(t, allow(t, l, "k", 1).Allowed)
		assert.Positive(t, probes.Load())
		assert.Zero(t, conflicts.Load())
	})
}

// Failures that are not in a row open no circuit.
func TestSuccessesKeepTheCircuitClosed(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net, heard, n := testnet.Far(time.Millisecond), new(states), 0
		l := open(t, net, reservoir.PerMinute(100), opt, heard.option())
		net.Faults(func(*testnet.Call) testnet.Fault {
			n++
			return []testnet.Fault{testnet.LoseRequest, testnet.LoseRequest, testnet.LoseReply, testnet.Fine}[n%4]
		})
		for i := range 100 {
			_, _ = l.Allow(bg, fmt.Sprint(i))
		}
		assert.Empty(t, heard.told())
	})
}

// A request that no limit known so far can serve makes a change known. Those in line, and
// those who are refused, hear of it at once.
func TestChangedLimitWakes(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		limit := changingLimit(10)
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), opt, limit.option())
		require.True(t, allow(t, l, "k", 6).Allowed)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- waitFor(bg, l, "k", 9) }()
		time.Sleep(10 * time.Millisecond)
		go func() { second <- waitFor(bg, l, "k", 8) }()
		time.Sleep(10 * time.Millisecond)
		require.False(t, allow(t, l, "k", 5).Allowed)
		begin := time.Now()
		limit.Store(20)
		_, err := l.AllowN(bg, "k", 50)
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		require.NoError(t, <-first, "14 are left")
		require.Less(t, time.Since(begin), 100*time.Millisecond)
		limit.Store(7)
		_, err = l.AllowN(bg, "k", 50)
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		require.ErrorIs(t, <-second, reservoir.ErrExceedsLimit)
		require.Less(t, time.Since(begin), 200*time.Millisecond)
	})
}

// Requests for more than is left are refused from memory while the store's rest stays what it
// is: only probes ask again, and no caller waits for one.
func TestRefusalsOfLargeRequests(t *testing.T) {
	for name, opt := range batches() {
		inBubble(t, name, func(t *testing.T) {
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
}

// A direct call obeys a limit that has become special before the call is made.
func TestDirectCallOfASpecialLimit(t *testing.T) {
	for what, limit := range map[string]reservoir.Limit{"blocked": {}, "unlimited": reservoir.Unlimited()} {
		inBubble(t, what, func(t *testing.T) {
			now := reservoir.PerMinute(10)
			net := testnet.Far(rtt / 2)
			l := open(t, net, now, reservoir.WithDirect(), reservoir.WithLimits(func(string) reservoir.Limit { return now }))
			require.True(t, allow(t, l, "k", 1).Allowed)
			now = limit
			for range 20 {
				assert.Equal(t, what == "unlimited", allow(t, l, "k", 1).Allowed)
			}
			assert.EqualValues(t, 1, used(t, net, "k"))
		})
	}
}

// Bounds beyond any limit are no bounds, and do not overflow.
func TestHugeBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(100_000), reservoir.WithBatch(reservoir.Adaptive(1, math.MaxInt64)))
		for range 20_000 {
			require.True(t, allow(t, l, "k", 1).Allowed)
			time.Sleep(time.Millisecond)
		}
		assert.Positive(t, l.Stats().Prefetches)
	})
}

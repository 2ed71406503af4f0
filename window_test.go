package reservoir_test

import (
	"context"
	"fmt"
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

// Limits, the windows in which they count, and their changes: by WithLimits, by the calendar,
// by Reset.

// blockable is a limit per minute for WithLimits that a test blocks. It records when it
// first returned the block.
type blockable struct {
	tokens   int64
	block    atomic.Bool
	slow     atomic.Int64 // how long an answer takes after it was decided
	returned atomic.Int64 // time, Unix ns; 0 = not yet
}

func (b *blockable) option() reservoir.Option {
	return reservoir.WithLimits(func(string) reservoir.Limit {
		limit := reservoir.PerMinute(b.tokens)
		if b.block.Load() {
			limit = reservoir.Block()
		}
		time.Sleep(time.Duration(b.slow.Load()))
		if limit == reservoir.Block() {
			b.returned.CompareAndSwap(0, time.Now().UnixNano())
		}
		return limit
	})
}

func at(zone *time.Location, month time.Month, day, hour int) time.Time {
	return time.Date(2000, month, day, hour, 0, 0, 0, zone)
}

// Limits of one key share a window, to the token, if they differ in tokens only. Otherwise they share nothing, and neither shortens
// nor moves the other's window.
func TestLimitsOfOneKey(t *testing.T) {
	minute, hour, day := reservoir.PerMinute(10), reservoir.PerHour(1000), reservoir.PerDay(7, nil)
	stores := map[string]inspected{"memory": memstore.New(), "redis": redisstore.New(redistest.Start(t).Client())}
	how := everyPolicy()
	how["no room"] = reservoir.WithMaxKeys(0)
	for where, store := range stores {
		for name, opt := range how {
			for i, limits := range [][2]reservoir.Limit{{minute, hour}, {hour, minute}, {day, {Tokens: 9, Window: 24 * time.Hour}}, {minute, minute.Rolling()}, {minute.Rolling(), minute}, {reservoir.PerHour(5), hour}} {
				key := fmt.Sprint(name, i)
				t.Run(where+"/"+key, func(t *testing.T) {
					first, second := open(t, store, limits[0], opt, patient), open(t, store, limits[1], opt, patient)
					opened := allow(t, first, key, 2)
					if backend.Limit(limits[0]).Counter() == backend.Limit(limits[1]).Counter() {
						require.Equal(t, opened.Reset, allow(t, second, key, 1).Reset)
						more := drain(t, second, key, 1)
						few := drain(t, first, key, 1)
						require.LessOrEqual(t, few, limits[0].Tokens-2)
						require.Equal(t, limits[1].Tokens, 3+more+few)
						return
					}
					require.Equal(t, limits[1].Tokens, drain(t, second, key, max(limits[1].Tokens/10, 1)))
					if again := allow(t, first, key, 1); !limits[0].Rolls {
						require.Equal(t, opened.Reset, again.Reset)
					}
					require.Equal(t, limits[0].Tokens-3, drain(t, first, key, 1))
					for _, l := range limits {
						require.Equal(t, l.Tokens, usedOf(t, store, key, l))
					}
				})
			}
		}
	}
}

// A network slower than the window is an error, not an endless loop.
func TestNetworkSlowerThanWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(20 * time.Millisecond)
		l := open(t, net, reservoir.Limit{Tokens: 100, Window: 10 * time.Millisecond}, reservoir.WithFetchTimeout(time.Second))
		_, err := l.Allow(context.Background(), "k")
		assert.Error(t, err)
		assert.LessOrEqual(t, net.Count("sync"), 5)
		assert.Zero(t, l.Stats().Spent)
	})
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
		reply, err := rdb.Eval(bg, string(text), []string{key}, 1, now.Add(window).Unix(), float64(now.UnixMicro())/1e6).Int64Slice()
		require.NoError(t, err)
		return reply[1]
	}
	for _, window := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour, 90*time.Second + time.Millisecond} {
		for name, opt := range everyPolicy() {
			for _, scriptFirst := range []bool{true, false} {
				key := fmt.Sprintf("%s-%v-%t", name, window, scriptFirst)
				t.Run(key, func(t *testing.T) {
					whole := window%time.Second == 0
					limit := reservoir.Limit{Tokens: 100, Window: window}
					l := open(t, redisstore.New(rdb), limit, opt, patient)
					name := "{" + key + "}:" + backend.Limit(limit).Counter()
					if scriptFirst {
						script(name, window)
					}
					r := allow(t, l, key, 1)
					if whole || scriptFirst {
						require.Equal(t, r.Reset.Unix(), script(name, window))
						require.Equal(t, strconv.FormatInt(r.Reset.Unix(), 10), rdb.Get(bg, name+":exp").Val())
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

// A limit that is raised in mid-window is there within a twentieth of it and serves
// larger requests at once; one that is lowered stops grants at once, and what was
// charged may still be spent. Out of range it is the error of the next fetch, and not
// for good.
func TestLimitChangesInMidWindow(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		limit, store := planned(reservoir.PerMinute(100)), memstore.New()
		all := fleet(t, 2, store, reservoir.PerMinute(1), limit.option(), opt, reservoir.WithFailOpen())
		both := func() int64 { return drain(t, all[0], "k", 1) + drain(t, all[1], "k", 1) }
		look := func(tokens int64) { limit.set(reservoir.PerMinute(tokens)); time.Sleep(4 * time.Second) } // a twentieth, and more
		assert.EqualValues(t, 100, both())
		look(150)
		assert.EqualValues(t, 50, both())
		_, err := all[0].AllowN(bg, "k", 151)
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		limit.set(reservoir.PerMinute(400))
		assert.True(t, allow(t, all[0], "k", 160).Allowed)
		look(-1)
		for _, l := range all {
			_, _ = l.Allow(bg, "k") // a process with stock spends it
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

// A request that no limit known so far can serve makes a change known. Those in line, and
// those who are refused, hear of it at once.
func TestChangedLimitWakes(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		limit := planned(reservoir.PerMinute(10))
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), opt, limit.option())
		require.True(t, allow(t, l, "k", 6).Allowed)
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- waitFor(bg, l, "k", 9) }()
		time.Sleep(10 * time.Millisecond)
		go func() { second <- waitFor(bg, l, "k", 8) }()
		time.Sleep(10 * time.Millisecond)
		require.False(t, allow(t, l, "k", 5).Allowed)
		begin := time.Now()
		limit.set(reservoir.PerMinute(20))
		_, err := l.AllowN(bg, "k", 50)
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		require.NoError(t, <-first, "14 are left")
		require.Less(t, time.Since(begin), 100*time.Millisecond)
		limit.set(reservoir.PerMinute(7))
		_, err = l.AllowN(bg, "k", 50)
		require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		require.ErrorIs(t, <-second, reservoir.ErrExceedsLimit)
		require.Less(t, time.Since(begin), 200*time.Millisecond)
	})
}

// A limit of nothing blocks, and Unlimited passes, without a store call, whatever the key
// was before; and back.
func TestPlans(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		net := testnet.Far(time.Millisecond)
		limit := planned(reservoir.PerMinute(10))
		l := open(t, net, reservoir.Block(), opt, limit.option())
		g := reservoir.NewGroup(l, l)
		for _, key := range []string{"new", "used"} {
			if limit.set(reservoir.PerMinute(10)); key == "used" {
				drain(t, l, key, 3)
				waiting := make(chan error)
				go func() { waiting <- waitFor(bg, l, key, 9) }()
				synctest.Wait()
				time.AfterFunc(time.Second, func() { limit.set(reservoir.Unlimited()) })
				require.NoError(t, <-waiting)
			}
			limit.set(reservoir.Unlimited())
			time.Sleep(5 * time.Second)
			allow(t, l, key, 1)
			time.Sleep(time.Second)
			calls := net.Count("")
			for _, n := range []int64{1, 1000, 1 << 50} {
				r := allow(t, l, key, n)
				assert.True(t, r.Allowed && r.Limit == reservoir.Unlimited().Tokens)
				require.NoError(t, l.Settle(bg, r, 5))
				require.NoError(t, waitFor(bg, l, key, n))
			}
			r, err := g.Allow(bg, key, key)
			assert.True(t, err == nil && r.Allowed && r.Limit == reservoir.Unlimited().Tokens)
			limit.set(reservoir.Block())
			for range 10 {
				assert.Equal(t, reservoir.Result{}, allow(t, l, key, 1), key)
			}
			c, err := l.Check(bg, key)
			assert.True(t, err == nil && !c.Allowed)
			short, cancel := context.WithTimeout(bg, time.Second/2)
			assert.ErrorIs(t, waitFor(short, l, key, 1), context.DeadlineExceeded)
			cancel()
			assert.Equal(t, calls, net.Count(""), key)
			limit.set(reservoir.PerMinute(20))
			require.NoError(t, waitFor(bg, l, key, 11))
		}
		balance(t, l)
	})
	odd := open(t, testnet.Far(0), reservoir.Unlimited(), reservoir.WithLimits(func(key string) reservoir.Limit {
		if key == "panic" {
			panic("a bad plan")
		}
		return reservoir.Block()
	}))
	assert.Equal(t, reservoir.Result{}, allow(t, odd, "k", 1), "no waiting helps")
	assert.Panics(t, func() { _, _ = reservoir.NewGroup(odd, odd).Allow(bg, "panic", "panic") })
	_, err := reservoir.New(testnet.Far(0), reservoir.PerMinute(0))
	assert.ErrorIs(t, err, reservoir.ErrLimit, "nobody wants that")
	_, err = reservoir.New(testnet.Far(0), reservoir.Limit{})
	assert.ErrorIs(t, err, reservoir.ErrLimit)
	_, err = reservoir.New(testnet.Far(0), reservoir.Unlimited())
	assert.NoError(t, err)
}

// From the moment when WithLimits has returned a block, whichever call asked, no stock is
// admitted, and the stock goes back.
func TestBlockCountsFromItsReturn(t *testing.T) {
	bySettle := func(l *reservoir.Limiter, r reservoir.Result) { _ = l.Settle(bg, r, 0) }
	for what, ask := range map[string]func(l *reservoir.Limiter, r reservoir.Result){
		"nothing":       func(*reservoir.Limiter, reservoir.Result) {},
		"check":         func(l *reservoir.Limiter, _ reservoir.Result) { _, _ = l.Check(bg, "k") },
		"reset":         func(l *reservoir.Limiter, _ reservoir.Result) { _ = l.Reset(bg, "k") },
		"large request": func(l *reservoir.Limiter, _ reservoir.Result) { _, _ = l.AllowN(bg, "k", 600) },
		"settle":        bySettle,
		"check, then settle": func(l *reservoir.Limiter, r reservoir.Result) {
			_, _ = l.Check(bg, "k")
			bySettle(l, r)
		},
	} {
		for _, slow := range []time.Duration{0, 300 * time.Millisecond} {
			inBubbles(t, fmt.Sprint(what, "/", slow), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
				limit, net := &blockable{tokens: 500}, testnet.Far(time.Millisecond)
				l := open(t, net, reservoir.PerMinute(500), opt, limit.option(), patient)
				admitted := func() int64 {
					for n := int64(0); ; n++ {
						if !allow(t, l, "k", 1).Allowed {
							return n
						}
						time.Sleep(20 * time.Millisecond)
					}
				}
				first := allow(t, l, "k", 10)
				for range 100 {
					require.True(t, allow(t, l, "k", 1).Allowed)
					time.Sleep(20 * time.Millisecond)
				}
				limit.slow.Store(int64(slow))
				limit.block.Store(true)
				ask(l, first)
				if limit.returned.Load() != 0 {
					require.Zero(t, admitted())
				}
				admitted()
				time.Sleep(time.Second)
				require.Zero(t, l.Stats().Held)
			})
		}
	}
}

// A function of WithLimits that returns another limit each time keeps nobody busy: an Allow is
// decided by one of them, and a Wait ends with its context.
func TestLimitsThatAlternate(t *testing.T) {
	shadow := reservoir.PerMinute(10)
	shadow.Shadow = true
	for what, limits := range map[string][]reservoir.Limit{
		"blocked":          {reservoir.PerMinute(10), {}},
		"unlimited":        {reservoir.PerMinute(10), reservoir.Unlimited()},
		"both":             {{}, reservoir.PerMinute(10), reservoir.Unlimited()},
		"shadow":           {reservoir.PerMinute(10), shadow},
		"tokens":           {reservoir.PerMinute(5), reservoir.PerMinute(10)},
		"tokens in shadow": {{Tokens: 5, Window: time.Minute, Shadow: true}, reservoir.PerMinute(10)},
		"lengths":          {reservoir.PerMinute(10), reservoir.PerHour(10), reservoir.PerDay(10, nil)},
		"out of range":     {reservoir.PerMinute(10), reservoir.PerMinute(-1)},
	} {
		how := everyPolicy()
		how["no room"] = reservoir.WithMaxKeys(0)
		inBubbles(t, what, how, func(t *testing.T, name string, opt reservoir.Option) {
			for _, n := range []int64{1, 7} {
				for phase := range limits {
					var asked atomic.Int64
					asked.Store(int64(phase))
					l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(10), opt, reservoir.WithLimits(func(string) reservoir.Limit {
						n := asked.Add(1)
						if n > 50_000 { // in a bubble, a loop without a pause would not end
							panic("asked too often")
						}
						return limits[n%int64(len(limits))]
					}))
					for range 16 {
						begin := time.Now()
						_, _ = l.AllowN(bg, "k", n)
						require.Less(t, time.Since(begin), time.Second)
						ctx, cancel := context.WithTimeout(bg, time.Second)
						_ = waitFor(ctx, l, "k", n)
						require.LessOrEqual(t, time.Since(begin), 3*time.Second)
						cancel()
						time.Sleep(100 * time.Millisecond)
					}
					synctest.Wait()
					require.Less(t, asked.Load(), int64(10_000))
				}
			}
		})
	}
}

// In shadow what a limit refuses passes, and says so. Nobody waits, and what passes is not
// charged.
func TestShadow(t *testing.T) {
	for _, perKey := range []bool{false, true} {
		inBubbles(t, fmt.Sprint("key=", perKey), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			limit, opts, net := inShadow(reservoir.PerMinute(10)), []reservoir.Option{opt}, testnet.Far(time.Millisecond)
			if perKey {
				limit, opts = reservoir.PerMinute(10), append(opts, reservoir.WithLimits(func(string) reservoir.Limit {
					return inShadow(reservoir.PerMinute(10))
				}))
			}
			l := open(t, net, limit, opts...)
			strict := open(t, net, reservoir.PerMinute(1000), opt, reservoir.WithName("strict"))
			g, key := reservoir.NewGroup(l, strict), l.Key("k")
			var shadowed int64
			for range 20 {
				for _, ask := range []func() (reservoir.Result, error){
					func() (reservoir.Result, error) { return l.Allow(bg, "k") },
					func() (reservoir.Result, error) { return key.Allow(bg) },
					func() (reservoir.Result, error) { return l.Wait(bg, "k") },
					func() (reservoir.Result, error) { return l.AllowN(bg, "k", 11) },
					func() (reservoir.Result, error) { r, err := g.Allow(bg, "k", "k"); return r.Result, err },
				} {
					r, err := ask()
					require.NoError(t, err)
					require.True(t, r.Allowed)
					require.Zero(t, r.RetryAfter)
					if r.Shadowed {
						shadowed++
						require.NoError(t, l.Settle(bg, r, 3))
					}
				}
			}
			s := l.Stats()
			assert.EqualValues(t, 10, s.Spent-s.Refunded)
			assert.EqualValues(t, 20, strict.Stats().Spent-strict.Stats().Refunded, "another limit of the group is charged")
			assert.GreaterOrEqual(t, s.Shadowed, shadowed)
			assert.Greater(t, shadowed, int64(60))
			assert.Less(t, time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), 10*time.Second, "nobody waited")
		})
	}
}

// A waiter is never refused, also while a limit is tried in shadow at first, and then is
// in earnest or blocks.
func TestWaitWhenShadowEnds(t *testing.T) {
	for what, to := range map[string]reservoir.Limit{"limit": reservoir.PerMinute(10), "blocked": reservoir.Block()} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
			limit := planned(reservoir.Limit{Tokens: 10, Window: time.Minute, Shadow: true})
			l := open(t, testnet.Far(time.Millisecond), reservoir.PerMinute(1), opt, limit.option())
			require.True(t, allow(t, l, "k", 10).Allowed)
			require.True(t, allow(t, l, "k", 10).Shadowed)
			limit.set(to)
			for range 100 {
				ctx, cancel := context.WithTimeout(bg, time.Second)
				r, err := l.WaitN(ctx, "k", 10)
				cancel()
				require.True(t, err != nil || r.Allowed, "%+v", r)
				if err == nil && !r.Shadowed {
					return
				}
				time.Sleep(time.Second)
			}
			require.Equal(t, reservoir.Block(), to, "it is served in the end")
		})
	}
}

// A shadowed request for more than the limit tells the same window as all others.
func TestShadowedLargeRequest(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		l := open(t, testnet.Far(time.Millisecond), inShadow(reservoir.PerMinute(100)), opt)
		was := allow(t, l, "k", 10)
		time.Sleep(10 * time.Second)
		r := allow(t, l, "k", 101)
		assert.True(t, r.Allowed && r.Shadowed)
		assert.True(t, was.Reset.Equal(r.Reset), "%v, not %v", was.Reset, r.Reset)
		assert.Equal(t, was.Remaining, r.Remaining)
	})
}

// A caller in line for a limit passes when the limit goes into shadow.
func TestWaitWhenShadowBegins(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		var shadow atomic.Bool
		l := open(t, testnet.Far(time.Millisecond), reservoir.PerDay(1, nil), opt, reservoir.WithLimits(func(string) reservoir.Limit {
			return reservoir.Limit{Tokens: 1, Window: 24 * time.Hour, Shadow: shadow.Load()}
		}))
		first := allow(t, l, "k", 1)
		time.AfterFunc(time.Second, func() { shadow.Store(true) })
		r, err := l.Wait(bg, "k")
		require.NoError(t, err)
		assert.True(t, r.Shadowed)
		assert.True(t, time.Now().Before(first.Reset))
	})
}

// A plan that changes to another length or kind counts in windows of its own from the moment when a process hears of it. Who goes
// back finds the old count, so whoever toggles between two plans gains one limit of each and nothing beyond that, and
// loses nothing either, though what is held when the plan changes must go back first.
func TestPlanOfAnotherLength(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin") // clocks change on 26 March 2000
	require.NoError(t, err)
	for what, c := range map[string]struct {
		before, after reservoir.Limit
		change        time.Time
		ends          time.Time // the window after the change; zero if it is by no calendar
	}{
		"day to month":                        {reservoir.PerDay(200, nil), reservoir.PerMonth(1000, nil), at(time.UTC, 4, 15, 13), at(time.UTC, 5, 1, 0)},
		"day to month in which clocks change": {reservoir.PerDay(200, zone), reservoir.PerMonth(100, zone), at(zone, 3, 15, 13), at(zone, 4, 1, 0)},
		"month to day":                        {reservoir.PerMonth(1000, nil), reservoir.PerDay(20, nil), at(time.UTC, 4, 15, 13), at(time.UTC, 4, 16, 0)},
		"day to hour":                         {reservoir.PerDay(1000, nil), reservoir.PerHour(100), at(time.UTC, 1, 2, 13), time.Time{}},
		"hour to minute":                      {reservoir.PerHour(100), reservoir.PerMinute(1000), at(time.UTC, 1, 2, 13), time.Time{}},
		"another zone":                        {reservoir.PerDay(100, nil), reservoir.PerDay(90, zone), at(time.UTC, 1, 2, 13), at(zone, 1, 3, 0)},
		"to rolling":                          {reservoir.PerHour(100), reservoir.PerHour(200).Rolling(), at(time.UTC, 1, 2, 13), time.Time{}},
		"to fixed":                            {reservoir.PerHour(100).Rolling(), reservoir.PerHour(200), at(time.UTC, 1, 2, 13), time.Time{}},
	} {
		inBubbles(t, what, everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
			net, limit := testnet.Far(time.Millisecond), planned(c.before)
			time.Sleep(time.Until(c.change))
			all := fleet(t, 3, net, reservoir.PerMinute(1), limit.option(), opt)
			admitted := map[reservoir.Limit]int64{}
			ask := func(l *reservoir.Limiter) (r reservoir.Result) {
				if r = allow(t, l, "k", 1); r.Allowed {
					admitted[*limit.limit.Load()]++
				}
				return r
			}
			was := ask(all[0])
			ask(all[1]) // the third does not know the key
			change := func(to reservoir.Limit) {
				limit.set(to)
				require.NoError(t, all[0].Refresh(bg, "k"))
				time.Sleep(20 * time.Millisecond)
			}
			change(c.after)
			for _, l := range all {
				r := ask(l)
				require.True(t, r.Allowed)
				require.Equal(t, c.after.Tokens, r.Limit)
				if c.ends.IsZero() {
					require.LessOrEqual(t, time.Until(r.Reset), c.after.Window*31/20)
				} else {
					require.True(t, c.ends.Equal(r.Reset), "the window ends at %v", r.Reset)
				}
			}
			for i := range 30 {
				to := []reservoir.Limit{c.before, c.after}[i%2]
				change(to)
				for _, l := range all {
					if r := ask(l); !to.Rolls && to == c.before && !c.before.Rolls {
						require.True(t, was.Reset.Equal(r.Reset), "the old window is found again")
					}
				}
			}
			for _, to := range []reservoir.Limit{c.before, c.after} {
				change(to)
				for _, l := range all {
					for ask(l).Allowed {
					}
				}
				require.Equal(t, to.Tokens, admitted[to])
				require.Equal(t, to.Tokens, usedOf(t, net, "k", to))
			}
			for _, l := range all {
				balance(t, l)
			}
		})
	}
}

// Windows by the calendar end at its midnights by the store's clock, for all processes, whatever came before and whatever their own
// clocks show; probes, refusals and outages know the real length.
func TestCalendarWindows(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	for what, c := range map[string]struct {
		limit reservoir.Limit
		begin time.Time
		ends  []time.Time
	}{
		"day":   {reservoir.PerDay(50, zone), at(zone, 3, 24, 13), []time.Time{at(zone, 3, 25, 0), at(zone, 3, 26, 0), at(zone, 3, 27, 0), at(zone, 3, 28, 0)}},
		"week":  {reservoir.PerWeek(50, nil), at(time.UTC, 2, 23, 1), []time.Time{at(time.UTC, 2, 28, 0), at(time.UTC, 3, 6, 0), at(time.UTC, 3, 13, 0)}},
		"month": {reservoir.PerMonth(50, zone), at(zone, 1, 30, 7), []time.Time{at(zone, 2, 1, 0), at(zone, 3, 1, 0), at(zone, 4, 1, 0), at(zone, 5, 1, 0)}},
	} {
		for _, ahead := range []time.Duration{0, 30 * time.Minute, -90 * time.Second} { // of the store's clock
			inBubbles(t, fmt.Sprint(what, "/", ahead), everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
				time.Sleep(time.Until(c.begin))
				net := testnet.Far(time.Millisecond)
				net.Skew(ahead)
				all := fleet(t, 3, net, c.limit, opt)
				for i, end := range c.ends {
					for k := range 30 {
						r := allow(t, all[(i+k)%3], "k", 3)
						require.True(t, end.Equal(r.Reset), "%v, want %v", r.Reset, end)
						require.True(t, r.Allowed || k > 0, "nothing was used in this period")
					}
					r := allow(t, all[i%3], "other "+what, 1)
					require.True(t, end.Equal(r.Reset))
					require.LessOrEqual(t, used(t, net, "k"), int64(50))
					require.GreaterOrEqual(t, used(t, net, "k"), int64(48))
					left := time.Until(end) - ahead
					if r = allow(t, all[0], "k", 50); !r.Allowed && ahead == 0 {
						require.InDelta(t, left, r.RetryAfter, float64(2*time.Minute))
					}
					time.Sleep(left + time.Duration(1+i)*time.Second)
				}
				for _, l := range all {
					balance(t, l)
				}
			})
		}
	}
}

// TestRollingCheck: RetryAfter of a Check is true, also where it is longer than the window.
func TestRollingCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, other := open(t, store, reservoir.PerMinute(10).Rolling(), reservoir.WithDirect()), open(t, store, reservoir.PerMinute(10).Rolling(), reservoir.WithDirect())
		require.Equal(t, time.Minute, allow(t, l, "k", 10).Window)
		r, err := l.Check(bg, "k")
		require.NoError(t, err)
		require.Greater(t, r.RetryAfter, time.Minute)
		require.GreaterOrEqual(t, allow(t, l, "k", 1).RetryAfter, r.RetryAfter, "processes do not all ask at once")
		time.Sleep(r.RetryAfter - time.Millisecond)
		require.False(t, allow(t, l, "k", 1).Allowed)
		time.Sleep(time.Millisecond)
		require.True(t, allow(t, other, "k", 1).Allowed)
	})
}

// TestZoneThatIsLoadedEachTime: a limit whose time zone is another pointer each time is the same one.
func TestZoneThatIsLoadedEachTime(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, _ string, opt reservoir.Option) {
		net, asked := testnet.Far(time.Millisecond), 0
		l := open(t, net, reservoir.Block(), opt, reservoir.WithLimits(func(string) reservoir.Limit {
			zone, err := time.LoadLocation("Europe/Berlin")
			assert.NoError(t, err)
			asked++
			return reservoir.PerDay(100, zone)
		}))
		require.EqualValues(t, 100, drain(t, l, "k", 1))
		synctest.Wait()
		calls := net.Count("")
		for range 1000 {
			require.False(t, allow(t, l, "k", 1).Allowed)
			time.Sleep(10 * time.Second)
		}
		assert.LessOrEqual(t, net.Count("")-calls, 10, "probes")
		assert.Greater(t, asked, 2)
		assert.EqualValues(t, 100, l.Stats().Spent)
		require.Zero(t, reservoir.Leavers(l))
		for _, s := range l.Keys() {
			assert.EqualValues(t, 100, s.Spent)
		}
	})
}

// However often a process forgets a key and uses it again in one window, the store keeps one account of it.
func TestAccountsOfAMonth(t *testing.T) {
	inBubbles(t, "", batches(), func(t *testing.T, _ string, opt reservoir.Option) {
		const visits = 300
		net, limit := testnet.Far(time.Millisecond), reservoir.PerMonth(10_000, nil)
		l := open(t, net, limit, opt, reservoir.WithIdle(time.Minute))
		time.Sleep(time.Hour) // away from the month's end
		for range visits {
			require.True(t, allow(t, l, "k", 1).Allowed)
			time.Sleep(10 * time.Minute)
			require.Zero(t, l.Stats().Keys, "it was forgotten")
		}
		counters, err := net.Inspect(bg, "k")
		require.NoError(t, err)
		require.Len(t, counters[0].Clients, 1)
		require.EqualValues(t, visits, counters[0].Used)
	})
}

package reservoir

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
)

func TestNewRefusesWhatMakesNoSense(t *testing.T) {
	ok := PerMinute(10)
	for _, c := range []struct {
		name  string
		limit Limit
		opt   Option
		err   error
	}{
		{"no limit", Limit{}, nil, ErrLimit},
		{"no tokens", Limit{Tokens: 0, Window: time.Second}, nil, ErrLimit},
		{"negative tokens", Limit{Tokens: -1, Window: time.Second}, nil, ErrLimit},
		{"too many tokens", Limit{Tokens: 1 << 53, Window: time.Second}, nil, ErrLimit},
		{"no window", Limit{Tokens: 1, Window: 0}, nil, ErrLimit},
		{"short window", Limit{Tokens: 1, Window: time.Microsecond}, nil, ErrLimit},
		{"broken window", Limit{Tokens: 1, Window: time.Second + 1}, nil, ErrLimit},
		{"long window", Limit{Tokens: 1, Window: 367 * 24 * time.Hour}, nil, ErrLimit},
		{"batch of none", ok, WithBatch(Fixed(0)), ErrOption},
		{"zero sizing", ok, WithBatch(Sizing{}), ErrOption},
		{"ladder upside down", ok, WithBatch(Ladder(9, 3)), ErrOption},
		{"ladder without end", ok, WithBatch(Ladder(1, 0)), ErrOption},
		{"stranding above all", ok, WithStranding(1.1), ErrOption},
		{"stranding below none", ok, WithStranding(-0.1), ErrOption},
		{"stranding not a number", ok, WithStranding(math.NaN()), ErrOption},
		{"no time to fetch", ok, WithFetchTimeout(0), ErrOption},
		{"fewer than no keys", ok, WithMaxKeys(-1), ErrOption},
		{"no idle time", ok, WithIdle(0), ErrOption},
		{"no failure policy", ok, WithFailure(Failure{}), ErrOption},
	} {
		t.Run(c.name, func(t *testing.T) {
			var opts []Option
			if c.opt != nil {
				opts = append(opts, c.opt)
			}
			_, err := New(memstore.New(), c.limit, opts...)
			require.ErrorIs(t, err, c.err)
		})
	}
	_, err := New(nil, ok)
	require.ErrorIs(t, err, ErrOption)
	_, err = New(broken{}, ok)
	require.ErrorIs(t, err, errCut)
}

// broken is a store whose set-up is wrong.
type broken struct{ backend.Store }

func (broken) Err() error { return errCut }

func TestBadRequestsNeverReachTheStore(t *testing.T) {
	ctx := context.Background()
	net := overNetwork(memstore.New(), 0)
	l := open(t, net, PerMinute(10), WithLimits(func(key string) Limit {
		if key == "bad limit" {
			return Limit{}
		}
		return PerMinute(10)
	}))
	for _, c := range []struct {
		key string
		n   int64
		err error
	}{
		{"", 1, ErrKey},
		{strings.Repeat("x", backend.MaxKeyLen+1), 1, ErrKey},
		{strings.Repeat("x", 1<<20), 1, ErrKey},
		{"k", 0, ErrTokens},
		{"k", -5, ErrTokens},
		{"k", math.MinInt64, ErrTokens},
		{"k", 11, ErrExceedsLimit},
		{"k", math.MaxInt64, ErrExceedsLimit},
		{"bad limit", 1, ErrLimit},
	} {
		_, err := l.AllowN(ctx, c.key, c.n)
		assert.ErrorIs(t, err, c.err)
		assert.ErrorIs(t, l.WaitN(ctx, c.key, c.n), c.err)
		_, err = l.Key(c.key).AllowN(ctx, c.n)
		assert.ErrorIs(t, err, c.err)
		assert.NotContains(t, err.Error(), "xxx")
	}
	_, err := l.Check(ctx, "")
	assert.ErrorIs(t, err, ErrKey)
	assert.ErrorIs(t, l.Refund(ctx, "", Result{}), ErrKey)
	assert.Zero(t, net.count(""))
	assert.Zero(t, l.Stats().Taken)
}

// A request for too much is that error also where stock, or a cached refusal,
// would have given another answer.
func TestExceedsLimitIsNeverARefusal(t *testing.T) {
	l := open(t, memstore.New(), PerMinute(3))
	for range 3 {
		require.True(t, allow(t, l, "k", 1).Allowed)
	}
	require.False(t, allow(t, l, "k", 1).Allowed)
	_, err := l.AllowN(context.Background(), "k", 4)
	require.ErrorIs(t, err, ErrExceedsLimit)
}

func TestExactlyTheLimit(t *testing.T) {
	for name, opt := range policies() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				l := open(t, overNetwork(store, time.Millisecond), PerMinute(1000), opt)
				var admitted atomic.Int64
				var wg sync.WaitGroup
				for range 20 {
					wg.Go(func() {
						for range 100 {
							if allow(t, l, "k", 1).Allowed {
								admitted.Add(1)
							}
						}
					})
				}
				wg.Wait()
				assert.EqualValues(t, 1000, admitted.Load())
				assert.EqualValues(t, 1000, l.Stats().Spent)
				assert.EqualValues(t, 1000, used(t, store, "k"))
				assert.EqualValues(t, 1000, l.Stats().Denied)
				balance(t, l)
			})
		})
	}
}

func policies() map[string]Option {
	return map[string]Option{
		"direct":   WithDirect(),
		"fixed=1":  WithBatch(Fixed(1)),
		"fixed=64": WithBatch(Fixed(64)),
		"ladder":   WithBatch(Ladder(1, 100)),
		"adaptive": WithBatch(Adaptive(1, 0)),
	}
}

func TestResultFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, overNetwork(memstore.New(), time.Millisecond), PerMinute(10), WithBatch(Fixed(4)))
		begin := time.Now()
		reset := begin.Add(time.Millisecond).Add(time.Minute)
		for i, want := range []Source{Fetched, Local, Local, Local, Fetched, Local, Local, Local, Fetched, Local} {
			r := allow(t, l, "k", 1)
			assert.True(t, r.Allowed)
			assert.Equal(t, want, r.Source)
			assert.EqualValues(t, 10, r.Limit)
			assert.EqualValues(t, 9-i, r.Remaining)
			assert.True(t, reset.Equal(r.Reset), r.Reset)
			assert.Zero(t, r.RetryAfter)
		}
		r := allow(t, l, "k", 1)
		assert.False(t, r.Allowed)
		assert.Equal(t, Denied, r.Source)
		assert.Zero(t, r.Remaining)
		assert.True(t, reset.Equal(r.Reset))
		left := time.Until(reset)
		assert.GreaterOrEqual(t, r.RetryAfter, left)
		assert.Less(t, r.RetryAfter, left+100*time.Millisecond)

		time.Sleep(r.RetryAfter)
		r = allow(t, l, "k", 1)
		assert.True(t, r.Allowed, "who obeys RetryAfter is not refused for coming early")
		assert.True(t, r.Reset.After(reset))
	})
}

// A refused key costs no calls but a few probes, whoever asks.
func TestRefusalsAreFree(t *testing.T) {
	for name, opt := range policies() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				net := overNetwork(memstore.New(), time.Millisecond)
				l := open(t, net, PerMinute(5), opt)
				for allow(t, l, "k", 1).Allowed {
				}
				before := net.count("")
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						for range 10_000 {
							assert.False(t, allow(t, l, "k", 1).Allowed)
						}
					})
				}
				wg.Wait()
				assert.Equal(t, before, net.count(""))
				for range 59 {
					time.Sleep(time.Second)
					allow(t, l, "k", 1)
				}
				assert.LessOrEqual(t, net.count("")-before, 60)
			})
		})
	}
}

// A token that comes back is found, though refusals were cached.
func TestRefundReopensARefusedKey(t *testing.T) {
	defer chance.Seed(1)() // probes come at random
	for name, opt := range policies() {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				store := memstore.New()
				a, b := open(t, store, PerMinute(5), opt), open(t, store, PerMinute(5), opt)
				var last Result
				for r := allow(t, a, "k", 1); r.Allowed; r = allow(t, a, "k", 1) {
					last = r
				}
				require.False(t, allow(t, b, "k", 1).Allowed)
				require.NoError(t, a.Refund(ctx, "k", last))
				require.True(t, allow(t, a, "k", 1).Allowed, "at once where it was refunded")
				require.False(t, allow(t, a, "k", 1).Allowed)

				require.NoError(t, a.Refund(ctx, "k", last))
				require.NoError(t, a.Close(ctx)) // hands it back
				found := false
				for range 50 {
					time.Sleep(time.Second)
					found = found || allow(t, b, "k", 1).Allowed
				}
				require.True(t, found, "elsewhere after a probe")
			})
		})
	}
}

func TestRefundIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := memstore.New()
		for _, opt := range []Option{WithBatch(Fixed(5)), WithDirect()} {
			l := open(t, store, PerMinute(10), opt)
			r := allow(t, l, "k", 3)
			for range 10 { // a caller that refunds the same Result again and again
				require.NoError(t, l.Refund(ctx, "k", r))
			}
			n := int64(0)
			for allow(t, l, "k", 1).Allowed {
				n++
			}
			assert.LessOrEqual(t, n, int64(10))
			require.NoError(t, l.Refund(ctx, "k", Result{}), "a refusal has nothing to refund")

			time.Sleep(2 * time.Minute)
			allow(t, l, "k", 1)
			before := l.Stats()
			require.NoError(t, l.Refund(ctx, "k", r))
			assert.Equal(t, before.Refunded, l.Stats().Refunded, "its window is over")
			require.NoError(t, l.Close(ctx))
			time.Sleep(2 * time.Minute)
		}
	})
}

func TestCheckChargesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := memstore.New()
		l := open(t, store, PerMinute(10), WithBatch(Fixed(4)))
		r, err := l.Check(ctx, "k")
		require.NoError(t, err)
		assert.Equal(t, Result{Allowed: true, Limit: 10, Remaining: 10, Source: Direct}, r)
		allow(t, l, "k", 1)
		r, err = l.Check(ctx, "k")
		require.NoError(t, err)
		assert.EqualValues(t, 9, r.Remaining, "6 in the store and 3 in stock")
		for allow(t, l, "k", 1).Allowed {
		}
		r, err = l.Check(ctx, "k")
		require.NoError(t, err)
		assert.False(t, r.Allowed)
		assert.InDelta(t, time.Minute, r.RetryAfter, float64(time.Second))
		assert.EqualValues(t, 10, used(t, store, "k"))
	})
}

func TestLimitsPerKey(t *testing.T) {
	l := open(t, memstore.New(), PerMinute(1), WithLimits(func(key string) Limit {
		return PerHour(int64(len(key)))
	}))
	for _, key := range []string{"a", "bb", "ccccc"} {
		n := 0
		for allow(t, l, key, 1).Allowed {
			n++
		}
		assert.Equal(t, len(key), n)
	}
}

func TestHandleIsTheSameKey(t *testing.T) {
	l := open(t, memstore.New(), PerMinute(4))
	k := l.Key("k")
	ctx := context.Background()
	r, err := k.Allow(ctx)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, k.Wait(ctx))
	require.True(t, allow(t, l, "k", 1).Allowed)
	r, err = k.AllowN(ctx, 2)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	r, err = k.Allow(ctx)
	require.NoError(t, err)
	require.True(t, r.Allowed)
}

// Past its bound on keys the limiter forgets nothing that it holds, and stays exact.
func TestMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		store := memstore.New()
		l := open(t, store, PerMinute(3), WithMaxKeys(2), WithIdle(10*time.Minute))
		allow(t, l, "a", 1)
		allow(t, l, "b", 1)
		for i, want := range []bool{true, true, true, false} {
			r := allow(t, l, "c", 1)
			assert.Equal(t, want, r.Allowed, i)
			assert.Equal(t, Direct, r.Source)
			assert.EqualValues(t, max(2-i, 0), r.Remaining)
		}
		_, err := l.AllowN(ctx, "c", 4)
		assert.ErrorIs(t, err, ErrExceedsLimit)
		assert.Equal(t, 2, l.Stats().Keys)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		assert.ErrorIs(t, l.Wait(short, "c"), ErrDeadline)
		assert.NoError(t, l.Wait(ctx, "c"), "through the reset")
		balance(t, l)

		time.Sleep(20*time.Minute + time.Second)
		assert.Zero(t, l.Stats().Keys, "idle ones make room")
		assert.NotEqual(t, Direct, allow(t, l, "c", 1).Source)
	})
}

// What an evicted key held is found by others, and its later entry starts a new
// account: it is not handed what the earlier one has spent.
func TestEvictionHandsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l := open(t, store, PerHour(100), WithBatch(Fixed(50)), WithIdle(time.Minute))
		allow(t, l, "k", 10)
		require.EqualValues(t, 50, used(t, store, "k"))
		time.Sleep(2*time.Minute + time.Second)
		require.EqualValues(t, 10, used(t, store, "k"))
		require.Zero(t, l.Stats().Keys)
		n := int64(0)
		for allow(t, l, "k", 1).Allowed {
			n++
		}
		assert.EqualValues(t, 90, n)
		balance(t, l)
	})
}

func TestStoreErrorsAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		net := overNetwork(memstore.New(), time.Millisecond)
		l := open(t, net, PerMinute(100), WithBatch(Fixed(10)))
		net.set(func(string) fault { return refuse })
		var failure *StoreError
		_, err := l.Allow(ctx, "k")
		require.ErrorAs(t, err, &failure)
		assert.Equal(t, backend.Unavailable, failure.Class)
		assert.ErrorAs(t, l.Wait(ctx, "k"), &failure)
		_, err = l.Check(ctx, "k")
		assert.ErrorAs(t, err, &failure)
		_, err = l.AllowN(ctx, "k", 50)
		assert.ErrorAs(t, err, &failure)
		assert.EqualValues(t, 4, l.Stats().Failed)

		net.set(nil)
		assert.True(t, allow(t, l, "k", 1).Allowed, "and the key works as soon as the store does")

		net.set(func(string) fault { return hang })
		for range 9 {
			assert.True(t, allow(t, l, "k", 1).Allowed, "stock is spent while the store is away")
		}
		begin := time.Now()
		_, err = l.Allow(ctx, "k")
		assert.ErrorAs(t, err, &failure)
		assert.Equal(t, 100*time.Millisecond, time.Since(begin), "within the fetch timeout")
		net.set(nil)
		assert.True(t, errors.Is(l.Close(ctx), nil))
	})
}

func TestHooksSeeEveryCall(t *testing.T) {
	var calls []StoreCall
	var mu sync.Mutex
	net := overNetwork(memstore.New(), 0)
	l := open(t, net, PerMinute(100), WithBatch(Fixed(10)), WithHooks(Hooks{StoreCall: func(c StoreCall) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, c)
	}}))
	ctx := context.Background()
	allow(t, l, "k", 1)
	r := allow(t, l, "k", 40)
	_, err := l.Check(ctx, "k")
	require.NoError(t, err)
	require.NoError(t, l.Refund(ctx, "k", r))
	require.NoError(t, l.Close(ctx))
	mu.Lock()
	defer mu.Unlock()
	var seen []StoreCall
	for _, c := range calls {
		c.Duration = 0
		seen = append(seen, c)
	}
	assert.Equal(t, []StoreCall{
		{Op: "sync", Cause: "wait", Reason: "fixed", Want: 10, Granted: 10},
		{Op: "take", Want: 40, Granted: 40},
		{Op: "check"},
		{Op: "refund", Want: 40, Granted: 40},
		{Op: "sync", Cause: "give back"},
	}, seen)
	assert.EqualValues(t, len(seen), l.Stats().StoreCalls)
}

func TestSourceNames(t *testing.T) {
	for s, want := range map[Source]string{Local: "local", Fetched: "fetched", Direct: "direct", Denied: "denied", Fallback: "fallback", 9: "unknown"} {
		assert.Equal(t, want, s.String())
	}
	assert.True(t, Fetched.OnNetwork() && Direct.OnNetwork() && !Local.OnNetwork() && !Denied.OnNetwork())
}

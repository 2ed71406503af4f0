package reservoir_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestBadRequestsNeverReachTheStore(t *testing.T) {
	ctx := context.Background()
	net := testnet.Far(0)
	l := open(t, net, reservoir.PerMinute(10), reservoir.WithLimits(func(key string) reservoir.Limit {
		if key == "bad limit" {
			return reservoir.PerMinute(-1)
		}
		return reservoir.PerMinute(10)
	}))
	for _, c := range []struct {
		key string
		n   int64
		err error
	}{
		{"", 1, reservoir.ErrKey},
		{strings.Repeat("x", backend.MaxKeyLen+1), 1, reservoir.ErrKey},
		{strings.Repeat("x", 1<<20), 1, reservoir.ErrKey},
		{"k", 0, backend.ErrTokens},
		{"k", -5, backend.ErrTokens},
		{"k", math.MinInt64, backend.ErrTokens},
		{"k", 11, reservoir.ErrExceedsLimit},
		{"k", math.MaxInt64, reservoir.ErrExceedsLimit},
		{"bad limit", 1, reservoir.ErrLimit},
	} {
		_, err := l.AllowN(ctx, c.key, c.n)
		assert.ErrorIs(t, err, c.err)
		assert.ErrorIs(t, waitFor(ctx, l, c.key, c.n), c.err)
		_, err = l.Key(c.key).AllowN(ctx, c.n)
		assert.ErrorIs(t, err, c.err)
		assert.NotContains(t, err.Error(), "xxx")
	}
	_, err := l.Check(ctx, "")
	assert.ErrorIs(t, err, reservoir.ErrKey)
	assert.ErrorContains(t, l.Refund(ctx, reservoir.Result{}), "another limiter")
	assert.Zero(t, net.Count(""))
	assert.Zero(t, l.Stats().Taken)
}

// All of the limit is admitted, and not a token more, by any policy and in requests
// of any size; refusals after that cost no call.
func TestExactlyTheLimit(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, n := range []int64{1, 3, 100} {
			inBubble(t, fmt.Sprintf("%s/n=%d", name, n), func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				l := open(t, net, reservoir.PerMinute(1000*n), opt)
				var admitted atomic.Int64
				ask := func(int) {
					for range 100 {
						if allow(t, l, "k", n).Allowed {
							admitted.Add(n)
						}
					}
				}
				crowd(20, ask)
				assert.Equal(t, 1000*n, admitted.Load())
				assert.Equal(t, 1000*n, l.Stats().Spent)
				assert.Equal(t, 1000*n, used(t, net, "k"))
				assert.EqualValues(t, 1000, l.Stats().Denied)
				balance(t, l)
				calls := net.Count("")
				crowd(20, ask)
				assert.Equal(t, calls, net.Count(""))
			})
		}
	}
}

func TestResultFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), reservoir.WithFixedBatch(4))
		var reset time.Time
		for i := range 10 {
			r := allow(t, l, "k", 1)
			assert.True(t, r.Allowed)
			assert.EqualValues(t, 10, r.Limit)
			assert.EqualValues(t, 9-i, r.Remaining)
			assert.Zero(t, r.RetryAfter)
			if i == 0 {
				reset = r.Reset
				assert.Equal(t, reservoir.Fetched, r.Source)
				assert.LessOrEqual(t, time.Until(reset), time.Minute)
				assert.Greater(t, time.Until(reset), 58*time.Second)
			} else {
				assert.Contains(t, []reservoir.Source{reservoir.Local, reservoir.Fetched}, r.Source)
			}
			assert.True(t, reset.Equal(r.Reset), r.Reset)
			time.Sleep(time.Second)
		}
		r := allow(t, l, "k", 1)
		assert.False(t, r.Allowed)
		assert.Equal(t, reservoir.Local, r.Source)
		assert.Zero(t, r.Remaining)
		assert.True(t, reset.Equal(r.Reset))
		assert.InDelta(t, time.Until(reset), r.RetryAfter, float64(10*time.Millisecond))
		time.Sleep(r.RetryAfter)
		r = allow(t, l, "k", 1)
		assert.True(t, r.Allowed, "who obeys RetryAfter is served")
		assert.True(t, r.Reset.After(reset))
	})
}

// A key may lie in a buffer that the caller uses again: the limiter has its own.
func TestKeyIsTheCallersBuffer(t *testing.T) {
	buffer := []byte("user-1")
	key := unsafe.String(&buffer[0], len(buffer))
	l := open(t, memstore.New(), reservoir.PerHour(100), reservoir.WithFixedBatch(10))
	require.Equal(t, reservoir.Fetched, allow(t, l, key, 1).Source)
	buffer[5] = '2'
	require.Equal(t, reservoir.Fetched, allow(t, l, key, 1).Source)
	assert.Equal(t, reservoir.Local, allow(t, l, "user-1", 1).Source)
	assert.Equal(t, reservoir.Local, allow(t, l, "user-2", 1).Source)

	full := open(t, memstore.New(), reservoir.PerHour(100), reservoir.WithMaxKeys(0))
	r := allow(t, full, key, 10)
	buffer[5] = '3'
	require.NoError(t, full.Settle(bg, r, 15))
	check, err := full.Check(bg, "user-2")
	require.NoError(t, err)
	assert.EqualValues(t, 85, check.Remaining)
}

// Past its bound on keys the limiter forgets nothing that it holds, and stays exact.
func TestMaxKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		l := open(t, memstore.New(), reservoir.PerMinute(3), reservoir.WithMaxKeys(2), reservoir.WithIdle(10*time.Minute))
		allow(t, l, "a", 1)
		allow(t, l, "b", 1)
		for i, want := range []bool{true, true, true, false} {
			r := allow(t, l, "c", 1)
			assert.Equal(t, want, r.Allowed, i)
			assert.Equal(t, reservoir.Direct, r.Source)
			assert.EqualValues(t, max(2-i, 0), r.Remaining)
		}
		_, err := l.AllowN(ctx, "c", 4)
		assert.ErrorIs(t, err, reservoir.ErrExceedsLimit)
		assert.Equal(t, 2, l.Stats().Keys)
		for range l.Keys() {
			break // or the second one would be a panic
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		assert.ErrorIs(t, waitFor(short, l, "c", 1), reservoir.ErrDeadline)
		assert.NoError(t, waitFor(ctx, l, "c", 1), "through the reset")
		balance(t, l)
		time.Sleep(20*time.Minute + time.Second)
		assert.Zero(t, l.Stats().Keys, "idle ones make room")
		assert.NotEqual(t, reservoir.Direct, allow(t, l, "c", 1).Source)
	})
}

func TestFaultyOptions(t *testing.T) {
	for i, opt := range []reservoir.Option{
		reservoir.WithFailLocal(math.NaN()), reservoir.WithFailLocal(-0.1), reservoir.WithFailLocal(1.1),
		reservoir.WithFetchTimeout(0), reservoir.WithFetchTimeout(math.MaxInt64), reservoir.WithMaxKeys(-1), reservoir.WithIdle(0), reservoir.WithFixedBatch(0),
	} {
		_, err := reservoir.New(memstore.New(), reservoir.PerMinute(1), opt)
		assert.ErrorIs(t, err, reservoir.ErrOption, i)
	}
	_, err := reservoir.New(nil, reservoir.PerMinute(1))
	require.ErrorIs(t, err, reservoir.ErrOption)
	_, err = reservoir.New(redisstore.New(nil), reservoir.PerMinute(1))
	require.Error(t, err, "its own")
	_, err = reservoir.New(memstore.New(), reservoir.Limit{Tokens: 1})
	require.ErrorIs(t, err, reservoir.ErrLimit)
}

// A key that has no limit, as by a typo in a map of plans, is an error and not a ban; so is a Key that
// no limiter has made.
func TestNoLimitAndNoKey(t *testing.T) {
	plans := map[string]reservoir.Limit{"free": reservoir.PerMinute(1), "banned": reservoir.Block()}
	l := open(t, memstore.New(), reservoir.PerMinute(1), reservoir.WithLimits(func(key string) reservoir.Limit { return plans[key] }))
	_, err := l.Allow(bg, "fre")
	assert.ErrorIs(t, err, reservoir.ErrLimit)
	_, err = l.Check(bg, "fre")
	assert.ErrorIs(t, err, reservoir.ErrLimit)
	assert.Equal(t, reservoir.Result{}, allow(t, l, "banned", 1), "no waiting helps")
	var none reservoir.Key
	_, err = none.Allow(bg)
	assert.ErrorIs(t, err, reservoir.ErrKey)
	_, err = none.AllowN(bg, 0)
	assert.ErrorIs(t, err, reservoir.ErrKey)
}

// Check charges nothing, and counts the stock at hand as there to be had.
func TestCheck(t *testing.T) {
	for name, opt := range everyPolicy() {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			l := open(t, store, reservoir.PerHour(100), opt)
			r, err := l.Check(bg, "k")
			require.NoError(t, err)
			require.Equal(t, reservoir.Result{Allowed: true, Limit: 100, Window: time.Hour, Remaining: 100, Source: reservoir.Direct}, r)
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
	inBubble(t, "a window that opens within a millisecond", func(t *testing.T) {
		time.Sleep(10 * time.Microsecond)
		l := open(t, memstore.New(), reservoir.Limit{Tokens: 1, Window: 1500 * time.Millisecond})
		require.True(t, allow(t, l, "k", 1).Allowed)
		r, err := l.Check(bg, "k")
		require.NoError(t, err)
		require.Equal(t, 1500*time.Millisecond, r.RetryAfter, "at most the window")
	})
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

// The hook is told of each call and what it asked for and got.
func TestHooksSeeEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		net := testnet.Far(0)
		l := open(t, net, reservoir.PerMinute(100), reservoir.WithFixedBatch(10), d.keep())
		ctx := context.Background()
		allow(t, l, "k", 1)
		synctest.Wait() // the hook is told after who waited was served
		_, err := l.Check(ctx, "k")
		require.NoError(t, err)
		require.NoError(t, l.Close(ctx))
		synctest.Wait()
		calls := d.all()
		require.Len(t, calls, 3)
		assert.Equal(t, reservoir.StoreCall{Op: "sync", Cause: "wait", Reason: "fixed", Want: 10, Granted: 10}, calls[0].StoreCall)
		assert.Equal(t, "check", calls[1].Op)
		assert.Equal(t, "sync", calls[2].Op)
		assert.EqualValues(t, 3, l.Stats().StoreCalls)
		assert.Equal(t, 3, net.Count(""))
	})
}

// A slow hook delays nobody who waits for tokens, and does not look like a slow store.
func TestSlowHook(t *testing.T) {
	inBubbles(t, "", everyPolicy(), func(t *testing.T, name string, opt reservoir.Option) {
		var told atomic.Int64
		slow := reservoir.WithHooks(reservoir.Hooks{StoreCall: func(reservoir.StoreCall) {
			time.Sleep(50 * time.Millisecond)
			told.Add(1)
		}})
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(600_000), opt, slow)
		begin := time.Now()
		crowd(5, func(int) { assert.True(t, allow(t, l, "k", 1).Allowed) })
		if name != "direct" { // whose caller makes the call, and tells of it
			assert.LessOrEqual(t, time.Since(begin), 3*rtt)
		}
		time.Sleep(time.Second)
		assert.Positive(t, told.Load())
	})
}

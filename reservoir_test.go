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
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

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
		{"k", 0, reservoir.ErrTokens},
		{"k", -5, reservoir.ErrTokens},
		{"k", math.MinInt64, reservoir.ErrTokens},
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
	assert.ErrorIs(t, l.Refund(ctx, "", reservoir.Result{}), reservoir.ErrKey)
	assert.Zero(t, net.Count(""))
	assert.Zero(t, l.Stats().Taken)
}

// A request for too much is that error also where stock, or a cached refusal, would
// have given another answer.
func TestExceedsLimitIsNeverARefusal(t *testing.T) {
	l := open(t, memstore.New(), reservoir.PerMinute(3))
	require.EqualValues(t, 3, drain(t, l, "k", 1))
	_, err := l.AllowN(context.Background(), "k", 4)
	require.ErrorIs(t, err, reservoir.ErrExceedsLimit)
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
		l := open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), reservoir.WithBatch(reservoir.Fixed(4)))
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
		assert.Equal(t, reservoir.Denied, r.Source)
		assert.Zero(t, r.Remaining)
		assert.True(t, reset.Equal(r.Reset))
		assert.InDelta(t, time.Until(reset), r.RetryAfter, float64(10*time.Millisecond))
		time.Sleep(r.RetryAfter)
		r = allow(t, l, "k", 1)
		assert.True(t, r.Allowed, "who obeys RetryAfter is served")
		assert.True(t, r.Reset.After(reset))
	})
}

// A token that comes back is found where others were refused: at once where it was
// refunded, and elsewhere by a probe.
func TestRefundReopensARefusedKey(t *testing.T) {
	defer chance.Seed(1)()
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
			ctx := context.Background()
			net := testnet.Far(rtt / 2)
			a, b := open(t, net, reservoir.PerMinute(5), opt), open(t, net, reservoir.PerMinute(5), opt)
			last := allow(t, a, "k", 1)
			drain(t, a, "k", 1)
			require.False(t, allow(t, b, "k", 1).Allowed)
			require.NoError(t, a.Refund(ctx, "k", last))
			again := allow(t, a, "k", 1)
			require.True(t, again.Allowed)
			require.False(t, allow(t, a, "k", 1).Allowed)
			require.NoError(t, a.Refund(ctx, "k", again))
			require.NoError(t, a.Close(ctx))
			found := 0
			for range 50 {
				time.Sleep(time.Second)
				if allow(t, b, "k", 1).Allowed {
					found++
				}
			}
			require.Equal(t, 1, found)
		})
	}
}

func TestHandleIsTheSameKey(t *testing.T) {
	l, ctx := open(t, memstore.New(), reservoir.PerMinute(4)), context.Background()
	k := l.Key("k")
	r, err := k.Allow(ctx)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.True(t, allow(t, l, "k", 2).Allowed)
	r, err = k.AllowN(ctx, 2)
	require.NoError(t, err)
	require.False(t, r.Allowed)
	r, err = k.AllowN(ctx, 1)
	require.NoError(t, err)
	require.True(t, r.Allowed)
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

// The hook is told of each call and what it asked for and got.
func TestHooksSeeEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		net := testnet.Far(0)
		l := open(t, net, reservoir.PerMinute(100), reservoir.WithBatch(reservoir.Fixed(10)), d.keep())
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

func TestSourceNames(t *testing.T) {
	for s, want := range map[reservoir.Source]string{
		reservoir.Local: "local", reservoir.Fetched: "fetched", reservoir.Direct: "direct",
		reservoir.Denied: "denied", reservoir.Fallback: "fallback", 9: "unknown",
	} {
		assert.Equal(t, want, s.String())
		assert.Equal(t, s == reservoir.Fetched || s == reservoir.Direct, s.OnNetwork())
	}
}

// The deadline of stock counts from the sending of the request: a slow reply does not
// lengthen a window, and a window never gives its tokens to the next one.
func TestStockDiesWithItsWindow(t *testing.T) {
	for name, opt := range batches() {
		for _, distance := range []time.Duration{0, 80 * time.Millisecond} {
			inBubble(t, fmt.Sprintf("%s/rtt=%v", name, distance), func(t *testing.T) {
				l := open(t, testnet.Far(distance/2), reservoir.PerSecond(300), opt, reservoir.WithFetchTimeout(time.Second))
				for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(7 * time.Millisecond) {
					r := allow(t, l, "k", 1)
					if r.Source == reservoir.Local {
						assert.True(t, time.Now().Before(r.Reset))
					}
				}
				time.Sleep(3 * time.Second)
				assert.Zero(t, l.Stats().Held)
				assert.Positive(t, l.Stats().Expired)
				balance(t, l)
			})
		}
	}
}

// Who comes a moment before a reset, or at its very instant, is served a moment after
// it: at once, or at the second try if it obeys RetryAfter.
func TestAtTheReset(t *testing.T) {
	for name, opt := range everyPolicy() {
		for _, limit := range []reservoir.Limit{reservoir.PerSecond(10), reservoir.PerHour(10)} {
			inBubble(t, fmt.Sprintf("%s/%v", name, limit.Window), func(t *testing.T) {
				l := open(t, testnet.Far(rtt/2), limit, opt)
				for _, early := range []time.Duration{rtt * 9 / 10, rtt / 4, time.Microsecond, 0} {
					for _, first := range []int64{1, 10} {
						r := allow(t, l, "k", first)
						require.True(t, r.Allowed)
						time.Sleep(time.Until(r.Reset) - early)
						begun, tries := time.Now(), 1
						for r = allow(t, l, "k", 1); !r.Allowed; r = allow(t, l, "k", 1) {
							time.Sleep(r.RetryAfter)
							tries++
						}
						require.LessOrEqual(t, tries, 3)
						require.Less(t, time.Since(begun), early+5*rtt)
						time.Sleep(2 * limit.Window)
					}
				}
			})
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

// A key is not evicted from under the callers that wait for it.
func TestNoEvictionWhileCallersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := testnet.Far(time.Minute)
		l := open(t, net, reservoir.PerHour(10), reservoir.WithIdle(time.Second), reservoir.WithFetchTimeout(time.Hour))
		assert.True(t, allow(t, l, "k", 1).Allowed)
		assert.Equal(t, 1, net.Count(""))
		assert.EqualValues(t, 1, l.Stats().Spent)
	})
}

// While tokens are on their way from a reply through the line into the stock, no
// newcomer is refused for not seeing them.
func TestNoFalseRefusalBetweenReplyAndStock(t *testing.T) {
	for range 300 {
		const limit = 40
		l := open(t, memstore.New(), reservoir.PerHour(limit), reservoir.WithBatch(reservoir.Ladder(1, 100)), reservoir.WithFetchTimeout(time.Minute))
		var admitted atomic.Int64
		crowd(8, func(int) { admitted.Add(drain(t, l, "k", 1)) })
		require.EqualValues(t, limit, admitted.Load())
	}
}

// A crowd on a cold key shares calls: each fetch is sized for all that wait.
func TestNoStampede(t *testing.T) {
	for name, opt := range batches() {
		for _, n := range []int64{1, 25} {
			inBubble(t, fmt.Sprintf("%s/n=%d", name, n), func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				l := open(t, net, reservoir.PerMinute(100_000), opt)
				admitted, failed := crowdOnce(l, 1000, n)
				assert.EqualValues(t, 1000, admitted)
				assert.Zero(t, failed)
				assert.LessOrEqual(t, net.Count(""), 3)
			})
		}
	}
}

// On a window that has less than the crowd wants, those that fit are served and the
// others refused there and then.
func TestCrowdOnTheLastTokens(t *testing.T) {
	for name, opt := range batches() {
		for _, n := range []int64{1, 5} {
			inBubble(t, fmt.Sprintf("%s/n=%d", name, n), func(t *testing.T) {
				net := testnet.Far(rtt / 2)
				l := open(t, net, reservoir.PerMinute(500*n), opt)
				begin := time.Now()
				admitted, failed := crowdOnce(l, 1000, n)
				assert.EqualValues(t, 500, admitted)
				assert.Zero(t, failed)
				assert.LessOrEqual(t, net.Count(""), 3)
				assert.LessOrEqual(t, time.Since(begin), 3*rtt)
			})
		}
	}
}

// Who asks without waiting is served in order as well: those that fit.
func TestPartialGrantServesInOrder(t *testing.T) {
	inBubble(t, "sizes", func(t *testing.T) {
		q := lineOf(t, open(t, testnet.Far(rtt/2), reservoir.PerMinute(10), reservoir.WithBatch(reservoir.Fixed(5))))
		for i, c := range q.allow(1, 4, 3, 5, 2, 1) {
			<-c.done
			// 10 tokens: 1+4+3 are in, 5 does not fit, 2 does, and then none is left.
			assert.Equal(t, []bool{true, true, true, false, true, false}[i], c.allowed, i)
		}
	})
}

// Each caller learns the outcome of its own fetch, not of another.
func TestEachCallerLearnsItsOwnFetch(t *testing.T) {
	inBubble(t, "lost request", func(t *testing.T) {
		net := testnet.Far(rtt / 2)
		q := lineOf(t, open(t, net, reservoir.PerMinute(100), reservoir.WithBatch(reservoir.Fixed(2))))
		net.Next("", testnet.LoseRequest)
		early, later := q.allow(1)[0], q.allow(1, 1)
		q.wg.Wait()
		var failure *reservoir.StoreError
		assert.ErrorAs(t, early.err, &failure)
		assert.True(t, later[0].allowed && later[1].allowed)
		assert.Equal(t, 1, net.Happened(testnet.LoseRequest))
	})
}

// A slow hook delays nobody who waits for tokens, and does not look like a slow store.
func TestSlowHook(t *testing.T) {
	for name, opt := range everyPolicy() {
		inBubble(t, name, func(t *testing.T) {
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
	inBubble(t, "the lead time", func(t *testing.T) {
		calls := map[bool]int{}
		for _, slow := range []bool{false, true} {
			net := testnet.Far(rtt / 2)
			hook := reservoir.WithHooks(reservoir.Hooks{StoreCall: func(reservoir.StoreCall) {
				if slow {
					time.Sleep(50 * time.Millisecond)
				}
			}})
			l := open(t, net, reservoir.PerMinute(600_000), reservoir.WithBatch(reservoir.Adaptive(1, 200)), hook)
			every(t, l, 1, time.Millisecond, time.Now().Add(20*time.Second), nil)
			calls[slow] = net.Count("")
		}
		assert.InDelta(t, calls[false], calls[true], float64(calls[false])/10, "a re-order point too high orders more often")
	})
}

// A key may lie in a buffer that the caller uses again: the limiter has its own.
func TestKeyIsTheCallersBuffer(t *testing.T) {
	buffer := []byte("user-1")
	key := unsafe.String(&buffer[0], len(buffer))
	l := open(t, memstore.New(), reservoir.PerHour(100), reservoir.WithBatch(reservoir.Fixed(10)))
	require.Equal(t, reservoir.Fetched, allow(t, l, key, 1).Source)
	buffer[5] = '2'
	require.Equal(t, reservoir.Fetched, allow(t, l, key, 1).Source)
	assert.Equal(t, reservoir.Local, allow(t, l, "user-1", 1).Source)
	assert.Equal(t, reservoir.Local, allow(t, l, "user-2", 1).Source)
}

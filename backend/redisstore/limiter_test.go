package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// This file is the limiter as a whole on a real Redis.

// scripts is how many scripts Redis says that it ran.
func scripts(s *redistest.Server) int64 { return s.Calls("evalsha", "eval") }

// patient is a fetch timeout for tests of counts, which a busy machine does not break.
var patient = reservoir.WithFetchTimeout(10 * time.Second)

// limiterOn returns a limiter over client that is closed with t.
func limiterOn(t *testing.T, client redis.UniversalClient, limit reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	t.Helper()
	l, err := reservoir.New(redisstore.New(client), limit, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, l.Close(context.Background())) })
	return l
}

// drain has so many goroutines ask for n tokens until each is refused, and returns the
// tokens that were admitted.
func drain(t *testing.T, l *reservoir.Limiter, goroutines int, n int64) int64 {
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for {
				r, err := l.AllowN(context.Background(), "k", n)
				if err != nil { // assert for each request takes longer than the request
					assert.NoError(t, err)
				}
				if !r.Allowed {
					return
				}
				admitted.Add(n)
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}

// A crowd on a cold key shares a few calls.
func TestColdCrowd(t *testing.T) {
	for _, n := range []int64{1, 20} {
		server := redistest.Start(t)
		l := limiterOn(t, server.Client(), reservoir.PerMinute(100_000), patient, reservoir.WithBatch(reservoir.Fixed(10)))
		server.ResetStats()
		start := make(chan struct{})
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				<-start
				r, err := l.AllowN(context.Background(), "k", n)
				assert.NoError(t, err)
				assert.True(t, r.Allowed)
			})
		}
		close(start)
		wg.Wait()
		// Goroutines that a busy machine starts late find batches of 10 used up.
		assert.LessOrEqual(t, scripts(server), 30+1000*n/100, "n=%d", n)
	}
}

// One process spends its limit as fast as it can: nearly no request makes a store
// call, and the last token is found before the first refusal.
func TestFlatOut(t *testing.T) {
	for _, workers := range []int{64, 512} {
		for _, n := range []int64{1, 5} {
			t.Run(fmt.Sprintf("workers=%d/n=%d", workers, n), func(t *testing.T) {
				limit := 300_000 * n
				server := redistest.Start(t)
				l := limiterOn(t, server.Client(), reservoir.PerMinute(limit), patient)
				server.ResetStats()
				assert.Equal(t, limit, drain(t, l, workers, n), "no false refusal")
				calls := scripts(server)
				t.Logf("%d calls", calls)
				assert.LessOrEqual(t, calls, int64(500))
			})
		}
	}
}

// The same workers at the pace that the limit allows: hardly one waits once the pace is
// known.
func TestPaced(t *testing.T) {
	const workers, rate, duration = 64, 16_000, 2 * time.Second
	server := redistest.Start(t)
	l := limiterOn(t, server.Client(), reservoir.PerMinute(1_000_000), patient)
	server.ResetStats()
	var tickets atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for range workers {
		wg.Go(func() {
			for due := time.Duration(0); due < duration; {
				due = time.Duration(tickets.Add(1)-1) * time.Second / rate
				time.Sleep(time.Until(begin.Add(due)))
				if r, err := l.Allow(context.Background(), "k"); !assert.NoError(t, err) || !assert.True(t, r.Allowed) {
					return
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, scripts(server), tickets.Load()/1000)
}

// Every process reports the same instant for a window.
func TestResetIsTheSameEverywhere(t *testing.T) {
	server := redistest.Start(t)
	seen := map[string]map[time.Time]bool{}
	for range 5 {
		l := limiterOn(t, server.Client(), reservoir.PerMinute(1000), patient)
		for j := range 20 {
			key := fmt.Sprint("key-", j%4)
			r, err := l.Allow(context.Background(), key)
			require.NoError(t, err)
			c, err := l.Check(context.Background(), key)
			require.NoError(t, err)
			if seen[key] == nil {
				seen[key] = map[time.Time]bool{}
			}
			seen[key][r.Reset.UTC()], seen[key][c.Reset.UTC()] = true, true
		}
	}
	for key, resets := range seen {
		assert.Len(t, resets, 1, key)
	}
}

// A Redis that is 40 or 80 ms away works with all defaults and the client options that
// the documents advise: what it takes to connect has a time of its own.
func TestFarRedis(t *testing.T) {
	for _, away := range []time.Duration{40 * time.Millisecond, 80 * time.Millisecond} {
		t.Run(away.String(), func(t *testing.T) {
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			proxy.Delay(away) // of replies; requests arrive at once
			client := redis.NewClient(&redis.Options{
				Addr: proxy.Addr(), MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
				DialTimeout: 200 * time.Millisecond, ReadTimeout: 200 * time.Millisecond,
			})
			t.Cleanup(func() { _ = client.Close() })
			l := limiterOn(t, client, reservoir.PerMinute(100_000))
			admitted := 0
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && admitted < 50; {
				if r, err := l.Allow(context.Background(), "k"); err == nil && r.Allowed {
					admitted++
				}
			}
			assert.Equal(t, 50, admitted)
			assert.Positive(t, proxy.Delayed())
		})
	}
}

// Four processes admit and settle at the same time, above and below what was charged. What
// Redis has charged in the end is what was used, to the token; what of it is above the limit
// is overdrawn, and so is what was settled when others held the rest.
func TestSettleIsExact(t *testing.T) {
	server, ctx := redistest.Start(t), context.Background()
	store := redisstore.New(server.Client())
	for name, opt := range map[string]reservoir.Option{
		"adaptive": reservoir.WithBatch(reservoir.Adaptive(1, 0)), "fixed=64": reservoir.WithBatch(reservoir.Fixed(64)),
		"ladder": reservoir.WithBatch(reservoir.Ladder(1, 100)), "direct": reservoir.WithDirect(),
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 50_000
			var all [4]*reservoir.Limiter
			for i := range all {
				all[i] = limiterOn(t, server.Client(), reservoir.PerHour(limit), opt, patient)
			}
			var used, charged atomic.Int64
			var wg sync.WaitGroup
			for i := range 16 {
				key, rnd := all[i%4].Key(name), rand.New(rand.NewPCG(uint64(i), 2))
				wg.Go(func() {
					for range 1000 {
						n := 1 + rnd.Int64N(10)
						r, err := key.AllowN(ctx, n)
						if !assert.NoError(t, err) || !r.Allowed {
							continue
						}
						really := max(n+rnd.Int64N(12)-4, 0)
						charged.Add(n)
						used.Add(really)
						assert.NoError(t, key.Settle(ctx, r, really))
					}
				})
			}
			wg.Wait()
			var overdrawn int64
			for _, l := range all {
				require.NoError(t, l.Close(ctx))
				overdrawn += l.Stats().Overdrawn
			}
			c, err := store.Inspect(ctx, name)
			require.NoError(t, err)
			assert.Equal(t, used.Load(), c.Used)
			assert.GreaterOrEqual(t, overdrawn, used.Load()-limit)
			assert.Less(t, overdrawn, used.Load()/20)
			assert.LessOrEqual(t, charged.Load(), int64(limit))
		})
	}
}

// TestInspectOfANegativeCount: another program may give back more than was charged. The
// scripts read that as nothing charged.
func TestInspectOfANegativeCount(t *testing.T) {
	client := redistest.Start(t).Client()
	store := redisstore.New(client)
	take(t, store, "k", 3)
	require.NoError(t, client.DecrBy(t.Context(), "{k}", 8).Err())
	got, err := store.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.NotZero(t, got.Window)
	require.Zero(t, got.Used)
}

// TestInspectIsBoundedByItsContext: also on a server that hangs, where go-redis waits as
// long as ReadTimeout.
func TestInspectIsBoundedByItsContext(t *testing.T) {
	server := redistest.Start(t)
	store := redisstore.New(server.Client(func(o *redis.Options) { o.ReadTimeout = 20 * time.Second }))
	_, err := store.Inspect(t.Context(), "k")
	require.NoError(t, err)
	server.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	_, err = store.Inspect(ctx, "k")
	require.ErrorIs(t, err, context.Canceled)
	failure, _ := errors.AsType[*backend.Error](err)
	require.Equal(t, backend.Unavailable, failure.Class, "a look changes nothing, so its outcome is known")
	server.Resume()
	require.NoError(t, store.Close(), "which waits for what is under way")
	_, err = store.Inspect(t.Context(), "k")
	require.ErrorContains(t, err, "closed")
}

package redisstore_test

import (
	"context"
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
				l, rnd := all[i%4], rand.New(rand.NewPCG(uint64(i), 2))
				wg.Go(func() {
					for range 1000 {
						n := 1 + rnd.Int64N(10)
						r, err := l.AllowN(ctx, name, n)
						if !assert.NoError(t, err) || !r.Allowed {
							continue
						}
						really := max(n+rnd.Int64N(12)-4, 0)
						charged.Add(n)
						used.Add(really)
						assert.NoError(t, l.Settle(ctx, r, really))
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

// TestInspectOfAHungServer: it is bounded by the client's timeouts, and changes nothing, so
// its outcome is known.
func TestInspectOfAHungServer(t *testing.T) {
	server := redistest.Start(t)
	store := redisstore.New(server.Client(documented))
	_, err := store.Inspect(t.Context(), "k")
	require.NoError(t, err)
	server.Pause()
	_, err = store.Inspect(t.Context(), "k")
	require.Equal(t, backend.Unavailable, class(t, err))
	server.Resume()
	require.NoError(t, store.Close())
	_, err = store.Inspect(t.Context(), "k")
	require.ErrorContains(t, err, "closed")
}

package reservoir_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// scripts is how many scripts Redis says that it ran.
func scripts(s *redistest.Server) int64 { return s.Calls("evalsha", "eval") }

func TestColdCrowdOnRedis(t *testing.T) {
	server := redistest.Start(t)
	l, err := reservoir.New(redisstore.New(server.Client()), reservoir.PerMinute(100_000), reservoir.WithBatch(reservoir.Fixed(10)),
		reservoir.WithFetchTimeout(10*time.Second))
	require.NoError(t, err)
	server.ResetStats()
	start := make(chan struct{})
	var ready, wg sync.WaitGroup
	ready.Add(1000)
	for range 1000 {
		wg.Go(func() {
			ready.Done()
			<-start
			r, err := l.Allow(context.Background(), "k")
			assert.NoError(t, err)
			assert.True(t, r.Allowed)
		})
	}
	ready.Wait()
	close(start)
	wg.Wait()
	calls := scripts(server)
	assert.LessOrEqual(t, calls, int64(12))
	t.Logf("%d store calls", calls)
	require.NoError(t, l.Close(context.Background()))
}

// One process spends a million a minute: nearly no request makes a store call,
// and the last token is found before the first refusal.
func TestFlatOutOnRedis(t *testing.T) {
	for _, workers := range []int{64, 512} {
		t.Run(fmt.Sprint("workers=", workers), func(t *testing.T) {
			const limit = 1_000_000
			server := redistest.Start(t)
			l, err := reservoir.New(redisstore.New(server.Client()), reservoir.PerMinute(limit),
				reservoir.WithFetchTimeout(10*time.Second)) // counts are tested here, on a busy machine too
			require.NoError(t, err)
			server.ResetStats()
			var admitted, requests atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for {
						requests.Add(1)
						r, err := l.Allow(context.Background(), "k")
						if !assert.NoError(t, err) || !r.Allowed {
							return
						}
						admitted.Add(1)
					}
				})
			}
			wg.Wait()
			assert.EqualValues(t, limit, admitted.Load(), "no false refusal")
			calls := scripts(server)
			assert.LessOrEqual(t, float64(calls)/float64(requests.Load()), 0.001)
			logCost(t, calls, requests.Load(), l.Stats())
			require.NoError(t, l.Close(context.Background()))
		})
	}
}

func logCost(t *testing.T, calls, requests int64, s reservoir.Stats) {
	percent := func(n int64) float64 { return 100 * float64(n) / float64(requests) }
	t.Logf("%d requests; %d store calls (%.4f %%), %d of them ahead of need; %d requests waited (%.4f %%)",
		requests, calls, percent(calls), s.Prefetches, s.Waited, percent(s.Waited))
}

// The same workers at the pace that the limit allows, in one window: hardly one
// waits once the pace is known.
func TestPacedOnRedis(t *testing.T) {
	const limit, workers, rate, duration = 1_000_000, 64, 16_000, 3 * time.Second
	server := redistest.Start(t)
	l, err := reservoir.New(redisstore.New(server.Client()), reservoir.PerMinute(limit),
		reservoir.WithFetchTimeout(10*time.Second))
	require.NoError(t, err)
	server.ResetStats()
	var tickets, requests atomic.Int64
	var wg sync.WaitGroup
	begin := time.Now()
	for range workers {
		wg.Go(func() {
			for {
				due := time.Duration(tickets.Add(1)-1) * time.Second / rate
				if due >= duration {
					return
				}
				time.Sleep(time.Until(begin.Add(due)))
				requests.Add(1)
				r, err := l.Allow(context.Background(), "k")
				if !assert.NoError(t, err) || !assert.True(t, r.Allowed) {
					return
				}
			}
		})
	}
	wg.Wait()
	calls := scripts(server)
	assert.LessOrEqual(t, float64(calls)/float64(requests.Load()), 0.001)
	logCost(t, calls, requests.Load(), l.Stats())
	require.NoError(t, l.Close(context.Background()))
}

// Every process reports the same instant for a window.
func TestResetIsTheSameEverywhere(t *testing.T) {
	server := redistest.Start(t)
	seen := map[string]map[time.Time]bool{}
	for i := range 5 {
		l, err := reservoir.New(redisstore.New(server.Client()), reservoir.PerMinute(1000))
		require.NoError(t, err)
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
		require.NoError(t, l.Close(context.Background()), i)
	}
	for key, resets := range seen {
		assert.Len(t, resets, 1, key)
	}
}

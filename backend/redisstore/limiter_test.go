package redisstore_test

import (
	"context"
	"fmt"
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

// TestLimitersBesideGitHubs: three limiters and GitHub's scripts share a limit for five windows. It is never exceeded, and used up:
// a token is lost to nobody but the limiters' leases, which end a moment before the window.
func TestLimitersBesideGitHubs(t *testing.T) {
	t.Parallel()
	const limit, windows = 600, 5
	client := redistest.Start(t).Client()
	limiters := make([]*reservoir.Limiter, 3)
	for i := range limiters {
		limiters[i] = limiterOn(t, client, reservoir.PerSecond(limit), patient)
	}
	var mu sync.Mutex
	spent, refused, ours, theirs := map[int64]int64{}, map[int64]bool{}, 0, 0 // by the window's end, in seconds
	note := func(end int64, who *int) {
		mu.Lock()
		defer mu.Unlock()
		spent[end]++
		*who++
	}
	first := time.Now().Unix() + 2 // ends of the windows that count: first + 1 to first + windows
	over := time.Unix(first+windows, 5e8)
	var work sync.WaitGroup
	for _, l := range limiters {
		work.Go(func() {
			for time.Now().Before(over) {
				r, err := l.Allow(t.Context(), "k")
				if err == nil && r.Allowed {
					note(r.Reset.Unix(), &ours)
				} else if err == nil {
					mu.Lock()
					refused[r.Reset.Unix()] = true
					mu.Unlock()
				}
				time.Sleep(500 * time.Microsecond) // about three limits a second in all
			}
		})
	}
	work.Go(func() {
		for time.Now().Before(over) {
			now := client.Time(t.Context()).Val().Unix()
			seen, err := check.Run(t.Context(), client, []string{"{k}:1s"}, now).Int64Slice()
			if err == nil && seen[0] < limit { // as their service decides
				counted, err := rate.Run(t.Context(), client, []string{"{k}:1s"}, 1, now+1, now).Int64Slice()
				if err == nil && counted[0] <= limit {
					note(counted[1], &theirs)
				}
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	work.Wait()
	full := 0 // windows; on a busy machine some see less demand than the limit
	for end := first + 1; end <= first+windows; end++ {
		require.LessOrEqual(t, spent[end], int64(limit), "window %d", end-first)
		if refused[end] {
			full++
			require.GreaterOrEqual(t, spent[end], int64(limit*95/100), "window %d", end-first)
		}
	}
	t.Log("full windows:", full, "ours:", ours, "theirs:", theirs)
	require.Positive(t, full)
	require.Positive(t, ours)
	require.Positive(t, theirs)
}

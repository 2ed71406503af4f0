package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// BenchmarkFreshKeys makes each call on a key of its own, so that nothing but
// shared pipelines can help. The yardstick, op=bare, is GitHub's script by a plain
// EVALSHA of go-redis. Calls carry a deadline, as a limiter's do; that of op=alone,
// a take, ends by time alone.
func BenchmarkFreshKeys(b *testing.B) {
	limit := backend.Limit{Tokens: 1000, Window: time.Minute}
	server := redistest.Start(b)
	client := server.Client()
	s := redisstore.New(server.Client(func(o *redis.Options) { o.ContextTimeoutEnabled = true }))
	sha := client.ScriptLoad(b.Context(), rateSource).Val()
	for _, op := range []struct {
		name string
		call func(ctx context.Context, key string) error
	}{
		{"bare", func(ctx context.Context, key string) error {
			now := time.Now().Unix()
			return client.EvalSha(ctx, sha, []string{key}, 1, now+60, now).Err()
		}},
		{"charge", func(ctx context.Context, key string) error {
			_, err := charge(ctx, s, key, limit, 1)
			return err
		}},
		{"detached", func(ctx context.Context, key string) error { // as a limiter's
			_, err := s.Sync(ctx, backend.Statement{Key: key, Limit: limit, Need: 1, Detached: true})
			return err
		}},
		{"sync", func(ctx context.Context, key string) error {
			_, err := s.Sync(ctx, backend.Statement{Key: key, Client: "client.1", Life: 1, Seq: 1, Limit: limit, Want: 1, Need: 1})
			return err
		}},
	} {
		for _, goroutines := range []int{1, 512} {
			b.Run(fmt.Sprintf("op=%s/goroutines=%d", op.name, goroutines), func(b *testing.B) {
				require.NoError(b, client.FlushDB(b.Context()).Err())
				server.ResetStats()
				calls(b, goroutines, op.call)
				b.ReportMetric(usecPerCall(b, client), "server-us/op")
			})
		}
	}
}

// calls makes b.N calls from so many goroutines and reports the median latency.
func calls(b *testing.B, goroutines int, call func(context.Context, string) error) {
	b.Helper()
	took := make([]time.Duration, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < b.N; i += goroutines {
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				began := time.Now()
				if err := call(ctx, "key:"+strconv.Itoa(i)); err != nil {
					b.Error(err)
				}
				took[i] = time.Since(began)
				cancel()
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-us")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1000, "kcalls/s")
}

// usecPerCall is what an EVALSHA has cost the server itself.
func usecPerCall(b *testing.B, client *redis.Client) float64 {
	b.Helper()
	stat := client.InfoMap(b.Context(), "commandstats").Item("Commandstats", "cmdstat_evalsha")
	var calls, usec int64
	var per float64
	_, err := fmt.Sscanf(stat, "calls=%d,usec=%d,usec_per_call=%f", &calls, &usec, &per)
	require.NoError(b, err, stat)
	return per
}

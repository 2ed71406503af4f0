package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// allow asks for one token of key.
type allow func(ctx context.Context, key string) (bool, error)

// limiter is one way to limit, and how to make it anew.
type limiter struct {
	name string
	open func(b *testing.B, client *redis.Client) allow
}

// The limit is more than any of the limiters can serve, so that none refuses,
// and its window is short, so that a run meets resets.
const perSecond = 100_000_000

var limiters = []limiter{
	{"reservoir", func(b *testing.B, client *redis.Client) allow {
		return openReservoir(b, client)
	}},
	{"reservoir-direct", func(b *testing.B, client *redis.Client) allow {
		return openReservoir(b, client, reservoir.WithDirect())
	}},
	{"rockset-1000", func(_ *testing.B, client *redis.Client) allow {
		r := NewRockset(redisstore.New(client), reservoir.PerSecond(perSecond), 1000)
		return func(ctx context.Context, key string) (bool, error) { return r.AllowN(ctx, key, 1) }
	}},
	{"redis_rate", func(_ *testing.B, client *redis.Client) allow {
		l := redis_rate.NewLimiter(client)
		return func(ctx context.Context, key string) (bool, error) {
			r, err := l.Allow(ctx, key, redis_rate.PerSecond(perSecond))
			return err == nil && r.Allowed > 0, err
		}
	}},
	{"evalsha", func(_ *testing.B, client *redis.Client) allow { // the least that a call can cost
		script := redis.NewScript(lua.Take)
		return func(ctx context.Context, key string) (bool, error) {
			keys := []string{"{" + key + "}", "{" + key + "}:exp"}
			reply, err := script.Run(ctx, client, keys, 1, perSecond, 1000, 0, "").Int64Slice()
			return err == nil && reply[0] == 8, err
		}
	}},
	{"x-time-rate", func(*testing.B, *redis.Client) allow { // in process: shared with nobody
		l := rate.NewLimiter(perSecond, perSecond)
		return func(context.Context, string) (bool, error) { return l.Allow(), nil }
	}},
}

func openReservoir(b *testing.B, client *redis.Client, opts ...reservoir.Option) allow {
	// A busy machine may hold up a call; a measurement is better slow than broken.
	opts = append(opts, reservoir.WithFetchTimeout(time.Second))
	l, err := reservoir.New(redisstore.New(client), reservoir.PerSecond(perSecond), opts...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, l.Close(context.WithoutCancel(b.Context()))) })
	return func(ctx context.Context, key string) (bool, error) {
		r, err := l.Allow(ctx, key)
		return r.Allowed, err
	}
}

// BenchmarkHotKey is many callers of one key whose limit is not reached.
func BenchmarkHotKey(b *testing.B) {
	const goroutines = 64
	server := redistest.Start(b)
	client := server.Client(func(o *redis.Options) { o.PoolSize = goroutines }) // nobody queues for a connection
	for _, l := range limiters {
		b.Run(fmt.Sprintf("limiter=%s/goroutines=%d", l.name, goroutines), func(b *testing.B) {
			require.NoError(b, client.FlushDB(b.Context()).Err())
			allow := l.open(b, client)
			_, err := allow(b.Context(), "warm") // connects, and loads the script
			require.NoError(b, err)

			server.ResetStats()
			b.ReportAllocs()
			latency := hammer(b, goroutines, allow)
			b.ReportMetric(float64(server.Calls("evalsha", "eval"))/float64(b.N), "store-calls/op")
			b.ReportMetric(float64(latency.quantile(0.50)), "p50-ns")
			b.ReportMetric(float64(latency.quantile(0.99)), "p99-ns")
		})
	}
}

// sampling is one in how many calls is timed. Reading the clock costs about as
// much as a call that is served from memory, so the quantiles of those include
// it, while ns/op hardly does.
const sampling = 8

// hammer makes b.N calls from so many goroutines and returns their latencies.
func hammer(b *testing.B, goroutines int, allow allow) *histogram {
	each := make([]histogram, goroutines)
	var wg sync.WaitGroup
	b.ResetTimer()
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < b.N; i += goroutines {
				timed := i/goroutines%sampling == 0
				var begin time.Time
				if timed {
					begin = time.Now()
				}
				ok, err := allow(b.Context(), "hot")
				if timed {
					each[g].add(time.Since(begin))
				}
				if err != nil || !ok {
					b.Errorf("allowed %t, %v", ok, err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	for g := range goroutines - 1 {
		each[0].merge(&each[g+1])
	}
	return &each[0]
}

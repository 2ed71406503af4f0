package reservoir_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// BenchmarkAllow is one hot key whose limit is not reached. Its windows are
// short, so that restocking and resets are part of the measure.
func BenchmarkAllow(b *testing.B) {
	limit := reservoir.PerSecond(1_000_000_000)
	onEachStore(b, func(b *testing.B, store backend.Store) {
		onGoroutines(b, "by=key", func(b *testing.B, goroutines int) {
			l := openIn(b, store, limit)
			measure(b, l, goroutines, true, func(ctx context.Context, _ int) (reservoir.Result, error) {
				return l.Allow(ctx, "hot")
			})
		})
		onGoroutines(b, "by=handle", func(b *testing.B, goroutines int) {
			l := openIn(b, store, limit)
			key := l.Key("hot")
			measure(b, l, goroutines, true, func(ctx context.Context, _ int) (reservoir.Result, error) {
				return key.Allow(ctx)
			})
		})
	})
}

// BenchmarkManyKeys is keys that are all in use, at random.
func BenchmarkManyKeys(b *testing.B) {
	for _, n := range []int{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			l := openIn(b, memstore.New(), reservoir.PerHour(1_000_000_000), reservoir.WithFixedBatch(1_000_000))
			keys := make([]string, n)
			for i := range keys {
				keys[i] = fmt.Sprintf("user:%015d", i)
				_, err := l.Allow(b.Context(), keys[i])
				require.NoError(b, err)
			}
			order := rand.Perm(n)
			measure(b, l, 1, true, func(ctx context.Context, i int) (reservoir.Result, error) {
				return l.Allow(ctx, keys[order[i%n]])
			})
		})
	}
}

// BenchmarkCrowd is goroutines that wait for one fetch; an operation is one of
// them, so that the time of one does not grow with their number.
func BenchmarkCrowd(b *testing.B) {
	for _, n := range []int{100, 1_000, 10_000} {
		b.Run(fmt.Sprintf("waiters=%d", n), func(b *testing.B) {
			arrived, release := make(chan struct{}), make(chan struct{})
			var next atomic.Bool
			net := testnet.Far(0)
			net.Enter = func(ctx context.Context, c *testnet.Call) context.Context {
				if next.CompareAndSwap(true, false) {
					arrived <- struct{}{}
					<-release
				}
				return ctx
			}
			l := openIn(b, net, reservoir.PerHour(1_000_000_000), reservoir.WithFixedBatch(1), reservoir.WithFetchTimeout(time.Minute))
			b.ReportAllocs()
			for i := 0; i < b.N; i += n {
				var wg sync.WaitGroup
				next.Store(true)
				for range n {
					wg.Go(func() { _, _ = l.Allow(context.Background(), strconv.Itoa(i)) })
				}
				<-arrived
				for l.Stats().Waited < int64(i+n) {
					runtime.Gosched()
				}
				release <- struct{}{}
				wg.Wait()
			}
		})
	}
}

// BenchmarkRefused is a key that is known to be exhausted.
func BenchmarkRefused(b *testing.B) {
	onEachStore(b, func(b *testing.B, store backend.Store) {
		onGoroutines(b, "by=key", func(b *testing.B, goroutines int) {
			l := openIn(b, store, reservoir.PerHour(1))
			for range 2 { // the first may take the only token
				_, err := l.Allow(b.Context(), "hot")
				require.NoError(b, err)
			}
			measure(b, l, goroutines, false, func(ctx context.Context, _ int) (reservoir.Result, error) {
				return l.Allow(ctx, "hot")
			})
		})
	})
}

// BenchmarkAway is a key without stock while the store's breaker is open.
func BenchmarkAway(b *testing.B) {
	for name, policy := range map[string]reservoir.Option{
		"closed": failClosed, "open": reservoir.WithFailOpen(), "local": reservoir.WithFailLocal(0.1),
	} {
		b.Run("policy="+name, func(b *testing.B) {
			l, err := reservoir.New(silent{}, reservoir.PerHour(1_000), policy)
			require.NoError(b, err)
			for range 10 { // the breaker opens
				_, _ = l.Allow(b.Context(), "k")
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = l.Allow(b.Context(), "k")
			}
			b.ReportMetric(float64(l.Stats().StoreCalls)/float64(b.N), "store-calls/op")
			_ = l.Close(context.Background())
		})
	}
}

// silent is a store that is away.
type silent struct{ backend.Store }

func (silent) Sync(context.Context, backend.Statement) (backend.Reply, error) {
	return backend.Reply{}, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: context.DeadlineExceeded}
}

// BenchmarkColdKeys meets every key for the first time.
func BenchmarkColdKeys(b *testing.B) {
	onEachStore(b, func(b *testing.B, store backend.Store) {
		onGoroutines(b, "by=key", func(b *testing.B, goroutines int) {
			l := openIn(b, store, reservoir.PerMinute(1_000), reservoir.WithMaxKeys(math.MaxInt32))
			run := strconv.FormatInt(time.Now().UnixNano(), 36) + "."
			measure(b, l, goroutines, true, func(ctx context.Context, i int) (reservoir.Result, error) {
				return l.Allow(ctx, run+strconv.Itoa(i))
			})
		})
	})
}

func onEachStore(b *testing.B, f func(*testing.B, backend.Store)) {
	b.Run("store=mem", func(b *testing.B) { f(b, memstore.New()) })
	b.Run("store=redis", func(b *testing.B) {
		server := redistest.Start(b)
		f(b, redisstore.New(server.Client(func(o *redis.Options) { o.PoolSize = 64 })))
	})
}

func onGoroutines(b *testing.B, by string, f func(*testing.B, int)) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprintf("%s/goroutines=%d", by, n), func(b *testing.B) { f(b, n) })
	}
}

// openIn returns a limiter that is closed with b. A busy machine may hold up a
// call: a measurement is better slow than broken.
func openIn(b *testing.B, store backend.Store, limit reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	b.Helper()
	l, err := reservoir.New(store, limit, append(opts, reservoir.WithFetchTimeout(time.Minute))...)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, l.Close(context.Background())) })
	return l
}

// measure makes b.N calls from so many goroutines; each must be answered by want.
func measure(b *testing.B, l *reservoir.Limiter, goroutines int, want bool, call func(context.Context, int) (reservoir.Result, error)) {
	b.Helper()
	before := l.Stats()
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < b.N; i += goroutines {
				if r, err := call(b.Context(), i); err != nil || r.Allowed != want {
					b.Errorf("call %d: allowed %t, want %t, error %v", i, r.Allowed, want, err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	after := l.Stats()
	b.ReportMetric(float64(after.StoreCalls-before.StoreCalls)/float64(b.N), "store-calls/op")
	b.ReportMetric(float64(after.Waited-before.Waited)/float64(b.N), "waited/op")
}

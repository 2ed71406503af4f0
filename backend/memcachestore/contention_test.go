package memcachestore

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestContention: clients with pools of their own charge one key until nothing
// remains: exactly the limit, whatever they overwrite.
func TestContention(t *testing.T) {
	const clients = 8
	addr := start(t).Addr()
	l := backend.Limit{Tokens: 400, Window: time.Hour}
	var allowed, refunded atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		s := over(t, addr)
		wg.Go(func() {
			for {
				r, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: l, Tokens: 1})
				if !assert.NoError(t, err) || !r.Allowed {
					return
				}
				if allowed.Add(1)%10 == int64(i) { // some are given back
					n, err := s.Refund(t.Context(), backend.RefundRequest{Key: "k", Window: r.Window, Client: fmt.Sprint("r", allowed.Load(), i), Total: 1})
					assert.NoError(t, err)
					refunded.Add(n)
				}
			}
		})
	}
	wg.Wait()
	require.Positive(t, refunded.Load())
	require.Equal(t, l.Tokens, allowed.Load()-refunded.Load())
	require.Positive(t, count(t, addr, "cas_badval"), "they were in each other's way")
}

// TestLimiters: limiters with batches of one key hand back what they do not use: what
// is charged in the end is what they admitted.
func TestLimiters(t *testing.T) {
	const limiters = 4
	addr := start(t).Addr()
	limit := reservoir.Limit{Tokens: 2000, Window: time.Hour}
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range limiters {
		l, err := reservoir.New(over(t, addr), limit, reservoir.WithFetchTimeout(10*time.Second))
		require.NoError(t, err)
		wg.Go(func() {
			for range 400 {
				r, err := l.Allow(t.Context(), "k")
				assert.NoError(t, err)
				if r.Allowed { // else others hold what remains, for now
					allowed.Add(1)
				}
			}
			assert.NoError(t, l.Close(t.Context()))
		})
	}
	wg.Wait()
	state, err := over(t, addr).Check(t.Context(), "k", backend.Limit(limit))
	require.NoError(t, err)
	require.Positive(t, allowed.Load())
	require.Equal(t, limit.Tokens-allowed.Load(), state.Remaining)
}

// BenchmarkContention is the table of README.md: takes of one key by processes that
// know nothing of each other, beside memcached and a millisecond away. Retries are
// those that memcached counted.
//
//	go test -run '^$' -bench Contention -benchtime 5000x .
func BenchmarkContention(b *testing.B) {
	for _, away := range []time.Duration{0, time.Millisecond} {
		for _, callers := range []int{1, 2, 4, 8, 16, 32, 64} {
			b.Run(fmt.Sprintf("away=%v/callers=%d", away, callers), func(b *testing.B) { contend(b, away, callers) })
		}
	}
}

func contend(b *testing.B, away time.Duration, callers int) {
	server := start(b).Addr()
	addr := server
	if away > 0 {
		proxy := redistest.NewProxy(b, server)
		proxy.Delay(away)
		addr = proxy.Addr()
	}
	l := backend.Limit{Tokens: backend.MaxTokens, Window: time.Hour}
	var next, gaveUp atomic.Int64
	times := make([]time.Duration, b.N)
	var wg sync.WaitGroup
	for range callers {
		s := over(b, addr)
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
				began := time.Now()
				_, err := s.Take(b.Context(), backend.TakeRequest{Key: "k", Limit: l, Tokens: 1})
				times[i] = time.Since(began)
				if errors.Is(err, ErrContended) {
					gaveUp.Add(1)
				} else if err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(count(b, server, "cas_badval"))/float64(b.N), "retries/op")
	b.ReportMetric(float64(gaveUp.Load())/float64(b.N), "gave-up/op")
	slices.Sort(times)
	b.ReportMetric(float64(times[b.N/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[b.N*99/100].Microseconds()), "p99-µs")
}

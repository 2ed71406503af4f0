package reservoir

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// exhausted is a fleet of processes that have used the key up, each of which has
// been refused.
func exhausted(t *testing.T, store backend.Store, n int, limit Limit, opts ...Option) []*Limiter {
	all := make([]*Limiter, n)
	for i := range all {
		all[i] = open(t, overNetwork(store, rtt/2), limit, opts...)
		allow(t, all[i], "k", 1)
	}
	for i := range all { // in turn, so that each has some
		for allow(t, all[i], "k", 1).Allowed {
		}
	}
	return all
}

// A refused key costs all processes together some twenty probes a window,
// however many they are and however often each is asked.
func TestProbesAreShared(t *testing.T) {
	const processes, rounds = 20, 10
	limit := Limit{Tokens: 2000, Window: 6 * time.Second}
	var sum int64
	for seed := range uint64(rounds) {
		defer chance.Seed(seed)()
		synctest.Test(t, func(t *testing.T) {
			all := exhausted(t, memstore.New(), processes, limit)
			var before int64
			for _, l := range all {
				before += l.Stats().StoreCalls
			}
			end := time.Now().Add(allow(t, all[0], "k", 1).RetryAfter - limit.Window/refreshPart - 10*rtt)
			var wg sync.WaitGroup
			for i, l := range all {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 10 * time.Millisecond / processes)
					every(t, l, 10*time.Millisecond, end, func(r Result) {
						assert.False(t, r.Allowed)
						assert.Equal(t, Denied, r.Source)
					})
				})
			}
			wg.Wait()
			var probed, calls int64
			for _, l := range all {
				probed += l.Stats().Probes
				calls += l.Stats().StoreCalls
			}
			assert.InDelta(t, probed, calls-before, 3, "no other calls")
			assert.LessOrEqual(t, probed, int64(45))
			sum += probed
		})
	}
	mean := float64(sum) / rounds
	assert.InDelta(t, probes, mean, 8)
	t.Logf("%.1f probes a window", mean)
}

// Tokens that come back to an exhausted key are found within a twentieth of the
// window on average, by whichever process asks.
func TestReturnedTokensAreFound(t *testing.T) {
	const processes, rounds = 10, 60
	limit := Limit{Tokens: 1000, Window: 20 * time.Second}
	var sum time.Duration
	for seed := range uint64(rounds) {
		defer chance.Seed(seed)()
		synctest.Test(t, func(t *testing.T) {
			ctx := context.Background()
			store := memstore.New()
			all := exhausted(t, store, processes, limit)
			r := allow(t, all[0], "k", 1)
			require.False(t, r.Allowed)
			var begin time.Time
			var found atomic.Int64
			var wg sync.WaitGroup
			for i, l := range all {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * time.Millisecond)
					for found.Load() == 0 && time.Now().Before(r.Reset.Add(-rtt)) {
						if allow(t, l, "k", 1).Allowed {
							found.CompareAndSwap(0, int64(time.Since(begin)))
						}
						time.Sleep(10 * time.Millisecond)
					}
				})
			}
			time.Sleep(limit.Window / 10)
			begin = time.Now()
			back, err := store.Refund(ctx, backend.RefundRequest{Key: "k", Window: r.window(), Tokens: 5})
			require.NoError(t, err)
			require.EqualValues(t, 5, back)
			wg.Wait()
			require.Positive(t, found.Load(), "seed %d: not in the rest of the window", seed)
			sum += time.Duration(found.Load())
		})
	}
	mean := sum / rounds
	assert.Less(t, mean, limit.Window/probes*3/2)
	t.Logf("found after %v on average, a twentieth of the window is %v", mean, limit.Window/probes)
}

// 64 callers in one process, refused for ten seconds without a pause.
func TestRefusalsOfAPacedCrowdAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := exhausted(t, memstore.New(), 1, PerMinute(1000))[0]
		before := l.Stats().StoreCalls
		end := time.Now().Add(10 * time.Second)
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Microsecond)
				every(t, l, 2*time.Millisecond, end, func(r Result) { assert.False(t, r.Allowed) })
			})
		}
		wg.Wait()
		assert.LessOrEqual(t, l.Stats().StoreCalls-before, int64(25))
		assert.GreaterOrEqual(t, l.Stats().Denied, int64(64*5000))
	})
}

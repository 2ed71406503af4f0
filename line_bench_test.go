//go:build unix

package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// BenchmarkArrival is a caller that comes to a line in which so many others wait, and leaves.
func BenchmarkArrival(b *testing.B) {
	for name, f := range map[string]func(b *testing.B) *reservoir.Limiter{
		"fetching": func(b *testing.B) *reservoir.Limiter {
			store := &gated{Store: memstore.New(), open: make(chan struct{}), answers: func() {}}
			l := openIn(b, store, reservoir.PerHour(1<<50))
			b.Cleanup(func() { close(store.open) }) // before l is closed
			return l
		},
		"parked": func(b *testing.B) *reservoir.Limiter {
			l := openIn(b, memstore.New(), reservoir.PerHour(1))
			drain(b, l, "k", 1)
			return l
		},
		"outage": func(b *testing.B) *reservoir.Limiter {
			net := testnet.Far(0)
			net.Always(testnet.Refuse)
			l := openIn(b, net, reservoir.PerHour(1<<50))
			b.Cleanup(func() { net.Faults(nil) })
			return l
		},
	} {
		for _, n := range []int{2_000, 32_000} {
			b.Run(fmt.Sprintf("line=%s/callers=%d", name, n), func(b *testing.B) {
				l := f(b)
				leave := stand(l, n, 0)
				defer leave()
				b.ReportAllocs()
				for b.Loop() {
					if _, err := l.Wait(&leaver{Context: context.Background()}, "k"); !errors.Is(err, context.Canceled) {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkParked is the CPU time of callers that wait for a reset: for each one to come, for
// each of the hundred that the reset serves, and for each that leaves without.
func BenchmarkParked(b *testing.B) {
	const limit = 100
	for _, timeout := range []time.Duration{0, 1e6 * time.Hour} {
		for _, n := range []int{3_200, 32_000} {
			b.Run(fmt.Sprintf("deadlines=%t/callers=%d", timeout != 0, n), func(b *testing.B) {
				var came, served, left time.Duration
				for range b.N {
					l := openIn(b, memstore.New(), reservoir.PerHour(limit))
					drain(b, l, "k", 1)
					begin := cpu(b)
					leave := stand(l, n, timeout)
					stood, admitted := cpu(b), l.Stats().Admitted
					require.NoError(b, l.Reset(b.Context(), "k"))
					for l.Stats().Admitted < admitted+limit {
						time.Sleep(time.Millisecond)
					}
					reset := cpu(b)
					leave()
					came, served, left = came+stood-begin, served+reset-stood, left+cpu(b)-reset
				}
				each := func(d time.Duration, n int) float64 { return float64(d.Microseconds()) / float64(n*b.N) }
				b.ReportMetric(each(came, n), "arrive-µs")
				b.ReportMetric(each(served, limit), "served-µs")
				b.ReportMetric(each(left, n-limit), "cancel-µs")
			})
		}
	}
}

// stand makes n callers wait, and returns a function that makes those leave who still do.
// Each has a deadline if timeout is not 0.
func stand(l *reservoir.Limiter, n int, timeout time.Duration) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	before := l.Stats().Waited
	for range n {
		wg.Go(func() {
			ctx := ctx
			if timeout != 0 {
				bounded, cancel := context.WithTimeout(ctx, timeout)
				defer cancel()
				ctx = bounded
			}
			_, _ = l.Wait(ctx, "k")
		})
	}
	for l.Stats().Waited < before+int64(n) {
		runtime.Gosched()
	}
	return func() { cancel(); wg.Wait() }
}

// leaver is the context of a caller that leaves as soon as it stands in line.
type leaver struct {
	context.Context
	left atomic.Bool
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (g *leaver) Done() <-chan struct{} { g.left.Store(true); return closed }
func (g *leaver) Err() error {
	if g.left.Load() {
		return context.Canceled
	}
	return nil
}

// cpu is the processor time that the process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

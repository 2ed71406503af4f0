package bench

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// BenchmarkPeers is every kind in every scenario, for benchstat: by -col /limiter
// it sets peers side by side, and two builds otherwise. Limiters are new to their
// keys, so that ten thousand of them want a -benchtime of seconds. What takes
// turns, and so is to be trusted on a noisy machine, is TestPeers.
func BenchmarkPeers(b *testing.B) {
	server := redistest.Start(b)
	far := redistest.NewProxy(b, server.Addr())
	far.Delay(farDelay)
	d := &driver{near: connected(b, server.Addr()), far: connected(b, far.Addr()), count: server.Calls}
	admin := server.Client()
	for _, s := range scenarios() {
		for _, k := range s.kinds {
			b.Run("scenario="+s.name+"/limiter="+plain(k.name), func(b *testing.B) {
				require.NoError(b, admin.FlushDB(b.Context()).Err())
				d.bench(b, s, k)
			})
		}
	}
}

// plain is a name as benchmark names may hold it.
func plain(name string) string {
	if strings.HasPrefix(name, "[") {
		name = "stand-in " + name
	}
	fold := func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return ' '
	}
	return strings.Join(strings.Fields(strings.Map(fold, name)), "-")
}

// bench makes b.N requests by the scenario's goroutines.
func (d *driver) bench(b *testing.B, s scenario, k kind) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(s.procs))
	r := d.rig(s)
	p := k.open(r)
	defer func() { require.NoError(b, p.end()) }()

	workers := d.workers(b.Context(), s)
	inParallel(workers, func(_ int, w *worker) { w.times(1, p, 1); w.sample = newSample() }) // connects, and loads scripts
	commands := d.count(k.sends...)
	b.ReportAllocs()
	b.ResetTimer()
	inParallel(workers, func(i int, w *worker) { w.times((b.N+i)/len(workers), p, k.every) })
	b.StopTimer()

	sum := total(workers)
	if !k.lossy {
		require.NoError(b, sum.err)
		require.Equal(b, sum.asked, sum.good)
	}
	b.ReportMetric(float64(d.count(k.sends...)-commands)/float64(b.N), "store-calls/op")
	b.ReportMetric(float64(sum.latency.Quantile(0.50)), "p50-ns")
	b.ReportMetric(float64(sum.latency.Quantile(0.99)), "p99-ns")
}

// times makes n requests, and times as many of them.
func (w *worker) times(n int, p peer, every int) {
	for skip := w.first % every; n > 0; skip = every - 1 {
		w.make(p, min(skip, max(n, 0)))
		if n -= skip; n > 0 {
			w.timed(p)
			n--
		}
	}
}

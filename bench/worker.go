package bench

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// worker is one goroutine's requests and what became of them. Nothing of it is
// shared while it runs.
type worker struct {
	ctx     context.Context
	keys    keys
	first   int // how many requests, at random, come before the first that is timed
	asked   int64
	good    int64                   // answered as they should be
	err     error                   // the last one
	latency *hdrhistogram.Histogram // of durations in ns
}

// until makes requests until stop, and one at least. It times one in every; to
// time more would measure the clock. Which is the first to be timed differs from
// worker to worker: were it the first of all, those would have more than their
// share in the quantiles.
func (w *worker) until(stop *atomic.Bool, p peer, every int) {
	for n := w.first % every; ; n = every - 1 {
		w.untimed(p, n)
		if stop.Load() && w.asked > 0 {
			return
		}
		w.timed(p)
	}
}

func (w *worker) timed(p peer) {
	begin := time.Now()
	w.good += p.loop(w, 1)
	note(w.latency, time.Since(begin))
	w.asked++
}

func (w *worker) untimed(p peer, n int) {
	if n > 0 {
		w.good += p.loop(w, n)
		w.asked += int64(n)
	}
}

// reset forgets the counts.
func (w *worker) reset() {
	w.asked, w.good, w.err = 0, 0, nil
	w.latency.Reset()
}

// slowest bounds what is recorded.
const slowest = int64(time.Minute)

// newHistogram is exact to 1 % and takes 20 KB; it allocates nothing while a benchmark
// counts allocations.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, slowest, 2) }

func note(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), 1), slowest)) // within its bounds
}

// quantileOf is where the share q of all is reached.
func quantileOf(h *hdrhistogram.Histogram, q float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(100 * q))
}

// keys is the keys that a worker asks for: those of a list, over and over, or,
// without a list, each but once.
type keys struct {
	list []string
	at   int
	once []byte // their beginning
}

// next is cycle or a key that was never asked for.
func (k *keys) next() string {
	if k.list != nil {
		return k.cycle()
	}
	k.at++
	return string(strconv.AppendInt(k.once, int64(k.at), 36))
}

// cycle is the list's next key; it is small enough to be inlined.
func (k *keys) cycle() string {
	if k.at++; k.at >= len(k.list) {
		k.at = 0
	}
	return k.list[k.at]
}

// hot is a single key.
func hot() []string { return []string{"hot"} }

// evenly is n keys in random order.
func evenly(n int, seed uint64) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = "key:" + strconv.Itoa(i)
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(n, func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// zipf is a sequence of draws in which key i of n has a share of 1/i^s.
func zipf(n int, s float64, seed uint64) []string {
	keys, rnd := evenly(n, seed), rand.New(rand.NewPCG(seed, 1))
	draw := rand.NewZipf(rnd, s, 1, uint64(n-1))
	list := make([]string, 1<<18)
	for i := range list {
		list[i] = keys[draw.Uint64()]
	}
	return list
}

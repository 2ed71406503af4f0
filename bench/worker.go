package bench

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// worker is one goroutine's requests and what became of them. Nothing of it is
// shared while it runs.
type worker struct {
	ctx     context.Context
	keys    keys
	first   int // how many requests, at random, come before the first that is timed
	asked   int64
	good    int64 // answered as they should be
	err     error // the last one
	latency sim.Latency
}

// until makes requests until stop, and one at least. It times one in every; to
// time more would measure the clock. Which is the first to be timed differs from
// worker to worker: were it the first of all, those would have more than their
// share in the quantiles.
func (w *worker) until(stop *atomic.Bool, p peer, every int) {
	for n := w.first % every; ; n = every - 1 {
		w.make(p, n)
		if stop.Load() && w.asked > 0 {
			return
		}
		w.timed(p)
	}
}

func (w *worker) timed(p peer) {
	begin := time.Now()
	w.make(p, 1)
	w.latency.Note(time.Since(begin))
}

// make makes n requests. The call of the peer is a nanosecond or so, the same to all.
func (w *worker) make(p peer, n int) {
	for range n {
		if p.ok(w) {
			w.good++
		}
	}
	w.asked += int64(n)
}

// reset forgets the counts.
func (w *worker) reset() {
	w.asked, w.good, w.err = 0, 0, nil
	w.latency.Reset()
}

// keys is the keys that a worker asks for: those of a list, over and over, or,
// without a list, each but once.
type keys struct {
	list []string
	at   int
	once []byte // their beginning
}

// next is the list's next key, or one that was never asked for. It is small enough to be inlined.
func (k *keys) next() string {
	if k.at++; k.at < len(k.list) {
		return k.list[k.at]
	}
	return k.further()
}

func (k *keys) further() string {
	if k.list == nil {
		return string(strconv.AppendInt(k.once, int64(k.at), 36))
	}
	k.at = 0
	return k.list[0]
}

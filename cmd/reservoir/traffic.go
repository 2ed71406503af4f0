package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// traffic is a load: who calls, for what, and how often.
//
// The workers share nothing while it runs but, if it is paced, the schedule:
// call i is due i/rate after the start, whichever worker is free makes it, and
// calls that are late (the process was stopped, all workers waited) are made up
// for. So the rate is right over all workers, and over time.
type traffic struct {
	keys     []string
	slots    []int         // keys to pick from evenly; nil = by zipf
	zipf     float64       // exponent above 1; 0 = evenly
	workers  int           // callers at a time
	tokens   int64         // a call asks for
	rate     float64       // calls per second over all workers; 0 = as fast as they can
	requests int64         // calls in all; 0 = until the context ends
	think    time.Duration // between a worker's calls
	seed     uint64
}

// run makes the calls until there are enough of them or ctx ends. A call under
// way when ctx ends runs to its decision, which the fetch timeout bounds.
func (t *traffic) run(ctx context.Context, l *reservoir.Limiter) *tally {
	start := time.Now()
	tallies := make([]*tally, t.workers)
	var tickets atomic.Int64
	var wg sync.WaitGroup
	for i := range tallies {
		w := t.worker(i, start, &tickets)
		tallies[i] = w.sum
		wg.Go(func() { w.work(ctx, l) })
	}
	wg.Wait()
	for _, other := range tallies[1:] {
		tallies[0].merge(other)
	}
	tallies[0].elapsed = time.Since(start)
	return tallies[0]
}

// worker makes one call at a time.
type worker struct {
	*traffic
	sum     *tally
	pick    func() int // the next key
	quota   int64      // of t.requests, if it is not paced
	start   time.Time
	tickets *atomic.Int64 // calls that are made or about to be, by all workers
	timer   *time.Timer
}

func (t *traffic) worker(i int, start time.Time, tickets *atomic.Int64) *worker {
	w := &worker{traffic: t, sum: newTally(), start: start, tickets: tickets}
	w.pick = t.picker(rand.New(rand.NewPCG(t.seed, uint64(i))))
	w.quota = t.requests / int64(t.workers)
	if int64(i) < t.requests%int64(t.workers) {
		w.quota++
	}
	w.timer = time.NewTimer(0)
	return w
}

func (w *worker) work(ctx context.Context, l *reservoir.Limiter) {
	defer w.timer.Stop()
	for ctx.Err() == nil && w.next(ctx) {
		key := w.pick()
		begin := time.Now()
		r, err := l.AllowN(context.Background(), w.keys[key], w.tokens)
		w.sum.record(key, w.tokens, r, err, begin, time.Since(begin))
		if w.think > 0 && !w.sleep(ctx, w.think) {
			return
		}
	}
}

// next waits for the worker's turn, and reports whether there is one.
func (w *worker) next(ctx context.Context) bool {
	if w.rate == 0 {
		w.quota--
		return w.requests == 0 || w.quota >= 0
	}
	ticket := w.tickets.Add(1) - 1
	if w.requests > 0 && ticket >= w.requests {
		return false
	}
	due := w.start.Add(time.Duration(float64(ticket) / w.rate * float64(time.Second)))
	wait := time.Until(due)
	return wait <= 0 || w.sleep(ctx, wait)
}

// sleep waits for d and reports whether ctx was still alive then.
func (w *worker) sleep(ctx context.Context, d time.Duration) bool {
	w.timer.Reset(d)
	select {
	case <-w.timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// picker returns a function that picks keys by the traffic's distribution.
func (t *traffic) picker(r *rand.Rand) func() int {
	switch {
	case len(t.keys) == 1:
		return func() int { return 0 }
	case t.slots != nil:
		return func() int { return t.slots[r.IntN(len(t.slots))] }
	}
	return sim.Picker(r, len(t.keys), t.zipf)
}

package main

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// traffic is a load: who calls, for what, and how often.
//
// The workers share nothing while it runs. Worker i of w makes calls i, i+w, i+2w …;
// if it is paced, call n is due n/rate after the start, and calls that are late (the
// process was stopped, the worker waited) are made up for. So the rate is right over time.
type traffic struct {
	keys     []string
	zipf     float64 // exponent above 1; 0 = evenly
	workers  int     // callers at a time
	tokens   int64   // a call asks for
	rate     float64 // calls per second over all workers; 0 = as fast as they can
	requests int64   // calls in all; 0 = until the context ends
	seed     uint64
}

// run makes the calls until there are enough of them or ctx ends. A call under
// way when ctx ends runs to its decision, which the fetch timeout bounds.
func (t *traffic) run(ctx context.Context, l *reservoir.Limiter) *report {
	start := time.Now()
	all := make([]*report, t.workers)
	var wg sync.WaitGroup
	for i := range all {
		all[i] = newReport()
		wg.Go(func() { t.work(ctx, l, i, start, all[i]) })
	}
	wg.Wait()
	for _, other := range all[1:] {
		all[0].merge(other)
	}
	all[0].Seconds, all[0].Seed, all[0].keys = time.Since(start).Seconds(), t.seed, len(t.keys)
	return all[0]
}

// work makes one call at a time.
func (t *traffic) work(ctx context.Context, l *reservoir.Limiter, i int, start time.Time, r *report) {
	pick := sim.Picker(rand.New(rand.NewPCG(t.seed, uint64(i))), len(t.keys), t.zipf)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := int64(i); t.requests == 0 || n < t.requests; n += int64(t.workers) {
		if t.rate > 0 {
			timer.Reset(time.Until(start.Add(time.Duration(float64(n) / t.rate * float64(time.Second)))))
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return
		}
		key := pick()
		begin := time.Now()
		result, err := l.AllowN(context.Background(), t.keys[key], t.tokens)
		kept := t.keys[key]
		if key >= windowKeys {
			kept = ""
		}
		r.record(kept, t.tokens, result, err, begin, time.Since(begin))
	}
}

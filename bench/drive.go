package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// driver runs scenarios. All kinds of a scenario take turns, slice by slice, so that
// other work of the machine slows all of them alike. Figures are compared within a round.
type driver struct {
	rounds    int
	every     int           // at least one in this many requests is timed
	slice     time.Duration // of one kind in one round
	warm      time.Duration // before each slice, not counted
	near, far *rig          // connections to Redis, and by a proxy that delays
	count     func(commands ...string) int64
	flush     func() error // deletes all that Redis holds

	slices int // run so far
}

// line is the result of one kind in one scenario.
type line struct {
	scenario scenario
	kind     kind
	samples  []sample // by round
	peer     peer     // while the scenario is under way
}

// sample is the result of one kind in one slice, or of one of its workers.
type sample struct {
	asked, good int64 // requests, and those with the expected answer
	elapsed     time.Duration
	latency     sim.Latency
	commands    int64 // that Redis executed for it
	mallocs     uint64
	err         error // one of the requests' errors
}

func newSample() sample { return sample{latency: sim.NewLatency()} }

// run runs s and returns a line for each of its kinds.
func (d *driver) run(ctx context.Context, s scenario) (all []*line, err error) {
	if s.procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(s.procs))
	}
	r := d.rig(s)
	defer func() { err = errors.Join(err, d.flush()) }()
	for _, k := range s.kinds {
		l := &line{scenario: s, kind: k, peer: k.open(r)}
		defer func() { err = errors.Join(err, l.peer.end()) }()
		all = append(all, l)
	}
	for round := range d.rounds {
		for i := range all { // no kind always goes first
			l := all[(i+round)%len(all)]
			l.samples = append(l.samples, d.measure(ctx, l))
			if s.once() { // a limiter of all keys so far would grow from slice to slice
				err = errors.Join(err, l.peer.end(), d.flush())
				l.peer = l.kind.open(r)
			}
		}
	}
	return all, err
}

func (d *driver) rig(s scenario) *rig {
	r := *d.near
	if s.delay > 0 {
		r = *d.far
	}
	r.limit = s.limit
	return &r
}

func (d *driver) measure(ctx context.Context, l *line) sample {
	slice, warm := d.slice, d.warm
	if !l.scenario.redis() { // in half the time a memory answers more often than a network in the whole
		slice, warm = slice/2, warm/2
	}
	workers := d.workers(ctx, l.scenario)
	d.together(workers, warm, l)
	for _, w := range workers {
		w.sample = newSample()
	}
	runtime.GC() // so that it does not collect the previous kind's garbage
	commands := d.count(l.kind.sends...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	elapsed := d.together(workers, slice, l)
	runtime.ReadMemStats(&after)
	s := total(workers)
	s.elapsed, s.mallocs, s.commands = elapsed, after.Mallocs-before.Mallocs, d.count(l.kind.sends...)-commands
	return s
}

// workers returns the workers of a slice. They share no key with another slice if each
// key is used once.
func (d *driver) workers(ctx context.Context, s scenario) []*worker {
	workers := make([]*worker, s.goroutines)
	for i := range workers {
		own := keys{list: s.list, at: i * len(s.list) / s.goroutines, once: fmt.Appendf(nil, "%s:%d:%d:", s.name, d.slices, i)}
		workers[i] = &worker{ctx: ctx, keys: own, first: rand.Int(), sample: newSample()}
	}
	d.slices++
	return workers
}

func total(workers []*worker) sample {
	s := newSample()
	for _, w := range workers {
		s.asked, s.good, s.err = s.asked+w.asked, s.good+w.good, cmp.Or(s.err, w.err)
		s.latency.Merge(w.latency.Histogram)
	}
	return s
}

// together runs all workers for about length and returns how long they took.
func (d *driver) together(workers []*worker, length time.Duration, l *line) time.Duration {
	var stop atomic.Bool
	defer time.AfterFunc(length, func() { stop.Store(true) }).Stop()
	every := min(l.kind.every, d.every)
	return inParallel(workers, func(_ int, w *worker) { w.until(&stop, l.peer, every) })
}

// inParallel runs f for each worker in its own goroutine and returns how long that took.
func inParallel(workers []*worker, f func(i int, w *worker)) time.Duration {
	var wg sync.WaitGroup
	begin := time.Now()
	for i, w := range workers {
		wg.Go(func() { f(i, w) })
	}
	wg.Wait()
	return time.Since(begin)
}

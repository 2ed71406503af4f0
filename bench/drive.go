package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// driver runs scenarios. All kinds of a scenario take turns, slice by slice, so
// that whatever else the machine does falls on all of them; what is compared is
// compared within a round.
type driver struct {
	rounds int
	every  int           // at least one in so many requests is timed, if not 0
	slice  time.Duration // of one kind in one round
	warm   time.Duration // before that, not counted
	redis  string        // address
	far    string        // address of a proxy that delays
	count  func(commands ...string) int64
	flush  func() error // of all that Redis holds
	say    func(text string)

	slices int // so far
}

// line is what one kind did in one scenario.
type line struct {
	scenario scenario
	kind     kind
	samples  []sample // by round
}

// sample is what one kind did in one slice.
type sample struct {
	asked, good int64
	elapsed     time.Duration
	latency     *hdrhistogram.Histogram
	commands    int64 // that Redis executed for it
	mallocs     uint64
	err         error // one of those that requests met
}

// contestant is a kind in a scenario that is under way.
type contestant struct {
	line
	peer peer // closed = the zero one
}

// run runs s and returns a line for each of its kinds.
func (d *driver) run(ctx context.Context, s scenario) (ls lines, err error) {
	if s.procs > 0 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(s.procs))
	}
	r := d.rig(s)
	defer func() { err = errors.Join(err, r.close(), d.flush()) }()
	var all []*contestant
	for _, k := range s.kinds {
		c := &contestant{line: line{scenario: s, kind: k}}
		defer func() { err = errors.Join(err, c.shut()) }()
		all = append(all, c)
	}
	d.say(fmt.Sprintf("%s: %d rounds of %d …\n", s.title, d.rounds, len(all)))
	for round := range d.rounds {
		for i := range all {
			c := all[(i+round)%len(all)] // nobody always goes first
			if err := d.turn(ctx, r, c); err != nil {
				return nil, err
			}
		}
	}
	for _, c := range all {
		ls = append(ls, c.line)
	}
	return ls, nil
}

// rig is what the kinds of s are set up with; within the process that is no more
// than the limit.
func (d *driver) rig(s scenario) *rig {
	switch {
	case !s.redis():
		return &rig{limit: s.limit}
	case s.delay > 0:
		return newRig(d.far, s.limit)
	}
	return newRig(d.redis, s.limit)
}

// turn adds a sample to c.
func (d *driver) turn(ctx context.Context, r *rig, c *contestant) error {
	if c.peer.close == nil {
		c.peer = c.kind.set(r)
	}
	workers := make([]*worker, c.scenario.goroutines)
	for i := range workers {
		workers[i] = c.scenario.worker(ctx, i, d.slices)
	}
	d.slices++
	together(workers, d.warm*d.sliceOf(c.scenario)/d.slice, c.peer, d.everyOf(c.kind))
	c.samples = append(c.samples, d.measure(workers, c))
	if c.scenario.once() {
		return errors.Join(c.shut(), d.flush())
	}
	return nil
}

// shut closes the peer, if it is open.
func (c *contestant) shut() error {
	if c.peer.close == nil {
		return nil
	}
	if err := c.peer.close(); err != nil {
		return fmt.Errorf("%s: close: %w", c.kind.name, err)
	}
	c.peer = peer{}
	return nil
}

// measure runs the workers for a slice. The garbage of the one before is not its
// burden.
func (d *driver) measure(workers []*worker, c *contestant) sample {
	for _, w := range workers {
		w.reset()
	}
	runtime.GC()
	commands := d.commands(c.kind)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	elapsed := together(workers, d.sliceOf(c.scenario), c.peer, d.everyOf(c.kind))
	runtime.ReadMemStats(&after)
	s := total(workers)
	s.elapsed, s.mallocs, s.commands = elapsed, after.Mallocs-before.Mallocs, d.commands(c.kind)-commands
	return s
}

// total adds up what the workers did.
func total(workers []*worker) sample {
	s := sample{latency: newHistogram()}
	for _, w := range workers {
		s.asked += w.asked
		s.good += w.good
		s.latency.Merge(w.latency)
		if w.err != nil {
			s.err = w.err
		}
	}
	return s
}

// sliceOf is how long a slice of s is. In half the time a memory answers more
// often than a network in the whole.
func (d *driver) sliceOf(s scenario) time.Duration {
	if s.redis() {
		return d.slice
	}
	return d.slice / 2
}

func (d *driver) everyOf(k kind) int {
	if d.every > 0 {
		return min(k.every, d.every)
	}
	return k.every
}

func (d *driver) commands(k kind) int64 {
	if k.sends == nil {
		return 0
	}
	return d.count(k.sends...)
}

// together runs all workers for about so long and returns how long it was.
func together(workers []*worker, d time.Duration, p peer, every int) time.Duration {
	var stop atomic.Bool
	defer time.AfterFunc(d, func() { stop.Store(true) }).Stop()
	return inParallel(workers, func(_ int, w *worker) { w.until(&stop, p, every) })
}

// inParallel runs f for each worker in a goroutine of its own.
func inParallel(workers []*worker, f func(i int, w *worker)) time.Duration {
	var wg sync.WaitGroup
	begin := time.Now()
	for i, w := range workers {
		wg.Go(func() { f(i, w) })
	}
	wg.Wait()
	return time.Since(begin)
}

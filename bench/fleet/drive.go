package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
)

// driver makes the requests of all processes, each at its time.
//
// A goroutine for each request would be plain, and a goroutine for each process
// wrong: a request that waits for the network would hold up those behind it. But
// nearly all requests are decided in memory, so one goroutine makes them all,
// one after the other, as long as none has to wait. It holds the baton. When one
// is about to wait the limiter looks at its context's Done, and that passes the
// baton on. The goroutine that comes back from a wait has none, and rests until
// it is handed over again.
type driver struct {
	begin time.Time
	next  agenda // of who has the baton, as are the arrivals
	procs []process
	tally *tally

	baton  chan struct{} // one in all, here or in a runner's hands
	idle   atomic.Int64  // runners that wait for the baton
	all    sync.WaitGroup
	finish chan struct{} // closed when the tally is complete
}

type process struct {
	limiter  *reservoir.Limiter
	arrivals arrivals
	lane     lane
	drawn    time.Duration // the last arrival
	made     time.Duration // the same, on the lane
}

// next returns the time of the next request.
func (p *process) next() time.Duration {
	p.drawn = p.arrivals.after(p.drawn)
	p.made = p.lane.next(max(p.drawn, p.made+1), request)
	return p.made
}

const key = "shared"

// run returns when the tally is complete and every request has its answer.
func (d *driver) run() {
	d.baton = make(chan struct{}, 1)
	d.finish = make(chan struct{})
	for i := range d.procs {
		d.next = append(d.next, arrival{d.procs[i].next(), i})
	}
	d.next.order()
	d.pass()
	<-d.finish
	close(d.baton)
	d.all.Wait()
}

// pass hands the baton to an idle runner.
func (d *driver) pass() {
	if d.idle.Load() == 0 {
		d.idle.Add(1)
		r := &runner{Context: context.Background(), driver: d}
		d.all.Go(r.run)
	}
	d.baton <- struct{}{}
}

// runner is a goroutine that makes requests, and their context.
type runner struct {
	context.Context
	driver *driver
	leads  bool // has the baton
}

// Done is called by who is about to wait. The context itself never ends.
func (r *runner) Done() <-chan struct{} {
	if r.leads {
		r.leads = false
		r.driver.pass()
	}
	return nil
}

func (r *runner) run() {
	d := r.driver
	for range d.baton {
		d.idle.Add(-1)
		for r.leads = true; r.leads; {
			if !r.request() {
				close(d.finish)
				return
			}
		}
		d.idle.Add(1)
	}
}

// request makes the next request at its time, unless that is after the end. What
// follows it is put on the agenda first, because the baton may be gone after.
func (r *runner) request() bool {
	d := r.driver
	next, p := d.next[0].at, &d.procs[d.next[0].process]
	d.next.replace(p.next())
	at := d.begin.Add(next)
	time.Sleep(time.Until(at))
	if !d.tally.begin(at, time.Now()) {
		return false
	}
	result, err := p.limiter.Allow(r, key)
	d.tally.end(at, result, err)
	return true
}

// agenda is a heap of the next arrival of each process.
type agenda []arrival

type arrival struct {
	at      time.Duration
	process int
}

func (a arrival) before(b arrival) bool {
	return a.at < b.at || a.at == b.at && a.process < b.process
}

func (h agenda) order() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.sink(i)
	}
}

// replace puts the first process' next arrival in the place of its last.
func (h agenda) replace(at time.Duration) {
	h[0].at = at
	h.sink(0)
}

func (h agenda) sink(i int) {
	for {
		least := 2*i + 1
		if least >= len(h) {
			return
		}
		if right := least + 1; right < len(h) && h[right].before(h[least]) {
			least = right
		}
		if !h[least].before(h[i]) {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

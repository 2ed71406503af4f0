package reservoir

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// This file is the bookkeeping of an entry. All of it is under entry.mu.

// apply takes in what the store answered to the statement q.
func (e *entry) apply(q backend.SyncRequest, r backend.SyncReply, sent, now int64) {
	e.enter(r.State, r.Carried, now)
	e.missed = false
	e.granted, e.returned = r.Granted, r.Returned
	e.heard(r.Total)
	e.counted = int32(min(r.Clients, math.MaxInt32))
	e.clients = max(e.counted, e.clients)
	e.take(r.Grant)
	w := e.win.Load()
	if w == nil { // nothing is charged, and so no window is open
		return
	}
	w.quiet.Store(0)
	w.heard(r.State, q.Limit, sent, now)
	e.put(r.Grant)
	e.foresee(r)
	e.small = q.Want > q.Need && r.Grant <= q.Need && r.Remaining > 0 && !r.Learning
	e.quiet = 0
	if r.Remaining == 0 && q.Limit.Tokens >= e.limit().Tokens { // which may have been raised since
		e.hush(w, now)
	} else if e.hushed != 0 {
		e.hushed = 0
	}
	e.aim(w)
}

// hush stops asking for what is not there, until it is this process' turn to
// probe or the window ends. Each process takes its turn at random, with a mean
// of so many times the common interval as there are processes.
func (e *entry) hush(w *window, now int64) {
	e.learn()
	if e.hushed == 0 {
		e.watch(now)
		e.hushed = now
	}
	turn := chance.Interval(e.limit().Window/probes).Seconds() * float64(max(e.clients, 1))
	e.quiet = w.ends.Load()
	if left := time.Duration(e.quiet - now); turn < left.Seconds() { // it may be thousands of years
		e.quiet = now + int64(turn*float64(time.Second))
	}
}

// enter makes the store's window the current one. What was held in another is
// carried along if the store says so, and has expired otherwise.
func (e *entry) enter(s backend.State, carried bool, now int64) {
	old := e.win.Load()
	if old != nil && old.id == s.Window {
		return
	}
	defer e.begun(now)
	var next *window
	if s.Window != 0 {
		next = newWindow(s)
	}
	e.win.Store(next)
	e.granted, e.returned, e.quiet = 0, 0, 0
	e.heard(0)
	if e.local != nil {
		e.local.stated = 0
	}
	if old == nil {
		return
	}
	held := old.stock.Swap(0) + e.pot
	e.pot = 0
	if carried && next != nil {
		e.put(held)
	} else {
		e.expire(held)
	}
}

// heard notes that the store has heard of all that was given back, or does not care
// any more, and the total of which it told.
func (e *entry) heard(total int64) {
	if e.learned() {
		e.unheard, e.total = 0, total
	}
}

// overhear takes in a reading that came with a direct call or a check. It says
// nothing of the account, so it never ends a window that is alive.
func (e *entry) overhear(s backend.State, l Limit, sent, now int64) {
	w := e.win.Load()
	if e.dead || s.Window == 0 || w.alive(now) && w.id != s.Window || w != nil && s.Window < w.id {
		return
	}
	e.enter(s, false, now)
	e.win.Load().heard(s, l, sent, now)
}

// put adds tokens of the current window to the stock, or to the pot while
// callers wait for the fetch under way.
func (e *entry) put(n int64) {
	e.pot += n
	if e.queue.empty() {
		e.release()
	}
}

// gather reserves the stock for the queue. What is in the pot the hot path cannot
// see, so until release it may refuse nobody.
func (e *entry) gather() {
	if w := e.win.Load(); w != nil {
		w.quiet.Store(0)
		e.pot += w.stock.Swap(0)
	}
}

// release makes stock of what the queue does not need, and then lets the hot path
// refuse what stock and store have not got. Each round publishes another instant,
// a microsecond later at most, so that who reads it before and after the stock
// knows that no stock was hidden in between.
func (e *entry) release() {
	w := e.win.Load()
	if w == nil {
		return
	}
	w.stock.Add(e.pot)
	e.pot = 0
	if e.quiet == 0 {
		w.quiet.Store(0)
		return
	}
	e.round++
	w.quiet.Store(e.quiet + int64(e.round%1000))
}

// known reports whether n tokens are surely not to be had from stock and store.
func (e *entry) known(w *window, n int64) bool {
	return e.quiet != 0 && n > w.remaining.Load()+w.stock.Load()+e.pot
}

// serve grants the places at the head of the queue that the pot covers.
func (e *entry) serve(now int64) {
	w := e.win.Load()
	for p := e.queue.head; p != nil && w.alive(now) && p.n <= e.pot; p = e.queue.head {
		e.grant(p, w)
	}
}

func (e *entry) grant(p *place, w *window) {
	e.pot -= p.n
	var r Result
	w.admit(&r, e.limit().Tokens, p.n, e.pot, Fetched)
	e.queue.settle(p, r, w, nil)
}

// answer serves the queue after a reply. Places that the store cannot cover are
// refused there and then, without another call; waiters stay for the reset.
func (e *entry) answer(turn uint64, now int64) {
	w := e.win.Load()
	if !w.alive(now) {
		e.stumble(turn, now)
		return
	}
	e.futile = 0
	var ahead int64
	for p := e.queue.head; p != nil; {
		next := p.next
		switch {
		case p.n <= e.pot:
			e.grant(p, w)
		case p.n <= e.pot+w.remaining.Load():
			return // the grant was only capped: first come, first served
		case w.of < e.limit().Tokens:
			return // the limit has been raised since it was asked for
		case !p.wait:
			e.denied.Add(1)
			var r Result
			w.refuse(&r, e.limit().Tokens, now, Fetched)
			r.Remaining += e.pot
			e.queue.settle(p, r, nil, nil)
			e.deaf(w, now)
		case p.wait && e.hopeless(p, w, ahead):
			e.queue.settle(p, Result{}, nil, ErrDeadline)
		default:
			ahead += p.n
			e.deaf(w, now)
		}
		p = next
	}
}

// deaf hushes a window that could not cover a request, if that is not done yet.
func (e *entry) deaf(w *window, now int64) {
	if e.quiet == 0 {
		e.hush(w, now)
	}
}

// stumble counts a grant that was dead on arrival, its window being over. The
// next fetch opens a new one; if that happens again and again the network is
// slower than the window, and no fetch will help.
func (e *entry) stumble(turn uint64, now int64) {
	if e.futile++; e.futile < 3 {
		return
	}
	e.futile = 0
	e.fail(turn, now, &StoreError{Op: "sync", Class: backend.Unavailable, Err: errTooSlow})
}

// fail answers the callers that the fetch was sized for by the failure policy;
// those who came later have a fetch of their own.
func (e *entry) fail(turn uint64, now int64, err error) {
	for p := e.queue.head; p != nil && p.turn <= turn; p = e.queue.head {
		r, err := e.away(p.n, now, p.wait, err)
		e.queue.settle(p, r, nil, err)
	}
}

// held is the stock and the pot, if they may still be spent.
func (e *entry) held(now int64) int64 {
	if w := e.win.Load(); w.alive(now) {
		return w.stock.Load() + e.pot
	}
	return 0
}

// lapsed is the stock and the pot, if they may not be spent any more.
func (e *entry) lapsed(now int64) int64 {
	if w := e.win.Load(); w != nil && !w.alive(now) {
		return w.stock.Load() + e.pot
	}
	return 0
}

// spentBy is how many tokens requests have used so far: what has come and is
// nowhere else.
func (e *entry) spentBy(now int64) int64 { return e.flow - e.lapsed(now) - e.held(now) }

// The four ways in which tokens come and go, counted for the limiter's Stats.

func (e *entry) take(n int64)   { e.move(&e.l.count.taken, n, n) }
func (e *entry) regive(n int64) { e.move(&e.l.count.refunded, n, n) }
func (e *entry) yield(n int64)  { e.move(&e.l.count.returned, n, -n) }
func (e *entry) expire(n int64) { e.move(&e.l.count.expired, n, -n) }

func (e *entry) move(total *atomic.Int64, n, flow int64) {
	total.Add(n)
	e.flow += flow
	if e.dead { // what it has spent is counted elsewhere, and a late reply changes it
		e.l.count.spent.Add(flow)
	}
}

// standing is what an entry adds to Stats.
type standing struct{ spent, held, lapsed, stranded, denied, owed int64 }

func (e *entry) standing() standing {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.l.clock.now()
	s := standing{spent: e.spentBy(now), held: e.held(now), lapsed: e.lapsed(now), denied: e.denied.Load(), owed: e.untold(now)}
	if w := e.win.Load(); w != nil && w.quiet.Load() != 0 {
		s.stranded = s.held
	}
	return s
}

package reservoir

import (
	"context"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// This file is a caller's wait for its place in a fetch.

// enqueue reserves a place and sees to it that somebody fetches. A waiter that
// cannot be served before its deadline is told at once.
func (e *entry) enqueue(ctx context.Context, n int64, wait bool, now int64) (p *place, err error, again bool) {
	if err, again = e.refuses(n); err != nil || again {
		return nil, err, again
	}
	p = e.l.places.get(n, wait)
	if d, ok := ctx.Deadline(); ok && wait {
		p.deadline = now + min(int64(time.Until(d)), math.MaxInt64-now)
	}
	w := e.win.Load()
	if w.alive(now) && e.known(w, n) && e.hopeless(p, w, e.queue.tokens) {
		e.l.places.put(p)
		return nil, ErrDeadline, false
	}
	e.gather()
	e.busy().queue.push(p)
	e.order(now)
	return p, nil, false
}

// hopeless reports whether p's turn, behind ahead tokens, comes only in a window
// that opens after its deadline.
func (e *entry) hopeless(p *place, w *window, ahead int64) bool {
	if p.deadline == 0 {
		return false
	}
	windows := (ahead + p.n - 1) / e.limit().Tokens // after the one that opens next
	left := p.deadline - w.ends.Load()
	return left < 0 || windows > left/int64(e.limit().Window)
}

// await waits for the outcome of p, for as long as its own context lasts and, if
// it is not a waiter, the fetch timeout.
func (e *entry) await(ctx context.Context, p *place) (Result, error) {
	defer e.l.places.put(p)
	var timeout <-chan time.Time
	if !p.wait {
		t := e.l.places.timer(e.l.fetchTimeout)
		defer e.l.places.stop(t)
		timeout = t.C
	}
	select {
	case <-p.ready:
		return p.result, p.err
	case <-ctx.Done():
		e.leave(p)
		return Result{}, ctx.Err()
	case <-timeout:
		if e.giveUp(p) {
			return e.tired(p)
		}
		return p.result, p.err
	}
}

// tired answers a caller that has waited as long as callers do.
func (e *entry) tired(p *place) (Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.away(p.n, e.l.clock.now(), p.wait, &StoreError{Op: "sync", Class: backend.Unknown, Err: errNoAnswer})
}

// leave ends p for a caller whose context is over. What it had won meanwhile
// goes to the next, or back to the stock.
func (e *entry) leave(p *place) {
	if e.giveUp(p) || p.win == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.dead || p.win != e.win.Load():
		e.expire(p.n)
	default:
		e.regain(p.n, e.l.clock.now())
	}
}

// giveUp frees p's place and reports whether it was still waiting. Its successor
// may need less.
func (e *entry) giveUp(p *place) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p.done {
		return false
	}
	p.done = true
	e.queue.remove(p)
	e.regain(0, e.l.clock.now())
	return true
}

// regain takes n tokens of the current window back from a caller and serves who
// waits.
func (e *entry) regain(n, now int64) {
	e.gather()
	e.pot += n
	e.serve(now)
	e.order(now)
}

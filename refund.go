package reservoir

import "github.com/go-reservoir/reservoir/backend"

// refund puts what r was charged back into stock, if it came from there, and
// returns how many tokens are to go back to the store. No more goes back than
// requests have used, so that a Result which is refunded again and again makes no
// tokens out of nothing.
func (e *entry) refund(r Result) (toStore int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.Source == Fallback {
		e.forgive(r, e.l.clock.now())
		return 0
	}
	w := e.win.Load()
	if e.dead || w == nil || w.id != r.window() {
		return r.charged
	}
	if r.Source == Direct {
		if r.epoch != e.account.epoch { // of a key that has been forgotten since, or was not kept
			return r.charged
		}
		n := min(r.charged, w.direct)
		w.direct -= n
		return n
	}
	now := e.l.clock.now()
	if n := min(r.charged, e.granted-e.returned-e.held(now)); n > 0 && w.alive(now) {
		e.regive(n)
		e.regain(n, now)
	}
	return 0
}

// reopen notes that the store has n tokens more than was heard, which others may
// wait for.
func (e *entry) reopen(id backend.Window, n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.win.Load(); w != nil && w.id == id {
		w.remaining.Add(n)
		e.order(e.l.clock.now())
	}
}

// stockIn is the stock that can be spent in window id.
func (e *entry) stockIn(id backend.Window) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.win.Load(); w == nil || w.id != id {
		return 0
	}
	return e.held(e.l.clock.now())
}

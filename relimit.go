package reservoir

import "github.com/go-reservoir/reservoir/backend"

// This file is for limits that change while a key is in use.

// newLimit returns what WithLimits now says, and whether that is news. No lock is
// held, for it calls what the user gave.
func (e *entry) newLimit() (limit Limit, changed bool, err error) {
	if e.l.limits == nil {
		return e.limit(), false, nil
	}
	limit, err = e.l.limitOf(e.key)
	return limit, err != nil || limit != e.limit(), err
}

// relimit makes the limit what WithLimits now says, before the store is told. A
// caller in the queue who wants more than that is told so. No lock is held.
func (e *entry) relimit() error {
	limit, changed, err := e.newLimit()
	if err != nil || !changed {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if w := e.win.Load(); w != nil && limit.Tokens > e.limit().Tokens { // there may be more than is known
		e.quiet = 0
		w.quiet.Store(0)
	}
	e.bound.Store(&limit)
	waiting := e.queue.tokens
	for p := e.queue.head; p != nil; {
		next := p.next
		if p.n > limit.Tokens {
			e.queue.settle(p, Result{}, nil, ErrExceedsLimit)
		}
		p = next
	}
	if e.queue.tokens < waiting { // what was reserved for them is the next one's, or anybody's
		e.regain(0, e.l.clock.now())
	}
	return nil
}

// comply makes r, which was written under an older limit, speak of l.
func comply(r *backend.SyncRequest, l Limit) {
	r.Limit = l
	r.Want, r.Need, r.Pace = min(r.Want, l.Tokens), min(r.Need, l.Tokens), min(r.Pace, l.Tokens)
}

package reservoir

import (
	"context"

	"github.com/go-reservoir/reservoir/backend"
)

// goesDirect reports whether a request for n is better a call of its own: always
// in direct mode, and when it is larger than the batch that would be fetched for
// it. Where a fetch is under way or callers are queued it joins them, so that a
// crowd of large requests shares calls as well.
//
// A key that is too small for batches makes a call for each request too, but of
// sync: that can be told twice, and tells a store that has lost its data what this
// process has spent. A take would find such a store empty, and be admitted. And
// after a fetch that failed the store may hold a grant for this process, of which a
// take would hear nothing but that it is not there.
func (e *entry) goesDirect(n, now int64) bool {
	if e.l.direct {
		return true
	}
	if e.flight != nil || !e.queue.empty() || e.missed {
		return false
	}
	if n == 1 {
		return false
	}
	size, _ := e.plan(now)
	return n > size
}

// direct takes exactly n from the store, or none, and leaves the stock to small
// requests. It is entered with the lock and left without. settled is false when
// stock and store together could still cover n.
func (e *entry) direct(ctx context.Context, n int64) (r Result, err error, settled bool) {
	l := e.l
	alone := !l.direct // a fetch like others: who comes meanwhile queues behind it
	if alone {
		e.depart(flight{})
	}
	s := e.shard
	e.mu.Unlock()
	sent := l.clock.now()
	limit, reply, err := e.takeNow(ctx, s, n)

	e.mu.Lock()
	defer e.mu.Unlock()
	now := l.clock.now()
	if alone {
		e.flight = nil
		if w := e.win.Load(); w.alive(now) { // nobody could restock meanwhile
			e.aim(w)
		}
	}
	defer e.schedule(now)
	defer e.order(now)
	if err != nil {
		r, err = e.away(n, now, false, err)
		return r, err, true
	}
	e.overhear(reply.State, limit, sent, now)
	r = direct(reply, limit, n)
	if w := e.win.Load(); w != nil && w.id == reply.Window {
		r.Remaining += w.stock.Load()
		switch {
		case reply.Allowed:
			w.direct += n
			r.epoch = e.account.epoch
			e.quiet = 0
		case n <= r.Remaining && alone:
			return r, nil, false // stock and store together have enough
		case limit.Tokens >= e.limit().Tokens: // which may have been raised since
			e.deaf(w, now)
		}
	}
	e.charge(r)
	e.repay(now)
	return r, nil, true
}

// takeNow makes the call, under the limit as it now is.
func (e *entry) takeNow(ctx context.Context, s *shard, n int64) (limit Limit, reply backend.TakeReply, err error) {
	if err = e.relimit(); err != nil {
		return limit, reply, err
	}
	if limit = e.limit(); n > limit.Tokens {
		return limit, reply, ErrExceedsLimit
	}
	reply, err = e.l.take(ctx, s, backend.TakeRequest{Key: e.key, Limit: limit, Tokens: n})
	return limit, reply, err
}

// direct is the result of a take.
func direct(t backend.TakeReply, l Limit, n int64) Result {
	r := Result{
		Allowed: t.Allowed, Limit: l.Tokens, Remaining: t.Remaining,
		Reset: t.Window.Time(), Source: Direct, charged: n,
	}
	if !t.Allowed {
		r.RetryAfter, r.charged = max(t.Left, 1), 0
	}
	return r
}

// charge counts tokens that were taken and spent at once, or the refusal.
func (e *entry) charge(r Result) {
	e.take(r.charged)
	if !r.Allowed {
		e.deny()
	}
}

// deny counts a refusal. That of a dead entry goes where its count has gone.
func (e *entry) deny() {
	if e.dead {
		e.l.count.denied.Add(1)
	} else {
		e.denied.Add(1)
	}
}

// stateless serves a request for a key that there is no room to remember.
func (l *Limiter) stateless(ctx context.Context, key string, limit Limit, n int64) (Result, error) {
	s := l.shardOf(key)
	if s.open.Load() {
		if s.due(l.clock.now()) {
			l.probe(s, key, limit)
		}
		return l.forgetful(limit, n, errAway)
	}
	l.count.waited.Add(1)
	reply, err := l.take(ctx, s, backend.TakeRequest{Key: key, Limit: limit, Tokens: n})
	if err != nil {
		if ctx.Err() != nil {
			return Result{}, err
		}
		return l.forgetful(limit, n, err)
	}
	if reply.Allowed {
		l.count.taken.Add(n)
		l.count.spent.Add(n)
	} else {
		l.count.denied.Add(1)
	}
	return direct(reply, limit, n), nil
}

package reservoir

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/guard"
)

// This file is the one frame of every store call: how long it may take, what its end
// says of the shard, what is counted, and what the hooks are told. No lock is held.

// storeCall is one call to the store. A call belongs to nobody: it runs in a goroutine
// of its own under the fetch timeout, whatever becomes of who asked for it.
type storeCall struct {
	StoreCall
	l     *Limiter
	shard *shard
	key   string
	limit Limit
	begin time.Time
	sent  int64
	end   int64
	made  bool // it was: there is something to report
}

// newCall returns a call that is sent now.
func (l *Limiter) newCall(s *shard, key string, limit Limit, c StoreCall) *storeCall {
	return &storeCall{StoreCall: c, l: l, shard: s, key: key, limit: limit, begin: time.Now(), sent: l.clock.Now()}
}

// do runs f and records how it ended. Whatever a store returns becomes a *StoreError,
// so that callers need to know no other; a panic becomes an error too, for who waits.
// own says that ctx is the limiter's, whose end is the shard's failure; the end of a
// caller's says nothing of the shard.
func (c *storeCall) do(ctx context.Context, own bool, f func(context.Context) error) error {
	err := guard.Do(func() error { return f(ctx) })
	c.Duration, c.end, c.made = time.Since(c.begin), c.l.clock.Now(), true
	c.l.count.calls.Add(1)
	var failure *StoreError
	if err != nil && !errors.Is(err, ErrConflict) && !guard.IsPanic(err) && !errors.As(err, &failure) {
		err = &StoreError{Op: c.Op, Class: backend.Unknown, Err: err}
	}
	outcome := outcomeOf(err)
	if !own && over(ctx) {
		outcome = breaker.Neutral
	}
	if outcome == breaker.Failed {
		c.shard.remember(c.key, c.limit)
	}
	if c.Op != "check" && c.shard.Record(c.sent, c.end, outcome, err) { // a replica may have answered a Check
		c.l.armProbe(c.shard)
	}
	c.Err = err
	return err
}

// outcomeOf says what the end of a call tells of the shard.
func outcomeOf(err error) breaker.Outcome {
	var failure *StoreError
	switch {
	case err == nil:
		return breaker.Answered
	case !errors.As(err, &failure) || failure.KeyOnly:
		return breaker.Neutral
	case failure.Class == backend.Rejected:
		return breaker.Rejected
	}
	return breaker.Failed
}

// over reports whether ctx has ended, or is about to: a socket's deadline fires a
// moment before the timer of the context that it was taken from.
func over(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	d, ok := ctx.Deadline()
	return ok && time.Until(d) < time.Millisecond
}

// report tells the hooks. It comes last, so that a slow hook delays nobody who
// waits. A panic of a hook has no caller to go to: it is logged.
func (c *storeCall) report() {
	hooks := &c.l.hooks
	if hooks.StoreCall != nil {
		guard.Log(func() { hooks.StoreCall(c.StoreCall) })
	}
	c.l.reportShard(c.shard)
	if c.Err == nil {
		c.l.forgetShards()
	}
}

// detached makes a call for one caller and returns its error, or that of ctx. The
// call goes on when ctx ends first, for as long as the fetch timeout lasts, and then
// abandoned is called with its end.
func (l *Limiter) detached(ctx context.Context, s *shard, key string, limit Limit, c StoreCall, f func(context.Context, *storeCall) error, abandoned func(err error)) error {
	if !l.calls.Begin() {
		return ErrClosed
	}
	call := l.newCall(s, key, limit, c)
	var mu sync.Mutex
	var left, done bool
	end := make(chan error, 1)
	go func() {
		defer l.calls.End()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.fetchTimeout)
		err := call.do(bounded, true, func(ctx context.Context) error { return f(ctx, call) })
		cancel()
		mu.Lock()
		done = true
		gone := left
		mu.Unlock()
		if gone {
			abandoned(err)
		}
		end <- err
		call.report()
	}()
	select {
	case err := <-end:
		return guard.Raise(err)
	case <-ctx.Done():
	}
	mu.Lock()
	left = !done
	mu.Unlock()
	if !left {
		return guard.Raise(<-end)
	}
	return ctx.Err()
}

// take makes a direct call for n tokens. Those that come when the caller has left go
// back.
func (l *Limiter) take(ctx context.Context, s *shard, r backend.TakeRequest) (_ backend.TakeReply, sent int64, _ error) {
	var reply backend.TakeReply // the call's own: it may end when the caller has left
	var begun int64
	err := l.detached(ctx, s, r.Key, r.Limit, StoreCall{Op: "take", Want: r.Tokens}, func(ctx context.Context, c *storeCall) (err error) {
		begun = c.sent
		if reply, err = l.store.Take(ctx, r); err == nil && reply.Allowed {
			c.Granted = r.Tokens
		}
		return l.conflict(reply.State, err)
	}, func(err error) {
		if err == nil && reply.Allowed {
			l.undo(s, backend.RefundRequest{Key: r.Key, Client: l.once(), Window: reply.Window, Total: r.Tokens})
		} else {
			l.lost(err, r.Tokens)
		}
	})
	switch {
	case err == nil:
		return reply, begun, nil
	case ctx.Err() == nil:
		l.lost(err, r.Tokens)
	}
	return backend.TakeReply{}, 0, err
}

// conflict is ErrConflict if the open window has another length than the limit, which
// cannot change.
func (l *Limiter) conflict(s backend.State, err error) error {
	if err == nil && s.Length != 0 && l.limits == nil {
		return ErrConflict
	}
	return err
}

// lost counts the tokens of a direct call that may have been charged for nothing.
func (l *Limiter) lost(err error, n int64) {
	var failure *StoreError
	if errors.As(err, &failure) && failure.Class == backend.Unknown {
		l.count.unknown.Add(n)
	}
}

// undo gives back what a direct call has charged for a caller that has left.
func (l *Limiter) undo(s *shard, r backend.RefundRequest) {
	l.count.taken.Add(r.Total)
	if back, err := l.refund(context.Background(), s, r); err == nil && back > 0 {
		l.count.returned.Add(r.Total)
		return
	}
	l.count.expired.Add(r.Total) // with its window
}

func (l *Limiter) refund(ctx context.Context, s *shard, r backend.RefundRequest) (int64, error) {
	var total int64
	err := l.detached(ctx, s, r.Key, l.limit, StoreCall{Op: "refund", Want: r.Total}, func(ctx context.Context, c *storeCall) (err error) {
		total, err = l.store.Refund(ctx, r)
		c.Granted = total
		return err
	}, func(error) {})
	if err != nil {
		return 0, l.failed(ctx, err)
	}
	return total, nil
}

func (l *Limiter) check(ctx context.Context, s *shard, key string, limit Limit) (backend.State, error) {
	if !s.mayCheck(l.clock.Now()) {
		return backend.State{}, l.failed(ctx, s.away())
	}
	var state backend.State
	err := l.detached(ctx, s, key, limit, StoreCall{Op: "check"}, func(ctx context.Context, _ *storeCall) (err error) {
		state, err = l.store.Check(ctx, key, limit)
		return l.conflict(state, err)
	}, func(error) {})
	if err != nil {
		s.checkFailed(l.clock.Now())
		return backend.State{}, l.failed(ctx, err)
	}
	return state, nil
}

// failed counts a request that ends in a *StoreError.
func (l *Limiter) failed(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		l.count.failed.Add(1)
	}
	return err
}

// once is a client's name that is used for one refund and never again.
func (l *Limiter) once() string { return l.clientOf(1<<31 | l.undone.Add(1)&(1<<31-1)) }

// direct makes a call for n tokens, all or none, and leaves the stock alone. It is for
// WithDirect.
func (k *keyState) direct(ctx context.Context, n int64) (r Result, err error) {
	l := k.l
	for range 2 {
		if err = k.relimit(); err != nil {
			return r, err
		}
		limit := k.limit()
		if n > limit.Tokens {
			return r, ErrExceedsLimit
		}
		var again bool
		q := backend.TakeRequest{Key: l.storeKey(k.node.Key), Limit: limit, Tokens: n}
		reply, sent, err := l.take(ctx, l.shardOf(q.Key), q)
		if r, again, err = k.taken(ctx, q, reply, sent, err); !again {
			return r, err
		}
	}
	return r, ErrConflict
}

// taken takes in the end of a direct call. again says that the open window has another
// length, with which the call may be made once more.
func (k *keyState) taken(ctx context.Context, q backend.TakeRequest, t backend.TakeReply, sent int64, err error) (r Result, again bool, _ error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.l.clock.Now()
	if err != nil {
		if ctx.Err() == nil {
			_, err = k.policyLocked(&r, q.Tokens, false, now, err)
			k.stepLocked(now, 0)
		}
		return r, false, err
	}
	if t.Length != 0 {
		k.adoptLocked(t.State, sent, now)
		return r, true, nil
	}
	k.overhearLocked(t.State, sent, now)
	r = taken(t, q)
	if w := k.lease.Load(); w != nil && w.Window == t.Window {
		r.Remaining = min(r.Remaining+w.Stock(), r.Limit)
		switch {
		case t.Allowed && !k.retired:
			k.moveLocked(k.account.Direct(q.Tokens))
			r.key, r.epoch, k.deniedUntil = k.node.Hash, k.name.epoch, 0
		case t.Allowed:
		case now >= k.deniedUntil && q.Limit.Tokens >= k.limit().Tokens: // which may have been raised since
			k.denyLocked(w, now)
		}
	} else if t.Allowed {
		k.l.count.taken.Add(q.Tokens)
		k.l.count.spent.Add(q.Tokens)
	}
	if !t.Allowed {
		k.denied.Add(1)
	}
	k.stepLocked(now, 0)
	return r, false, nil
}

// overhearLocked takes in a reading that came with a direct call. It says nothing of
// the account, so it never ends a window whose tokens may be spent.
func (k *keyState) overhearLocked(s backend.State, sent, now int64) {
	w := k.lease.Load()
	if k.retired || s.Window == 0 || w.Alive(now) && w.Window != s.Window || w != nil && s.Window < w.Window {
		return
	}
	if w == nil || w.Window != s.Window {
		w = k.switchLocked(s.Window, now)
	}
	w.Read(s, sent, now)
}

// taken is the result of a direct call.
func taken(t backend.TakeReply, q backend.TakeRequest) Result {
	r := Result{Allowed: t.Allowed, Source: Direct, Limit: q.Limit.Tokens, Remaining: t.Remaining, Reset: t.Window.Time()}
	if t.Allowed {
		r.charged = q.Tokens
	} else {
		r.RetryAfter = max(t.Left, 1)
	}
	return r
}

// stateless serves a request for a key that there is no room to remember.
func (l *Limiter) stateless(ctx context.Context, key string, limit Limit, n int64) (Result, error) {
	q := backend.TakeRequest{Key: l.storeKey(key), Limit: limit, Tokens: n}
	s := l.shardOf(q.Key)
	if s.Open() {
		return l.withoutStore(limit, s.away())
	}
	l.count.waited.Add(1)
	t, _, err := l.take(ctx, s, q)
	switch {
	case err != nil && ctx.Err() != nil:
		return Result{}, err
	case err != nil:
		return l.withoutStore(limit, err)
	case t.Length != 0:
		return l.stateless(ctx, key, Limit{Tokens: limit.Tokens, Window: t.Length}, n)
	}
	r := taken(t, q)
	if r.Allowed {
		l.count.taken.Add(n)
		l.count.spent.Add(n)
		r.key, r.epoch = l.keys.HashOf(key), 1<<31|l.undone.Add(1)&(1<<31-1)
	} else {
		l.count.denied.Add(1)
	}
	return r, nil
}

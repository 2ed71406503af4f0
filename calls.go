package reservoir

import (
	"context"
	"errors"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// This file is the limiter's side of every store call: the time it may take,
// what is counted and what the hooks are told. No lock is held here.

func (l *Limiter) sync(ctx context.Context, f *flight) (backend.SyncReply, error) {
	sent, begin := l.clock.now(), time.Now()
	reply, err := l.store.Sync(ctx, f.req)
	l.count.syncs.Add(1)
	l.count.recovered.Add(reply.Recovered)
	l.count.reasserted.Add(max(reply.Reasserted-f.owed, 0))
	err = l.called(begin, err, StoreCall{Op: "sync", Cause: string(f.cause), Reason: f.reason, Want: f.req.Want, Granted: reply.Grant})
	l.noted(f.shard, sent, err)
	return reply, err
}

// take bounds a direct call by the fetch timeout as well as by its caller. The
// caller's own end is the caller's error, not the store's.
func (l *Limiter) take(ctx context.Context, s *shard, r backend.TakeRequest) (backend.TakeReply, error) {
	bounded, cancel := context.WithTimeout(ctx, l.fetchTimeout)
	defer cancel()
	sent, begin := l.clock.now(), time.Now()
	reply, err := l.store.Take(bounded, r)
	call := StoreCall{Op: "take", Want: r.Tokens}
	if reply.Allowed {
		call.Granted = r.Tokens
	}
	err = l.called(begin, err, call)
	if ctx.Err() == nil {
		l.noted(s, sent, err)
	}
	if err == nil {
		return reply, nil
	}
	var failure *StoreError
	if errors.As(err, &failure) && failure.Class == backend.Unknown {
		l.count.unknown.Add(r.Tokens)
	}
	if ctx.Err() != nil {
		return reply, ctx.Err()
	}
	return reply, err
}

func (l *Limiter) check(ctx context.Context, key string, limit Limit) (backend.State, error) {
	bounded, cancel := context.WithTimeout(ctx, l.fetchTimeout)
	defer cancel()
	begin := time.Now()
	state, err := l.store.Check(bounded, key, limit)
	if err = l.called(begin, err, StoreCall{Op: "check"}); err != nil && ctx.Err() != nil {
		return state, ctx.Err()
	}
	return state, l.failed(err)
}

func (l *Limiter) refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	bounded, cancel := context.WithTimeout(ctx, l.fetchTimeout)
	defer cancel()
	begin := time.Now()
	back, err := l.store.Refund(bounded, r)
	if err = l.called(begin, err, StoreCall{Op: "refund", Want: r.Tokens, Granted: back}); err != nil && ctx.Err() != nil {
		return back, ctx.Err()
	}
	return back, l.failed(err)
}

// called counts a call and tells the hook. Whatever a store returns becomes a
// *StoreError, so that callers need to know no other.
func (l *Limiter) called(begin time.Time, err error, c StoreCall) error {
	l.count.calls.Add(1)
	var failure *StoreError
	if err != nil && !errors.As(err, &failure) {
		err = &StoreError{Op: c.Op, Class: backend.Unknown, Err: err}
	}
	if l.hooks.StoreCall != nil {
		c.Duration, c.Err = time.Since(begin), err
		l.hooks.StoreCall(c)
	}
	return err
}

// noted tells the shard's breaker how a call has ended that was sent at that clock time.
func (l *Limiter) noted(s *shard, sent int64, err error) {
	s.note(s.name, sent, l.clock.now(), err)
	s.tell(l.hooks.ShardState)
	if err == nil {
		l.tidy()
	}
}

// failed counts a request that ends in err, if it does.
func (l *Limiter) failed(err error) error {
	if err != nil {
		l.count.failed.Add(1)
	}
	return err
}

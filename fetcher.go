package reservoir

import (
	"context"
	"errors"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/key"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// This file has the one frame of every store call: how long it may take, what its end says
// of the shard, what is counted, and what the hooks get. No lock is held during a call, and
// nothing else calls the store.

// storeCall is one call to the store. It runs in a goroutine of its own, so that no caller's context but
// its own one ends it, and one goroutine at a time may touch it.
type storeCall struct {
	StoreCall
	l     *Limiter
	shard *key.Shard
	q     *backend.Statement // of a sync; others have its Key and Limit only

	reply backend.Reply // to a check the State, to a reset the Window that is void now
	trip  key.Trip
}

// newCall returns a call that concerns the key of q.
func (l *Limiter) newCall(op string, q *backend.Statement) *storeCall {
	return &storeCall{StoreCall: StoreCall{Op: op}, l: l, shard: l.env.Shard(q.Key), q: q}
}

// run makes the call within ctx and the timeout. All its errors are *StoreErrors, so that callers need to handle no other.
func (c *storeCall) run(ctx context.Context, timeout time.Duration) error {
	l, counts := c.l, &c.l.env.Counts
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	begin, err := time.Now(), error(nil)
	c.trip.Sent = l.env.Clock.Now()
	switch c.Op {
	case "check":
		c.reply.State, err = l.store.Check(bounded, c.q.Key, c.q.Limit)
	case "reset":
		c.reply.Window, err = l.store.Reset(bounded, c.q.Key, c.q.Limit)
	case "publish":
		err = l.store.(backend.Listener).Publish(bounded, backend.Message{Kind: backend.Changed, Key: c.q.Key})
	default:
		c.Want = max(c.q.Want, c.q.Need, c.q.Change)
		for _, bucket := range c.q.Changes {
			c.Want = max(c.Want, bucket.Tokens)
		}
		counts.Syncs.Add(1)
		c.reply, err = l.store.Sync(bounded, *c.q)
		if c.Granted = c.reply.Grant; err == nil && c.reply.Astray {
			c.shard.SetClock(c.reply.Now)
		}
	}
	c.Duration = time.Since(begin)
	c.trip.End = c.trip.Sent + int64(c.Duration)
	counts.Calls.Add(1)

	// The error, as callers get it, without what a store has wrapped it in.
	failure, failed := errors.AsType[*StoreError](err)
	switch {
	case failed:
		c.Err = failure
	case err != nil:
		c.Err = &StoreError{Op: c.Op, Class: backend.Unknown, Err: err}
	}

	// The shard, unless the call may be answered by another server, as a Check by a replica, or is of another right.
	if c.Op == "sync" || c.Op == "reset" {
		c.shard.Ended(c.q.Key, next.Cause(c.Cause), c.trip, c.Err, c.Err != nil && over(ctx))
	}
	return c.Err
}

// report calls the hooks. It comes last, so that a slow hook delays no caller.
func (c *storeCall) report() {
	if hook := c.l.hooks.StoreCall; hook != nil {
		hook(c.StoreCall)
	}
	c.shard.Report(c.shard.Changed)
}

// await makes the call for one caller, and returns its error, or that of ctx if that ends first. here says which: if it is false,
// the caller has gone, and may not touch the call any more. The call goes on then, and late, unless it is nil, gets its error.
func (c *storeCall) await(ctx context.Context, late func(error)) (here bool, _ error) {
	calls := &c.l.env.Calls
	if !calls.Begin() {
		return true, ErrClosed
	}
	end := make(chan error)
	go func() {
		defer calls.End()
		err := c.run(context.WithoutCancel(ctx), c.shard.Timeout())
		select {
		case end <- err:
		case <-ctx.Done():
			if late != nil {
				late(err)
			}
		}
		c.report()
	}()
	select {
	case err := <-end:
		return true, err
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// over reports whether ctx has ended, or ends within a millisecond, because a socket's
// deadline fires a moment before the timer of the context that it was taken from.
func over(ctx context.Context) bool { return ctx.Err() != nil || soonerThan(ctx, time.Millisecond) }

// soonerThan reports whether ctx ends before d has passed.
func soonerThan(ctx context.Context, d time.Duration) bool {
	t, ok := ctx.Deadline()
	return ok && time.Until(t) < d
}

// caller makes the calls of keys; it is the seam of package key.
type caller struct{ l *Limiter }

// Call makes the call of f, and applies its end.
func (c caller) Call(ctx context.Context, f *key.Fetch) error {
	call := storeCall{l: c.l, shard: f.Shard, q: &f.Req, StoreCall: StoreCall{Op: "sync", Cause: string(f.Cause), Reason: f.Reason}}
	call.trip.Ordered = f.Ordered
	err := call.run(ctx, f.Timeout)
	err = f.End(call.trip, call.reply, err)
	call.report()
	return err
}

// alone makes a statement without an account for a request of a key that has no room in
// memory. It is sent once, but the request starts over, in the first passes, if the store has done nothing, because its clock is in
// another period of the calendar.
func (l *Limiter) alone(ctx context.Context, k *key.Key, request ask, pass int) key.Verdict {
	a, v := k.Alone(request)
	if v.Next != key.Call {
		return v
	}
	q, n := a.Req, a.Req.Need // q is the call's own, which may go on
	q.Detached = true
	call := l.newCall("sync", &q)
	here, err := call.await(ctx, func(err error) {
		if err == nil {
			l.env.Counts.Expire(call.reply.Grant)
		}
		l.unknown(err, n)
	})
	if !here {
		return key.Verdict{Err: err}
	}
	l.unknown(err, n)
	if err == nil && call.reply.Astray {
		if pass < key.MaxAstray {
			return key.Verdict{Next: key.StartOver}
		}
		err = key.ErrorAstray()
	}
	return a.Answer(&call.reply, call.trip.Sent, err, ctx.Err() != nil)
}

// overdraw charges n tokens, without an account, that were used above what c was charged, of
// a key that was forgotten since, if that window is still open. It is sent once.
func (l *Limiter) overdraw(ctx context.Context, k *key.Key, c key.Charge, n int64) error {
	limit := k.Limit.Load().Plain()
	q := backend.Statement{Key: placement.Named(l.name, k.Name()), Limit: limit, Window: c.Window, Change: n, Detached: true}
	q.Begin, q.End = key.Period(limit, c.Window.Time().Add(-time.Millisecond)) // of that window, whatever the time is
	if limit.Rolls {
		q.Window.End, q.Change, q.Changes = 0, 0, []backend.Change{{Tokens: n}} // now
	}
	call, counts := l.newCall("sync", &q), &l.env.Counts
	call.Cause = string(next.Charge)
	settled := func(err error) {
		r := &call.reply
		switch {
		case err == nil && (r.Window == q.Window || limit.Rolls && r.Window.Gen == q.Window.Gen):
			counts.Taken.Add(n)
			counts.Spent.Add(n)
			counts.Extra.Add(0, n)
			counts.Overdrawn.Add(min(n, max(r.Used-limit.Tokens, 0)))
		case !l.unknown(err, n):
			counts.Overdrawn.Add(n)
		}
	}
	if call.shard.Open.Load() {
		err := call.shard.OpenError()
		settled(err)
		return l.failed(ctx, err)
	}
	if ctx.Err() != nil { // the client has left, which is usual
		ctx = context.WithoutCancel(ctx)
	}
	here, err := call.await(ctx, settled)
	if here {
		settled(err)
	}
	return l.failed(ctx, err)
}

// unknown counts the tokens of a direct call if it may have been carried out, and reports
// whether it may.
func (l *Limiter) unknown(err error, n int64) bool {
	failure, ok := errors.AsType[*StoreError](err)
	if ok = ok && failure.Class == backend.Unknown; ok {
		l.env.Counts.Unknown.Add(n)
	}
	return ok
}

// failed counts a request that ends in a *StoreError.
func (l *Limiter) failed(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*StoreError](err); ok && ctx.Err() == nil {
		l.env.Counts.Failed.Add(1)
	}
	return err
}

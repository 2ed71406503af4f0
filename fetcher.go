package reservoir

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/key"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file has the one frame of every store call: how long it may take, what its end says
// of the shard, what is counted, and what the hooks get. No lock is held during a call, and
// nothing else calls the store.

// storeCall is one call to the store. It belongs to no caller: it runs in a goroutine of its
// own under the fetch timeout, even if its callers leave.
type storeCall struct {
	StoreCall
	l      *Limiter
	shard  *key.Shard
	stored string // the key
	begin  time.Time
	trip   key.Trip
	left   bool // of a call for one caller, who has left; only that caller reads and writes it
}

// newCall returns a call that is sent now.
func (l *Limiter) newCall(s *key.Shard, stored string, what StoreCall) *storeCall {
	return &storeCall{StoreCall: what, l: l, shard: s, stored: stored, begin: time.Now(), trip: key.Trip{Sent: l.env.Clock.Now()}}
}

// sync makes the statement q.
func (s *storeCall) sync(ctx context.Context, q *backend.Statement) (backend.Reply, error) {
	s.Want = max(q.Want, q.Need, q.Change)
	for _, c := range q.Changes {
		s.Want = max(s.Want, c.Tokens)
	}
	s.l.env.Counts.Syncs.Add(1)
	r, err := s.l.store.Sync(ctx, *q)
	if err == nil && r.Astray {
		s.shard.SetClock(r.Now)
	}
	s.Granted = r.Grant
	return r, err
}

// end records how the call has ended, and tells the shard, unless neutral says that this says
// nothing of it. It makes a *StoreError of every error of a store, so that callers need to
// handle no other.
func (s *storeCall) end(err error, neutral bool) error {
	s.Duration = time.Since(s.begin)
	s.trip.End = s.l.env.Clock.Now()
	s.l.env.Counts.Calls.Add(1)
	failure, failed := errors.AsType[*StoreError](err)
	if err != nil && !failed {
		failure = &StoreError{Op: s.Op, Class: backend.Unknown, Err: err}
		err = failure
	}
	s.Err = err
	if s.Op == "publish" { // of another right and, in a cluster, of another server
		return err
	}
	outcome, cause := key.OutcomeOf(err), err
	if failure != nil {
		cause = failure // what callers get, without what a store has wrapped it in
	}
	switch {
	case neutral:
		outcome = breaker.Neutral
	case failure != nil && failure.KeyOnly && s.Cause == string(next.Reopen): // the shard answers, though it does not serve this key
		outcome = breaker.Answered
	case outcome == breaker.Failed:
		s.shard.Failed(s.stored)
	}
	if s.Op != "check" && s.shard.Record(s.trip.Sent, s.trip.End, outcome, cause) { // a replica may have answered a Check
		s.l.armReopen(s.shard)
	}
	s.shard.Resume()
	return err
}

// report calls the hooks. It comes last, so that a slow hook delays no caller.
func (s *storeCall) report() {
	if hook := s.l.hooks.StoreCall; hook != nil {
		hook(s.StoreCall)
	}
	s.l.reportShard(s.shard)
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

// Shard returns the shard that a key of the store is on. A store whose shards fail
// independently has a method Shard, which names them without I/O. A key's shard is looked
// up before each call, because a cluster has no shards until its first answer, and its
// slots move.
func (c caller) Shard(stored string) *key.Shard {
	l := c.l
	var name string
	if l.parts != nil {
		name = l.parts.Shard(stored)
	}
	if s, ok := l.shards.Load(name); ok {
		return s.(*key.Shard)
	}
	s, _ := l.shards.LoadOrStore(name, l.env.NewShard(name))
	return s.(*key.Shard)
}

// Limit is Limiter.ask.
func (c caller) Limit(key string) (backend.Limit, error) { return c.l.ask(key) }

// Send sends the statement under the fetch timeout. No caller's context ends it: that caller
// may leave, and the others still need the fetch.
func (c caller) Send(f *key.Fetch) {
	defer c.l.env.Calls.End()
	f.Req.Detached = true
	_ = c.l.send(context.Background(), f, f.Begin())
}

// send makes the call of f, unless err says why not, and applies its end. The call ends with
// ctx or by the fetch timeout.
func (l *Limiter) send(ctx context.Context, f *key.Fetch, err error) error {
	if err != nil {
		return f.End(key.Trip{}, backend.Reply{}, err)
	}
	call := l.newCall(f.Shard, f.Req.Key, StoreCall{Op: "sync", Cause: string(f.Cause), Reason: f.Reason})
	bounded, cancel := context.WithTimeout(ctx, l.fetchTimeout)
	defer cancel()
	reply, err := call.sync(bounded, &f.Req)
	err = call.end(err, over(ctx))
	err = f.End(call.trip, reply, err)
	call.report()
	return err
}

// await makes a call, by f, for one caller, and returns its reply and error, or the error of
// ctx if that ends first. The call goes on then, and late, unless it is nil, gets its end.
func await[R any](ctx context.Context, call *storeCall, f func(context.Context) (R, error), late func(R, error)) (reply R, _ error) {
	l := call.l
	if !l.env.Calls.Begin() {
		return reply, ErrClosed
	}
	type ending struct {
		reply R
		err   error
	}
	end := make(chan ending)
	go func() {
		defer l.env.Calls.End()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.fetchTimeout)
		defer cancel()
		reply, err := f(bounded)
		err = call.end(err, false)
		select {
		case end <- ending{reply, err}:
		case <-ctx.Done():
			if late != nil {
				late(reply, err)
			}
		}
		call.report()
	}()
	select {
	case e := <-end:
		return e.reply, e.err
	case <-ctx.Done():
		call.left = true
		return reply, ctx.Err()
	}
}

// alone makes a statement without an account for n tokens of a key that has no room in
// memory. It is sent once, and again if the store has done nothing, because its clock is in
// another period of the calendar.
func (l *Limiter) alone(ctx context.Context, k *key.Key, n int64, stay bool) key.Verdict {
	for try := 1; ; try++ {
		a, v := k.Alone(n, stay)
		if v.Next != key.Call {
			return v
		}
		a.Req.Detached = true
		q := a.Req // the call's own, which may go on
		call := l.newCall(l.shardOf(q.Key), q.Key, StoreCall{Op: "sync"})
		r, err := await(ctx, call, func(ctx context.Context) (backend.Reply, error) { return call.sync(ctx, &q) },
			func(r backend.Reply, err error) {
				if err == nil {
					l.env.Counts.Expire(r.Grant)
				}
				l.unknown(err, n)
			})
		l.unknown(err, n)
		if err == nil && r.Astray {
			if try < key.MaxAstray {
				continue
			}
			err = key.ErrorAstray()
		}
		return a.Answer(&r, call.trip.Sent, err, ctx.Err() != nil)
	}
}

// overdraw charges n tokens, without an account, that were used above what c was charged, of
// a key that was forgotten since, if that window is still open. It is sent once.
func (l *Limiter) overdraw(ctx context.Context, k *key.Key, c key.Charge, n int64) error {
	limit := k.Limit().Plain()
	q := backend.Statement{Key: l.env.Stored(k.Name()), Limit: limit, Window: c.Window, Change: n, Detached: true}
	q.Begin, q.End = key.Period(limit, c.Window.Time().Add(-time.Millisecond)) // of that window, whatever the time is
	if limit.Rolls {
		q.Window.End, q.Change, q.Changes = 0, 0, []backend.Change{{Tokens: n}} // now
	}
	counts, shard := &l.env.Counts, l.shardOf(q.Key)
	settled := func(r backend.Reply, err error) {
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
	if shard.Open.Load() {
		err := shard.OpenError()
		settled(backend.Reply{}, err)
		return l.failed(ctx, err)
	}
	if ctx.Err() != nil { // the client has left, which is usual
		ctx = context.WithoutCancel(ctx)
	}
	call := l.newCall(shard, q.Key, StoreCall{Op: "sync", Cause: string(next.Charge)})
	r, err := await(ctx, call, func(ctx context.Context) (backend.Reply, error) { return call.sync(ctx, &q) }, settled)
	if !call.left {
		settled(r, err)
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

// connectTime is how long a call may take that nobody waits for: dial, TLS, handshake and
// the first load of a script, on a far server.
const connectTime = 2 * time.Second

func (l *Limiter) shardOf(stored string) *key.Shard { return caller{l}.Shard(stored) }

// armReopen sets the timer for the next probe of a shard.
func (l *Limiter) armReopen(s *key.Shard) { s.Arm(func() { l.reopen(s) }) }

// reopen probes whether a shard answers again, by a statement for one of its keys that asks
// for nothing. The probe has time to connect, because nobody waits for it. A shard without
// keys is forgotten.
func (l *Limiter) reopen(s *key.Shard) {
	if !l.env.Calls.Begin() {
		return
	}
	defer l.env.Calls.End()
	defer func() {
		if s.Watched() {
			l.armReopen(s)
		}
	}()
	if !s.Due(l.env.Clock.Now()) {
		return
	}
	if stored, ok := s.ProbeKey(); ok {
		l.probe(l.life, max(l.fetchTimeout, connectTime), s, stored)
	} else {
		l.forgetShard(s)
	}
}

// probe makes a statement for a key that does nothing.
func (l *Limiter) probe(ctx context.Context, timeout time.Duration, s *key.Shard, stored string) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	call := l.newCall(s, stored, StoreCall{Op: "sync", Cause: string(next.Reopen)})
	_, err := call.sync(ctx, &backend.Statement{Key: stored, Limit: backend.Limit(PerMinute(1))})
	_ = call.end(err, false)
	call.report()
}

func (l *Limiter) forgetShard(s *key.Shard) {
	s.Reset(l.env.Clock.Now())
	l.shards.CompareAndDelete(s.Name, s)
	s.Resume()
	l.reportShard(s)
}

// reportShard calls the hook for each change of the shard.
func (l *Limiter) reportShard(s *key.Shard) {
	s.Report(func(now breaker.Change) {
		if l.hooks.ShardState != nil {
			l.hooks.ShardState(ShardState{Shard: s.Name, Away: now.Open, Rejecting: now.Rejecting, Err: now.Err})
		}
	})
}

// stopReopening stops the timers of all shards, and probes each shard that is away for the
// last time, so that Close need not try it with each key.
func (l *Limiter) stopReopening(ctx context.Context) {
	var probes errgroup.Group
	probes.SetLimit(key.CallsAtOnce)
	l.shards.Range(func(_, value any) bool {
		s := value.(*key.Shard)
		s.Stop()
		if !s.Open.Load() || ctx.Err() != nil { // a shard without keys would take a walk over all keys
			return true
		}
		if stored, ok := s.ProbeKey(); ok {
			probes.Go(func() error {
				l.probe(ctx, l.fetchTimeout, s, stored)
				return nil
			})
		}
		return true
	})
	_ = probes.Wait()
}

package reservoir

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/key"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file has the one frame of every store call: how long it may take, what its end says
// of the shard, what is counted, and what the hooks get. No lock is held during a call, and
// nothing else calls the store.

// storeCall is one call to the store. It belongs to no caller: a fetch or a direct call
// runs in a goroutine of its own under the fetch timeout, even if its callers leave.
type storeCall struct {
	StoreCall
	l      *Limiter
	shard  *key.Shard
	stored string // the key
	begin  time.Time
	trip   key.Trip
	short  bool // its context may end before the fetch timeout, which says nothing of the shard

	caller atomic.Int32 // of a call for one caller: one of the constants below
}

// What has become of the caller of a call. The call and the caller write this once,
// whichever comes first.
const (
	waits    int32 = iota
	answered       // the call has ended first
	gone           // the caller's context has ended first
	timedOut       // the caller has waited too long: the store does not obey its context
)

// abandoned reports whether the caller does not get the end of the call.
func (s *storeCall) abandoned() bool { return s.caller.Load() > answered }

// newCall returns a call that is sent now.
func (l *Limiter) newCall(s *key.Shard, stored string, what StoreCall) *storeCall {
	return &storeCall{StoreCall: what, l: l, shard: s, stored: stored, begin: time.Now(), trip: key.Trip{Sent: l.env.Clock.Now()}}
}

// do runs f and records how it ended. It makes a *StoreError of every error of a store, so
// that callers need to handle no other; a panic becomes an error too, for the caller that
// waits.
func (s *storeCall) do(ctx context.Context, f func(context.Context) error) (err error) {
	guard.Call(func() error { return f(ctx) }, func(ended error) { err = s.record(ended, s.short && over(ctx)) })
	return err
}

// record records the end of the call. neutral says that it says nothing of the shard.
func (s *storeCall) record(err error, neutral bool) error {
	s.caller.CompareAndSwap(waits, answered)
	s.Duration, s.trip.End, s.trip.Made = time.Since(s.begin), s.l.env.Clock.Now(), true
	s.l.env.Counts.Calls.Add(1)
	failure, ok := errors.AsType[*StoreError](err)
	if err != nil && !ok && !guard.IsPanic(err) {
		failure = &StoreError{Op: s.Op, Class: backend.Unknown, Err: err}
		err = failure
	}
	cause := err
	if failure != nil { // the cause that callers get, without what a store has wrapped it in
		cause = failure
	}
	outcome := key.OutcomeOf(err)
	if failure != nil && failure.KeyOnly && s.Cause == string(next.Reopen) { // the shard answers, though it does not serve this key
		outcome = breaker.Answered
	}
	switch caller := s.caller.Load(); {
	case neutral, caller == timedOut: // the shard was told then
		outcome = breaker.Neutral
	case caller == gone && outcome == breaker.Answered && s.Duration > s.l.fetchTimeout+key.Slack: // not in time
		outcome, cause = breaker.Failed, s.noAnswer()
	}
	s.judge(s.trip.End, outcome, cause)
	s.Err = err
	return err
}

// judge tells the shard how the call has ended.
func (s *storeCall) judge(end int64, outcome breaker.Outcome, cause error) {
	if s.Op == "publish" { // of another right and, in a cluster, of another server
		return
	}
	if outcome == breaker.Failed {
		s.shard.Failed(s.stored)
	}
	if s.Op != "check" && s.shard.Record(s.trip.Sent, end, outcome, cause) { // a replica may have answered a Check
		s.l.armReopen(s.shard)
	}
	s.shard.Resume()
}

// noAnswer is the error of a call that takes longer than the fetch timeout allows.
func (s *storeCall) noAnswer() error {
	return &StoreError{Op: s.Op, Class: backend.Unknown, Err: key.ErrSilent}
}

// over reports whether ctx has ended, or ends within a millisecond, because a socket's
// deadline fires a moment before the timer of the context that it was taken from.
func over(ctx context.Context) bool { return ctx.Err() != nil || soonerThan(ctx, time.Millisecond) }

// soonerThan reports whether ctx ends before d has passed.
func soonerThan(ctx context.Context, d time.Duration) bool {
	t, ok := ctx.Deadline()
	return ok && time.Until(t) < d
}

// report calls the hooks. It comes last, so that a slow hook delays no caller. No caller
// could get a hook's panic, so it is logged.
func (s *storeCall) report() {
	if hook := s.l.hooks.StoreCall; hook != nil {
		guard.Log(func() { hook(s.StoreCall) })
	}
	s.l.reportShard(s.shard)
}

// sync makes the statement q.
func (s *storeCall) sync(ctx context.Context, q *backend.Statement) (r backend.Reply, err error) {
	err = s.do(ctx, func(ctx context.Context) (err error) {
		r, err = s.syncOnly(ctx, q)
		return err
	})
	return r, err
}

// syncOnly is the part of sync that is the store's.
func (s *storeCall) syncOnly(ctx context.Context, q *backend.Statement) (r backend.Reply, err error) {
	s.Want = max(q.Want, q.Need, q.Change)
	for _, c := range q.Changes {
		s.Want = max(s.Want, c.Tokens)
	}
	s.l.env.Counts.Syncs.Add(1)
	if r, err = s.l.store.Sync(ctx, *q); err == nil && r.Astray {
		s.shard.SetClock(r.Now)
	}
	s.Granted = r.Grant
	return r, err
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
	if l.parts != nil { // it may panic, and under a key's lock no caller could get the panic
		guard.Log(func() { name = l.parts.Shard(stored) })
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
	l := c.l
	defer l.env.Calls.End()
	f.Req.Detached = true
	_ = l.send(context.Background(), f, f.Begin)
}

// send makes the call of f, unless begin fails, and applies its end.
func (l *Limiter) send(ctx context.Context, f *key.Fetch, begin func() error) (err error) {
	call := l.newCall(f.Shard, f.Req.Key, StoreCall{Op: "sync", Cause: string(f.Cause), Reason: f.Reason})
	var reply backend.Reply
	guard.Call(func() (err error) {
		if err = begin(); err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, l.fetchTimeout)
		defer cancel()
		call.short = soonerThan(ctx, l.fetchTimeout)
		reply, err = call.sync(bounded, &f.Req)
		return err
	}, func(failed error) {
		call.trip.Duration = call.Duration
		var received bool
		if err, received = f.End(call.trip, reply, failed); !received { // no caller gets its panic
			guard.Unheard(err)
		}
		if call.trip.Made {
			call.report()
		}
	})
	return err
}

// sendLast is send for the last statement of a key, which ends with ctx. It calls no
// function of the user's but the store.
func (l *Limiter) sendLast(ctx context.Context, f *key.Fetch) error {
	return l.send(ctx, f, func() error {
		if ctx.Err() == nil && f.Shard.Open() {
			return f.Shard.OpenError()
		}
		return ctx.Err()
	})
}

// detached makes a call, by f, for one caller, and returns its reply and error, or the error
// of ctx if that ends first. A store should end the call at the fetch timeout; if it does
// not, the caller gets no answer. In both cases the call goes on, and then abandoned gets its
// end; a panic is logged.
func detached[R any](ctx context.Context, call *storeCall, f func(context.Context) (R, error), abandoned func(R, error)) (reply R, _ error) {
	l := call.l
	if !l.env.Calls.Begin() {
		return reply, ErrClosed
	}
	type ending struct {
		reply R
		err   error
	}
	end := make(chan ending, 1)
	go func() {
		defer l.env.Calls.End()
		defer call.report()
		e := ending{err: guard.ErrGoexit} // unless the store returns
		defer func() {
			end <- e
			if call.abandoned() {
				guard.Unheard(e.err)
				abandoned(e.reply, e.err)
			}
		}()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.fetchTimeout)
		defer cancel()
		e.err = call.do(bounded, func(ctx context.Context) (err error) {
			e.reply, err = f(ctx)
			return err
		})
	}()
	timeout := time.NewTimer(l.fetchTimeout + key.Slack)
	defer timeout.Stop()
	select {
	case e := <-end:
		return e.reply, guard.Raise(e.err)
	case <-ctx.Done():
		if call.caller.CompareAndSwap(waits, gone) {
			return reply, ctx.Err()
		}
	case <-timeout.C:
		if call.caller.CompareAndSwap(waits, timedOut) {
			call.giveUp()
			return reply, call.noAnswer()
		}
	}
	e := <-end
	return e.reply, guard.Raise(e.err)
}

// giveUp tells the shard, and the hook, of a call that has not ended in time, and may never.
func (s *storeCall) giveUp() {
	s.judge(s.l.env.Clock.Now(), breaker.Failed, s.noAnswer())
	if s.l.env.Calls.Begin() {
		go func() {
			defer s.l.env.Calls.End()
			s.l.reportShard(s.shard)
		}()
	}
}

// alone makes a statement without an account for n tokens of a key that has no room in memory. It is sent once, and again if the
// store has done nothing, because its clock is in another period of the calendar.
func (l *Limiter) alone(ctx context.Context, k *key.Key, n int64, stay bool) key.Verdict {
	for try := 1; ; try++ {
		a, v := k.Alone(n, stay)
		if v.Next != key.Call {
			return v
		}
		r, sent, err := l.aloneOnce(ctx, &a)
		if err == nil && r.Astray {
			if try < key.MaxAstray {
				continue
			}
			err = key.ErrorAstray()
		}
		return a.Answer(&r, sent, err, ctx.Err() != nil)
	}
}

// aloneOnce makes the statement of a.
func (l *Limiter) aloneOnce(ctx context.Context, a *key.Alone) (backend.Reply, int64, error) {
	call := l.newCall(l.shardOf(a.Req.Key), a.Req.Key, StoreCall{Op: "sync"})
	a.Req.Detached = true
	late := func(r backend.Reply, err error) { // its caller has left
		if err == nil {
			l.env.Counts.Expire(r.Grant)
		}
		l.unknown(err, a.Req.Need)
	}
	q := a.Req // the call's own, which may go on
	r, err := detached(ctx, call, func(ctx context.Context) (backend.Reply, error) { return call.syncOnly(ctx, &q) }, late)
	if err != nil && !call.abandoned() {
		l.unknown(err, a.Req.Need)
	}
	return r, call.trip.Sent, err
}

// overdraw charges n tokens, without an account, that were used above what c was charged, of a key that was forgotten since, if
// that window is still open. It is sent once.
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
	if shard.Open() {
		err := shard.OpenError()
		settled(backend.Reply{}, err)
		return l.failed(ctx, err)
	}
	if ctx.Err() != nil { // the client has left, which is usual
		ctx = context.WithoutCancel(ctx)
	}
	call := l.newCall(shard, q.Key, StoreCall{Op: "sync", Cause: string(next.Charge)})
	r, err := backend.Reply{}, guard.ErrGoexit // unless the store returns
	defer func() {
		if !call.abandoned() {
			settled(r, err)
		}
	}()
	r, err = detached(ctx, call, func(ctx context.Context) (backend.Reply, error) { return call.syncOnly(ctx, &q) }, settled)
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

func (l *Limiter) check(ctx context.Context, stored string, limit backend.Limit) (state backend.State, err error) {
	s := l.shardOf(stored)
	if !s.MayCheck(l.env.Clock.Now()) {
		return state, l.failed(ctx, s.OpenError())
	}
	state, err = detached(ctx, l.newCall(s, stored, StoreCall{Op: "check"}), func(ctx context.Context) (backend.State, error) {
		return l.store.Check(ctx, stored, limit)
	}, func(backend.State, error) {})
	if err != nil {
		s.CheckFailed(l.env.Clock.Now())
	}
	return state, l.failed(ctx, err)
}

// reset voids the open window. It is never repeated.
func (l *Limiter) reset(ctx context.Context, stored string, limit backend.Limit) (backend.Window, error) {
	call := l.newCall(l.shardOf(stored), stored, StoreCall{Op: "reset"})
	void, err := detached(ctx, call, func(ctx context.Context) (backend.Window, error) { return l.store.Reset(ctx, stored, limit) },
		func(backend.Window, error) {})
	return void, l.failed(ctx, err)
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
func (l *Limiter) armReopen(s *key.Shard) {
	s.Arm(func() { guard.Log(func() { l.reopen(s) }) })
}

// reopen probes whether a shard answers again, by a statement for one of its keys that asks
// for nothing. The probe has time to connect, because nobody waits for it. A shard without
// keys is forgotten.
func (l *Limiter) reopen(s *key.Shard) {
	if !l.env.Calls.Begin() {
		return
	}
	defer l.env.Calls.End()
	again := func() {
		if s.Watched() {
			l.armReopen(s)
		}
	}
	defer again() // whatever the store does
	if !s.Due(l.env.Clock.Now()) {
		return
	}
	stored, ok := s.ProbeKey()
	if !ok {
		l.forgetShard(s)
		return
	}
	timeout := max(l.fetchTimeout, connectTime)
	ctx, cancel := context.WithTimeout(l.life, timeout)
	defer cancel()
	sent := l.env.Clock.Now()
	late := time.AfterFunc(timeout+key.Slack, func() { // the store does not obey its context, and may never return
		s.Record(sent, l.env.Clock.Now(), breaker.Failed, s.Cause())
		again()
	})
	defer late.Stop()
	l.probe(ctx, s, stored)
}

// probe makes a statement for a key that does nothing.
func (l *Limiter) probe(ctx context.Context, s *key.Shard, stored string) {
	call := l.newCall(s, stored, StoreCall{Op: "sync", Cause: string(next.Reopen)})
	defer call.report()
	_, err := call.sync(ctx, &backend.Statement{Key: stored, Limit: backend.Limit(PerMinute(1))})
	guard.Unheard(err)
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
			guard.Log(func() {
				l.hooks.ShardState(ShardState{Shard: s.Name, Away: now.Open, Rejecting: now.Rejecting, Err: now.Err})
			})
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
		if !s.Open() || ctx.Err() != nil { // a shard without keys would take a walk over all keys
			return true
		}
		if stored, ok := s.ProbeKey(); ok {
			probes.Go(func() error {
				bounded, cancel := context.WithTimeout(ctx, l.fetchTimeout)
				defer cancel()
				l.probe(bounded, s, stored)
				return nil
			})
		}
		return true
	})
	_ = probes.Wait()
}

package reservoir

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/inflight"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/monotime"
)

// This file has the one frame of every store call: how long it may take, what its end says
// of the shard, what is counted, and what the hooks get. No lock is held during a call.
// The calls for one request, of WithDirect and of keys past WithMaxKeys, come last.

// client is the store as a limiter calls it, shard by shard. Nothing else calls the store.
// Its fields are written only by New, or are safe for concurrent use.
type client struct {
	config
	store  backend.Store
	terms  terms                                 // New's limit
	parts  interface{ Shard(key string) string } // the store, if its parts fail independently; or nil
	clock  monotime.Clock
	keys   keytable.Table[keyState]
	shards sync.Map // name → *shard
	calls  inflight.Counter
	count  counts

	extra extraTokens

	id   string
	life context.Context // the limiter's; probes end with it
	end  context.CancelFunc
}

// storeCall is one call to the store. It belongs to no caller: a fetch or a direct call
// runs in a goroutine of its own under the fetch timeout, even if its callers leave.
type storeCall struct {
	StoreCall
	c     *client
	shard *shard
	key   string
	begin time.Time
	sent  int64
	end   int64
	made  bool // the call was made, so there is something to report
	short bool // its context may end before the fetch timeout, which says nothing of the shard

	caller atomic.Int32 // of a call for one caller: one of the constants below
}

// What has become of the caller of a call. The call and the caller write this once,
// whichever comes first.
const (
	waits    int32 = iota
	heard          // the call has ended first
	left           // the caller's context has ended first
	timedOut       // the caller has waited too long: the store does not obey its context
)

// abandoned reports whether the caller does not get the end of the call.
func (s *storeCall) abandoned() bool { return s.caller.Load() > heard }

// newCall returns a call that is sent now.
func (c *client) newCall(s *shard, key string, what StoreCall) *storeCall {
	return &storeCall{StoreCall: what, c: c, shard: s, key: key, begin: time.Now(), sent: c.clock.Now()}
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
	s.caller.CompareAndSwap(waits, heard)
	s.Duration, s.end, s.made = time.Since(s.begin), s.c.clock.Now(), true
	s.c.count.calls.Add(1)
	failure, ok := errors.AsType[*StoreError](err)
	if err != nil && !ok && !errors.Is(err, ErrConflict) && !guard.IsPanic(err) {
		failure = &StoreError{Op: s.Op, Class: backend.Unknown, Err: err}
		err = failure
	}
	cause := err
	if failure != nil { // the cause that callers get, without what a store has wrapped it in
		cause = failure
	}
	outcome := outcomeOf(err)
	switch caller := s.caller.Load(); {
	case neutral, caller == timedOut: // the shard was told then
		outcome = breaker.Neutral
	case caller == left && outcome == breaker.Answered && s.Duration > s.c.fetchTimeout+slack: // not in time
		outcome, cause = breaker.Failed, s.noAnswer()
	}
	s.judge(s.end, outcome, cause)
	s.Err = err
	return err
}

// judge tells the shard how the call has ended.
func (s *storeCall) judge(end int64, outcome breaker.Outcome, cause error) {
	if outcome == breaker.Failed {
		s.shard.remember(s.key)
	}
	if s.Op != "check" && s.shard.Record(s.sent, end, outcome, cause) { // a replica may have answered a Check
		s.c.armReopen(s.shard)
	}
	s.c.resume(s.shard)
}

// noAnswer is the error of a call that takes longer than the fetch timeout allows.
func (s *storeCall) noAnswer() error {
	return &StoreError{Op: s.Op, Class: backend.Unknown, Err: errNoAnswer}
}

// sync makes the statement q.
func (s *storeCall) sync(ctx context.Context, q backend.SyncRequest) (reply backend.SyncReply, err error) {
	s.Want = q.Want
	err = s.do(ctx, func(ctx context.Context) (err error) {
		s.c.count.syncs.Add(1)
		reply, err = s.c.store.Sync(ctx, q)
		s.Granted = reply.Grant
		return err
	})
	if reply.Conflict {
		s.Err = ErrConflict // reported even if the limit may have changed
	}
	return reply, err
}

// outcomeOf is what the error of a call says of the shard.
func outcomeOf(err error) breaker.Outcome {
	failure, ok := errors.AsType[*StoreError](err)
	switch {
	case err == nil, errors.Is(err, ErrConflict):
		return breaker.Answered
	case !ok || failure.KeyOnly:
		return breaker.Neutral
	case failure.Class == backend.Rejected:
		return breaker.Rejected
	}
	return breaker.Failed
}

// over reports whether ctx has ended, or ends within a millisecond, because a socket's
// deadline fires a moment before the timer of the context that it was taken from.
func over(ctx context.Context) bool {
	if ctx.Err() != nil {
		return true
	}
	d, ok := ctx.Deadline()
	return ok && time.Until(d) < time.Millisecond
}

// report calls the hooks. It comes last, so that a slow hook delays no caller. No caller
// could get a hook's panic, so it is logged.
func (s *storeCall) report() {
	hooks := &s.c.hooks
	if hooks.StoreCall != nil {
		guard.Log(func() { hooks.StoreCall(s.StoreCall) })
	}
	s.c.reportShard(s.shard)
}

// detached makes a call, by f, for one caller and returns the call's error, or that of ctx
// if it ends first. A store should end the call at the fetch timeout; if it does not, the
// caller gets errNoAnswer. In both cases the call goes on, and then abandoned gets its
// error; a panic is logged.
func (c *client) detached(ctx context.Context, call *storeCall, f func(context.Context) error, abandoned func(error)) error {
	if !c.calls.Begin() {
		return ErrClosed
	}
	end := make(chan error, 1)
	go func() {
		defer c.calls.End()
		defer call.report()
		err := guard.ErrGoexit // unless the store returns
		defer func() {
			end <- err
			if call.abandoned() {
				guard.Unheard(err)
				abandoned(err)
			}
		}()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.fetchTimeout)
		defer cancel()
		err = call.do(bounded, f)
	}()
	timeout := time.NewTimer(c.fetchTimeout + slack)
	defer timeout.Stop()
	select {
	case err := <-end:
		return guard.Raise(err)
	case <-ctx.Done():
		if call.caller.CompareAndSwap(waits, left) {
			return ctx.Err()
		}
	case <-timeout.C:
		if call.caller.CompareAndSwap(waits, timedOut) {
			err := call.noAnswer()
			call.judge(c.clock.Now(), breaker.Failed, err)
			if c.calls.Begin() { // the hook, because this call may never end
				go func() {
					defer c.calls.End()
					c.reportShard(call.shard)
				}()
			}
			return err
		}
	}
	return guard.Raise(<-end)
}

// follow makes a call, by f, at the end of one whose caller has left. Nobody waits for it but
// Close, so it has time to connect.
func (c *client) follow(call *storeCall, f func(context.Context) error) error {
	defer call.report()
	call.caller.Store(left)
	ctx, cancel := context.WithTimeout(context.Background(), max(c.fetchTimeout, connectTime))
	defer cancel()
	err := call.do(ctx, f)
	guard.Unheard(err)
	return err
}

// take makes a direct call for tokens. Tokens that come after the caller has left go back.
func (c *client) take(ctx context.Context, s *shard, r backend.TakeRequest) (_ backend.TakeReply, sent int64, _ error) {
	var reply backend.TakeReply // not the caller's: the call may end after the caller has left
	r.Detached = true
	call := c.newCall(s, r.Key, StoreCall{Op: "take", Want: r.Tokens})
	err := c.detached(ctx, call, func(ctx context.Context) (err error) {
		if reply, err = c.store.Take(ctx, r); err == nil && reply.Allowed {
			call.Granted = r.Tokens
		}
		return err
	}, func(err error) {
		if err == nil && reply.Allowed {
			c.undo(s, r, reply.Window)
		} else {
			c.lost(err, r.Tokens)
		}
	})
	if err == nil {
		return reply, call.sent, nil
	}
	if !call.abandoned() {
		c.lost(err, r.Tokens)
	}
	return backend.TakeReply{}, 0, err
}

// lost counts the tokens of a direct call if it may have been carried out, and reports
// whether it may.
func (c *client) lost(err error, n int64) bool {
	failure, ok := errors.AsType[*StoreError](err)
	if ok = ok && failure.Class == backend.Unknown; ok {
		c.count.unknown.Add(n)
	}
	return ok
}

// undo gives back what a direct call has charged for a caller that has left.
func (c *client) undo(s *shard, r backend.TakeRequest, w backend.Window) {
	c.count.taken.Add(r.Tokens)
	c.count.spent.Add(r.Tokens)
	c.extra[0].Add(r.Tokens) // no request has used them
	q := backend.SettleRequest{Key: r.Key, Window: w, Tokens: -r.Tokens, Limit: r.Limit.Tokens}
	var reply backend.SettleReply
	err := c.follow(c.settling(s, q, &reply))
	c.settled(q, reply, err)
}

// settle makes the call that corrects what a direct call has charged, and counts what
// became of the tokens. It is never repeated.
func (c *client) settle(ctx context.Context, s *shard, q backend.SettleRequest) (_ backend.SettleReply, err error) {
	var reply backend.SettleReply // not the caller's: the call may end after the caller has left
	if s.Open() {
		err = s.openError()
		c.settled(q, reply, err)
		return reply, c.failed(ctx, err)
	}
	call, send := c.settling(s, q, &reply)
	err = guard.ErrGoexit // unless the store returns
	defer func() {
		if !call.abandoned() {
			c.settled(q, reply, err)
		}
	}()
	if err = c.detached(ctx, call, send, func(err error) { c.settled(q, reply, err) }); err != nil {
		return backend.SettleReply{}, c.failed(ctx, err)
	}
	return reply, nil
}

// settling returns a call for q and the function that makes it.
func (c *client) settling(s *shard, q backend.SettleRequest, reply *backend.SettleReply) (*storeCall, func(context.Context) error) {
	n := max(q.Tokens, -q.Tokens)
	call := c.newCall(s, q.Key, StoreCall{Op: "settle", Want: n})
	return call, func(ctx context.Context) (err error) {
		if *reply, err = c.store.Settle(ctx, q); reply.Open {
			call.Granted = n
		}
		return err
	}
}

// settled counts the tokens of q by the end of its call. What was used and is surely not
// charged is overdrawn; what was not used and is not given back expires.
func (c *client) settled(q backend.SettleRequest, r backend.SettleReply, err error) {
	n, m := q.Tokens, account.Moved{}
	done := err == nil && r.Open
	if n < 0 {
		c.count.refunded.Add(-n)
	}
	switch unknown := c.lost(err, max(n, -n)); {
	case n < 0 && done:
		m.Returned = -n
	case n < 0:
		m.Expired = -n
	case done:
		m.Taken, m.Overdrawn = n, min(n, r.Over)
		c.count.spent.Add(n)
		c.count.direct.Add(n)
		c.extra[0].Add(n)
	case !unknown:
		m.Overdrawn = n
	}
	c.count.move(m)
}

func (c *client) check(ctx context.Context, s *shard, key string, limit Limit) (backend.State, error) {
	if !s.mayCheck(c.clock.Now()) {
		return backend.State{}, c.failed(ctx, s.openError())
	}
	var state backend.State
	err := c.detached(ctx, c.newCall(s, key, StoreCall{Op: "check"}), func(ctx context.Context) (err error) {
		state, err = c.store.Check(ctx, key, limit)
		return err
	}, func(error) {})
	if err != nil {
		s.checkFailed(c.clock.Now())
		return backend.State{}, c.failed(ctx, err)
	}
	return state, nil
}

// reset opens a fresh window. It is never repeated.
func (c *client) reset(ctx context.Context, s *shard, r backend.ResetRequest) (state backend.State, sent int64, err error) {
	var reply backend.State // not the caller's: the call may end after the caller has left
	call := c.newCall(s, r.Key, StoreCall{Op: "reset"})
	err = c.detached(ctx, call, func(ctx context.Context) (err error) {
		reply, err = c.store.Reset(ctx, r)
		return err
	}, func(error) {})
	if err != nil {
		return backend.State{}, 0, c.failed(ctx, err)
	}
	return reply, call.sent, nil
}

// failed counts a request that ends in a *StoreError.
func (c *client) failed(ctx context.Context, err error) error {
	if _, ok := errors.AsType[*StoreError](err); ok && ctx.Err() == nil {
		c.count.failed.Add(1)
	}
	return err
}

// clientOf is the client name of an epoch in the store.
func (c *client) clientOf(epoch uint32) string {
	return c.id + "." + strconv.FormatUint(uint64(epoch), 36)
}

// lengthTries is how often a request without stock is made while replies name windows of
// other lengths. After the first reply the request names that length too, but its window
// may end before the second try, and a slow process may open one of a third length.
const lengthTries = 3

// direct is a store call for one request. It leaves the stock alone.
type direct struct {
	k     *keyState
	stay  bool
	req   backend.TakeRequest
	reply backend.TakeReply
	sent  int64
}

// takeFor makes a call for n tokens of k, all or none. A caller that stays asks again if it
// is refused.
func (l *Limiter) takeFor(ctx context.Context, k *keyState, n int64, stay bool) (r Result, err error) {
	for range lengthTries {
		limit := k.limit()
		if n > limit.Tokens {
			return l.tooMuch(limit)
		}
		var again bool
		d := direct{k: k, stay: stay, req: backend.TakeRequest{Key: l.storeKey(k.node.Key), Limit: limit.Plain(), Tokens: n}}
		if l.varies() || k.bound.Load().next != 0 {
			k.event(func(now int64) int64 {
				if k.plan != counted {
					err = errSpecial
				}
				d.req.Limit, d.req.OpenLength, d.req.End, d.req.Next = k.openings(k.lease.Load(), now)
				return unchanged
			})
		}
		if err != nil {
			return r, err
		}
		d.reply, d.sent, err = l.take(ctx, l.shardOf(d.req.Key), d.req)
		if r, again, err = d.complete(ctx, err); !again {
			return r, err
		}
	}
	return r, ErrConflict
}

// complete applies the end of the call. again says that the open window has another
// length, and that the call may be made once more with that length.
func (d *direct) complete(ctx context.Context, err error) (r Result, again bool, _ error) {
	d.k.event(func(now int64) int64 {
		switch {
		case err != nil && ctx.Err() != nil:
			return unchanged
		case err != nil && d.k.retired: // no account would record what the policy admits
			r, err = d.k.l.policyStateless(d.k.node.Key, d.k.limit(), d.req.Tokens, d.stay, err)
			return unchanged
		case err != nil:
			_, err = d.k.policyLocked(&r, d.req.Tokens, false, now, err)
			return 0
		case d.reply.Conflict:
			if again = d.k.adoptLocked(d.reply.State, 1, d.sent, now); !again {
				err = ErrConflict
				d.k.conflictLocked(d.reply.State, now)
			}
			return unchanged
		}
		if d.k.firstFetch == 0 {
			d.k.firstFetch = max(d.sent, 1)
		}
		d.readLocked(now)
		r = taken(d.reply, d.req, d.k.limit())
		return d.bookLocked(&r, now)
	})
	return r, again, err
}

// readLocked applies the reading that came with the call. It says nothing of the account,
// so it never ends a window whose tokens may be spent.
func (d *direct) readLocked(now int64) {
	w, window := d.k.lease.Load(), d.reply.Window
	if w == nil || window == w.Window || window > w.Window && !w.Alive(now) {
		length := cmp.Or(d.reply.Length, d.req.Limit.Window)
		if w == nil || window != w.Window {
			length = d.k.nextLength(d.reply.State, d.req.Limit.Window, 1, d.sent)
		}
		d.k.readLocked(d.reply.State, length, d.sent, now)
	}
}

// bookLocked records what the call has charged, or its refusal. If the refusal is of a
// window that a Reset elsewhere has opened, a probe must end the old window here.
func (d *direct) bookLocked(r *Result, now int64) (wanted int64) {
	k, n := d.k, d.req.Tokens
	w := k.lease.Load()
	current := w != nil && w.Window == d.reply.Window
	if current && r.Allowed { // a refusal tells what was too little
		r.Remaining = min(r.Remaining+w.Stock(), r.Limit)
	}
	switch {
	case r.Allowed && current:
		k.l.count.move(k.account.Direct(n))
		k.l.count.direct.Add(n)
		k.l.extra.add(k, n-1)
		r.key, k.deniedUntil = k.node.Hash, 0
	case r.Allowed: // the key is forgotten, or in another window
		k.l.bookWithoutAccount(r, k.node.Hash)
	case k.retired:
		if !d.stay {
			k.l.count.denied.Add(1)
		}
	default:
		k.denied.Add(1)
		if current && now >= k.deniedUntil && d.req.Limit.Tokens >= k.limit().Tokens { // the limit was not raised since
			k.denyLocked(w, now)
		} else if !current && w.Alive(now) {
			return n
		}
	}
	return 0
}

// bookWithoutAccount records what a direct call has charged outside any key's account.
func (c *client) bookWithoutAccount(r *Result, hash uint32) {
	c.count.taken.Add(r.charged)
	c.count.spent.Add(r.charged)
	c.count.direct.Add(r.charged)
	c.extra[0].Add(r.charged - 1)
	r.key = hash
}

// taken is the result of a direct call.
func taken(t backend.TakeReply, q backend.TakeRequest, limit Limit) Result {
	r := Result{Allowed: t.Allowed, Source: Direct, Limit: q.Limit.Tokens, Remaining: t.Remaining, Reset: t.Window.Time()}
	if t.Allowed {
		r.charged = q.Tokens
	} else {
		r.Shadowed, r.RetryAfter = limit.Shadow, retryAfter(t.Left, cmp.Or(t.Length, q.Limit.Window))
	}
	return r
}

// takeStateless makes a call for a key that has no room in memory, by a state that no other
// caller finds.
func (l *Limiter) takeStateless(ctx context.Context, key string, limit Limit, n int64, stay bool) (Result, error) {
	node := &keytable.Node[keyState]{Key: key, Hash: l.keys.HashOf(key)}
	l.initKey(node, limit)
	k := &node.State
	if k.retired = true; k.shard.Open() {
		return l.policyStateless(key, limit, n, stay, k.shard.openError())
	}
	l.count.waited.Add(1)
	return l.takeFor(ctx, k, n, stay)
}

// Package reservoir limits the rate of requests to several processes that share their
// limits in Redis, with few Redis calls.
//
// Each process holds a batch of tokens per key that the store has already charged to it,
// and spends them from memory. Most requests never touch the network, and yet all
// processes together never exceed the limit, because tokens are reserved before anything
// is admitted. A process returns tokens that it does not use.
//
//	limiter, err := reservoir.New(store, reservoir.PerMinute(60_000))
//	...
//	r, err := limiter.Allow(ctx, "user:42")
//	switch {
//	case err != nil: // no decision: the store is away
//	case !r.Allowed: // refused: come back after r.RetryAfter
//	}
//
// A store is memstore.New() for one process, redisstore.New(client) for many, or
// several of either behind sharding.New.
//
// # What is promised
//
// Over all processes, the tokens spent in a window of the store never exceed the limit
// while the store keeps its data, even if calls are lost, late, repeated or reordered.
// [What may exceed a limit] lists the exceptions. A charged token is spent, handed back, or
// expires with its window, and [Stats] counts it as one of these. A caller with stock at hand
// does no I/O and takes no lock, except one caller per batch, which orders the next batch.
// Refusals make no store call until the reset, except for an occasional probe. A crowd on one
// key shares one call, and a caller is bounded by its own context.
//
// # When the store is away
//
// Requests with stock notice nothing, because their tokens are charged already. Others get a
// [*StoreError], or what [WithFailOpen] or [WithFailLocal] says. A Wait that the failure policy does
// not admit lasts until the store is back or its context ends; but if the store rejects the
// call, which an operator must mend, the Wait returns the error at once. After a few failed calls
// in a row a circuit breaker opens, one per shard if the store has shards. While it is open, callers
// get the policy's answer at once, and a timer tries the shard by calls that charge nothing.
//
// [What may exceed a limit]: https://github.com/go-reservoir/reservoir/blob/main/docs/choosing.md#what-may-exceed-a-limit
package reservoir

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/inflight"
	"github.com/go-reservoir/reservoir/internal/key"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/placement"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

// Limiter limits any number of keys. Make it with [New]; the zero Limiter is not usable.
// It is safe for concurrent use. It holds tokens that the store has charged, so call
// [Limiter.Close] to hand them back. One Limiter per process and limit is enough; two
// share nothing but the store.
type Limiter struct {
	config
	env     key.Env
	store   backend.Store
	sweeper sweeper
	making  inflight.Counter // keys that are made just now, which Close waits for

	hearing hearing

	closeDone chan struct{} // closed when Close has ended
	closeErr  error         // written before closeDone is closed, and only read after
}

// New returns a Limiter that counts in store. It does no I/O and starts no goroutine. Its
// errors wrap [ErrLimit] for a limit out of range, and [ErrOption] for a nil store or an
// option that makes no sense; a store that is set up wrongly returns its own error.
func New(store backend.Store, limit Limit, opts ...Option) (*Limiter, error) {
	l := &Limiter{config: defaults(limit), store: store, closeDone: make(chan struct{})}
	for _, o := range opts {
		o(&l.config)
	}
	if store == nil {
		return nil, fmt.Errorf("%w: no store", ErrOption)
	}
	if s, ok := store.(interface{ Err() error }); ok && s.Err() != nil {
		return nil, s.Err()
	}
	if err := l.validate(); err != nil {
		return nil, err
	}
	l.env.Init(l.settings(store), caller{l}, int64(l.maxKeys))
	l.sweeper.l, l.hearing.l = l, l
	return l, nil
}

// Allow is [Limiter.AllowN] for one token.
func (l *Limiter) Allow(ctx context.Context, key string) (r Result, err error) {
	err = l.allow(&r, ctx, key, 1)
	return r, err
}

// AllowN asks for n tokens of key, all or none. Usually it decides in memory; without
// stock the caller waits for a fetch that it shares with others (see [WithFetchTimeout]).
// A refusal is a [Result] and charges nothing. An error means that no decision was made:
// [ErrKey], [backend.ErrTokens], [ErrLimit], [ErrExceedsLimit], [ErrClosed], a
// [*StoreError], or the error of ctx.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (r Result, err error) {
	err = l.allow(&r, ctx, key, n)
	return r, err
}

func (l *Limiter) allow(r *Result, ctx context.Context, name string, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if k := l.env.Get(name); k != nil && n > 0 && l.try(r, k, n) {
		if r.Shadowed {
			l.pass(r)
		}
		return nil
	}
	slow, _, err := l.acquire(ctx, name, ask{N: n})
	*r = slow
	return err
}

// try decides from memory, without a lock, if that is possible. A Result has many words, so
// the hot path writes it where the caller will read it.
func (l *Limiter) try(r *Result, k *key.Key, n int64) bool {
	w := k.Lease.Load()
	if w == nil {
		return false
	}
	now := l.env.Clock.Now()
	if !w.Alive(now) {
		return false
	}
	if left, ok := w.Spend(n); ok {
		t := k.Limit.Load() // before a reply changes what remains
		r.Allowed, r.Source, r.Limit, r.Window, r.Remaining = true, Local, t.Tokens, t.Window, min(w.Remaining.Load()+left, t.Tokens)
		r.Reset, r.of, r.charged, r.gen, r.bucket = w.Window.Time(), k, n, w.Window.Gen, w.Bucket
		if n > 1 {
			k.Used(n)
		}
		k.OrderIfLow(w, left)
		return true
	}
	return l.refuse(r, k, w, now, n)
}

// refuse refuses n tokens from memory, if it is known that the store has too few.
func (l *Limiter) refuse(r *Result, k *key.Key, w *tokens.Lease, now, n int64) bool {
	t := k.Limit.Load()
	if n > t.Tokens || !w.Denies(n, now) {
		return false
	}
	k.Refusals.Add(1)
	r.Source, r.Shadowed, r.Limit, r.Window, r.Remaining = Local, t.Shadow, t.Tokens, t.Window, min(w.Remaining.Load()+w.Stock.Load(), t.Tokens)
	r.Reset, r.RetryAfter = w.Window.Time(), key.RetryAfter(time.Duration(w.Reset.Load()-now), tokens.Longest(*t))
	return true
}

// refuses is refuse before anything is spent: not if k, which may be nil, has stock or lets the request pass.
func (l *Limiter) refuses(r *Result, k *key.Key, n int64) bool {
	if k == nil || k.Limit.Load().Shadow {
		return false
	}
	w, now := k.Lease.Load(), l.env.Clock.Now()
	return w.Alive(now) && w.Stock.Load() < n && l.refuse(r, k, w, now, n)
}

// glance returns what memory shows of a limit that was not asked. It is not to be settled.
func (l *Limiter) glance(name string) (r Result) {
	r.Allowed, r.free = true, true
	if l.validateKey(name) != nil { // such a limit may have any key
		return r
	}
	k := l.env.Get(name)
	if k == nil {
		if limit, err := (caller{l}).Limit(name); err == nil {
			r.Limit, r.Window = limit.Tokens, limit.Window
		}
		return r
	}
	t, w := k.Limit.Load(), k.Lease.Load()
	r.Limit, r.Window = t.Tokens, t.Window
	if w.Alive(l.env.Clock.Now()) {
		r.Remaining, r.Reset = min(w.Remaining.Load()+w.Stock.Load(), t.Tokens), w.Window.Time()
	}
	return r
}

// pass lets a refused request pass, because its limit is in shadow.
func (l *Limiter) pass(r *Result) {
	r.Allowed, r.RetryAfter = true, 0
	l.env.Counts.Shadowed.Add(1)
}

// AllowUpTo asks for as many tokens of key as there are, up to n, possibly none: for work that can be done in part, such as to send n
// messages of a queue. got is how many were charged; if that is 0, r is a refusal. An n above the limit counts as the limit. Stock is
// taken first, and one fetch asks for what it lacks; like [Limiter.AllowN], it waits for tokens that lie idle in other processes before
// it takes less than n. r is settled as any.
//
// It takes the key's lock and, if the stock has n tokens or the store is known to have none, makes no store call. For a key past
// [WithMaxKeys] it makes up to two, because a call without an account gets all or none. While the store is away, it
// takes what is in stock, or what the failure policy admits. In [Limit].Shadow all n pass. Errors are those of AllowN, but for
// [ErrExceedsLimit].
func (l *Limiter) AllowUpTo(ctx context.Context, key string, n int64) (got int64, r Result, err error) {
	r, _, err = l.acquire(ctx, key, ask{N: n, Some: true})
	if got = r.charged; r.Allowed && r.of == nil { // it passed for nothing
		got = n
	}
	return got, r, err
}

// Wait is [Limiter.WaitN] for one token.
func (l *Limiter) Wait(ctx context.Context, key string) (Result, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN blocks until n tokens of key are charged, even if that takes several resets or a
// long outage. Callers of one key are served in the order in which they come; while they wait, all processes
// together ask the store some five times a window, or 20 without messages. Callers of a key past [WithMaxKeys] ask up to 20 times each, in no order. If the
// deadline of ctx cannot be met, WaitN returns [ErrDeadline] at once. If ctx ends first, it
// returns the error of ctx, and nothing is charged. Other errors are [ErrMaxWaiting] and those of
// [Limiter.AllowN], but a [*StoreError] only if the store rejects the call, which an
// operator must mend.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Result, error) {
	r, _, err := l.acquire(ctx, key, ask{N: n, Stays: true})
	return r, err
}

type ask = key.Ask

// acquire decides on a request that memory did not decide, in passes of which one decides. It returns the key's state, for
// handles to keep; the state is nil if there is none.
func (l *Limiter) acquire(ctx context.Context, name string, q ask) (Result, *key.Key, error) {
	if err := cmp.Or(ctx.Err(), l.validateRequest(name, q.N)); err != nil {
		return Result{}, nil, err
	}
	wait := key.FirstPause / 2
	for pass := 1; ; pass++ {
		k, limit, err := l.find(name, q.Stays || pass <= passesAtOnce)
		if err != nil {
			return Result{}, nil, err
		}
		r, again, err := l.attempt(ctx, k, name, limit, q, pass)
		switch {
		case again && pass < passesAtOnce:
			continue
		case again: // a limit that is another one each time it is asked for must not keep the caller busy
			wait = longer(ctx, wait)
		case k != nil || !q.Stays || limit.Shadow || err == nil && r.Allowed || err != nil && !key.Outage(err):
			return r, k, err

		// A Wait for a key without a state is not in line anywhere, so it asks again.
		case err != nil:
			wait = longer(ctx, wait)
		case key.PlanOf(limit) != key.Counted: // until another limit takes the place of a block
			wait = key.LongestPause
		case soonerThan(ctx, r.RetryAfter):
			return r, nil, ErrDeadline
		default: // tokens may come back
			wait = key.AskAgain(r.RetryAfter, limit.Window)
		}
		if err := pause(ctx, wait, l.env.Life.Done()); err != nil {
			return r, nil, err
		}
	}
}

// passesAtOnce is how many passes of a request follow each other without a pause. After these an Allow is decided
// without the key's state.
const passesAtOnce = key.MaxAstray

// find returns the key's state. If there is no room for it or the limit is special, or if state is false, it
// returns nil and the limit.
func (l *Limiter) find(name string, state bool) (*key.Key, backend.Limit, error) {
	if k := l.env.Get(name); k != nil && state {
		return k, backend.Limit{}, nil
	}
	if l.env.Closed.Load() {
		return nil, backend.Limit{}, ErrClosed
	}
	limit, err := (caller{l}).Limit(name)
	if err != nil || !state || key.PlanOf(limit) != key.Counted {
		return nil, limit, err
	}
	if !l.making.Begin() { // while the limit was asked for
		return nil, limit, ErrClosed
	}
	defer l.making.End()
	l.hearing.once.Do(l.hearing.listen)
	k := l.env.Make(name, limit)
	if !l.sweeper.armed.Load() {
		l.sweeper.arm()
	}
	return k, limit, nil
}

// attempt is one pass of a request: by the key's state or, if k is nil, by the limit: a special one decides, and for another one,
// for which there was no room, a call. It reports whether the request must start over, because the key was forgotten or has left its
// counter meanwhile, or because its limit is another one now.
func (l *Limiter) attempt(ctx context.Context, k *key.Key, name string, limit backend.Limit, q ask, pass int) (r Result, again bool, err error) {
	if k != nil {
		v := k.Acquire(ctx, q)
		r, err = resultOf(k, &v.Answer), v.Err
		again = v.Next == key.StartOver || q.Stays && err == nil && !r.Allowed && !r.Shadowed // it has just left shadow
	} else if answer, special := specialAnswer(limit); special {
		if r = answer; !r.Allowed && (!q.Stays || limit.Shadow) {
			l.env.Counts.Denied.Add(1)
		}
	} else {
		outside, v := l.env.Outside(name, limit, q)
		if v.Next == key.Call {
			v = l.alone(ctx, outside, q, pass)
		}
		if v.Next == key.Call { // there were fewer, and it takes those
			v = l.alone(ctx, outside, ask{N: v.Answer.Remaining}, pass)
		}
		r, again, err = resultOf(outside, &v.Answer), v.Next == key.StartOver, v.Err
	}
	if r.Shadowed && err == nil && !again {
		l.pass(&r)
	}
	return r, again, err
}

// longer is the pause of a caller that waits for the end of an outage, after one of wait. It
// doubles, but ends before the deadline of ctx, because the outage may be over by then.
func longer(ctx context.Context, wait time.Duration) time.Duration {
	wait = min(2*wait, key.LongestPause)
	if t, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(t)/2, key.FirstPause))
	}
	return wait
}

// pause sleeps for d, or until closed is closed. It returns ErrDeadline at once if the
// deadline of ctx comes before that.
func pause(ctx context.Context, d time.Duration, closed <-chan struct{}) error {
	if soonerThan(ctx, d) {
		return ErrDeadline
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return ErrClosed
	}
}

// Check asks the store how many tokens key has left, and charges nothing. Allowed says
// whether one token is available. Tokens that lie idle in other processes count as used. Check costs a store call, perhaps to a replica, whose
// answer may lag; Source is [Direct]. While the store is away, Check tries about once a
// second and otherwise returns a [*StoreError] at once.
func (l *Limiter) Check(ctx context.Context, key string) (Result, error) {
	if err := l.usable(ctx, key); err != nil {
		return Result{}, err
	}
	limit, err := (caller{l}).Limit(key)
	if err != nil {
		return Result{}, err
	}
	if r, special := specialAnswer(limit); special {
		return r, nil
	}
	call := l.newCall("check", &backend.Statement{Key: placement.Named(l.name, key), Limit: limit.Plain()})
	if !call.shard.MayCheck() {
		return Result{}, l.failed(ctx, call.shard.OpenError())
	}
	if _, err := call.await(ctx, nil); err != nil {
		call.shard.CheckFailed()
		return Result{}, l.failed(ctx, err)
	}
	s := call.reply.State
	r := Result{Limit: limit.Tokens, Window: limit.Window, Remaining: s.Remaining, Reset: s.Window.Time(), Source: Direct}
	if k := l.env.Find(key); k != nil {
		if f, _ := k.Figures(); limit.Rolls || f.Window == s.Window && f.Window.End != 0 {
			r.Remaining = min(r.Remaining+f.Held, r.Limit)
		}
	}
	if r.Allowed = r.Remaining > 0; !r.Allowed {
		r.RetryAfter = min(max(cmp.Or(s.Frees, s.Left), 1), tokens.Longest(limit))
	}
	if s.Held > 0 {
		r.Allowed, r.Remaining, r.RetryAfter = false, 0, s.Held
	}
	return r, nil
}

// usable checks a call that concerns a key and no tokens.
func (l *Limiter) usable(ctx context.Context, key string) error {
	if l.env.Closed.Load() {
		return ErrClosed
	}
	return cmp.Or(ctx.Err(), l.validateKey(key))
}

// Refund takes back what r was charged, so that others can use it, after a request has
// turned out to cost nothing. It is [Limiter.Settle] with 0 tokens used.
func (l *Limiter) Refund(ctx context.Context, r Result) error {
	return l.Settle(ctx, r, 0)
}

// Settle corrects the charge of r to used, the tokens that its request has really used.
// Tokens charged above used go back. Tokens used above the charge are charged now: from
// stock, and as debt if the stock has too little. Settle is never refused, does not wait,
// and makes no store call of its own, because debt goes along with the next statement,
// within a 20th of the window. So the limit can be exceeded, by no more than was used
// above the charges; [Stats].Overdrawn counts by how much it was.
//
// Unused tokens of a rolling limit go into the stock for as long as their bucket, a 20th of the window, lasts, and then back to the
// store within another. They have expired if they count no more.
//
// If the window of r is over, unused tokens have expired, and tokens used above the charge
// are charged to the window that is open now. If this process knows none, or r is a [Fallback], they count as
// Overdrawn. Unused tokens also expire if the key was forgotten after [WithIdle], or found no room
// by [WithMaxKeys].
//
// One case costs a store call, which is never repeated: tokens
// used above the charge of a key that is not in memory any more, while the window of r runs. The call
// is bounded by ctx and [WithFetchTimeout], and if ctx ends first, it goes
// on. A ctx that has ended before, as that of a client that has left, does not bound it.
// An error needs no action: Stats counts the tokens as Overdrawn, and as Unknown if
// the call may have been carried out.
//
// Settle each r once. If r is settled twice, it counts twice: it may give back tokens that
// another request uses, but no more than requests have used. Settle returns [backend.ErrTokens] if
// used is negative, and an error if r is of another Limiter or was never charged. For a
// request that passed without a charge, because it was Shadowed or its limit is [Unlimited], it
// does nothing. Call Settle before Close, because afterwards it returns [ErrClosed], unused
// tokens expire, and others are Overdrawn.
func (l *Limiter) Settle(ctx context.Context, r Result, used int64) error {
	n := used - r.charged
	switch {
	case used < 0 || used > backend.MaxTokens:
		return fmt.Errorf("%w: %d used", backend.ErrTokens, used)
	case r.charged == 0 && (r.Shadowed && r.Allowed || r.Limit == key.UnlimitedTokens): // it passed for nothing
		return nil
	case r.of == nil, !r.of.Of(&l.env):
		return errResult
	case n == 0:
		return nil
	case n > 0:
		return l.overrun(ctx, &r, n)
	}
	if r.of.Refund(r.charge(), -n); l.env.Closed.Load() {
		return ErrClosed
	}
	return nil
}

// overrun charges n tokens that the request of r has used above its charge: to its window or,
// if that is over, to the one that this process knows. They are overdrawn if there is none, or if the failure policy admitted
// the request, so that what an outage cost is told in one place.
func (l *Limiter) overrun(ctx context.Context, r *Result, n int64) error {
	forgotten := r.Source == Fallback || r.of.Overrun(n)
	if k := l.env.Find(r.of.Name()); forgotten && r.Source != Fallback && k != nil && k != r.of && key.SameCounter(k.Limit.Load(), r.of.Limit.Load()) {
		forgotten = k.Overrun(n)
	}
	closed := l.env.Closed.Load()
	switch {
	case !forgotten:
		return nil
	case !closed && r.Source != Fallback && time.Until(r.Reset) > 0:
		return l.overdraw(ctx, r.of, r.charge(), n)
	}
	if l.env.Counts.Overdrawn.Add(n); closed {
		return ErrClosed
	}
	return nil
}

// Reset ends the window of key, for a user who was limited by mistake: the whole limit may be used again, in a
// window that opens with the next charge. It empties the counter of the limit that key has now; what was counted
// under limits of another length, calendar or kind stays. It costs a store call. This process drops what it holds
// of the old window at once. Other processes hear of it within a round trip. Until then they may spend what they
// hold on top of the limit. They make no call until a request comes.
// A process to which no message comes, see [Hooks].Subscription, learns of it when it next asks the
// store: when its stock is used up or, if it refuses, at its next probe. All processes together probe
// some 20 times a window, so with many processes that takes long. After an error of class Unknown, or
// of ctx, the window may have ended.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	if err := l.usable(ctx, key); err != nil {
		return err
	}
	limit, err := (caller{l}).Limit(key)
	if err != nil {
		return err
	}
	if _, special := specialAnswer(limit); special {
		return nil
	}
	call := l.newCall("reset", &backend.Statement{Key: placement.Named(l.name, key), Limit: limit.Plain()})
	if _, err := call.await(ctx, nil); err != nil {
		return l.failed(ctx, err)
	}
	if k := l.env.Find(key); k != nil {
		k.Hear(backend.Message{Kind: backend.Voided, Counter: limit.Counter(), Window: call.reply.Window})
	}
	return nil
}

// Hold makes the limit of key count as used up for d from now, in every process: somebody else has said that the next request will be
// refused, as by 429 with Retry-After. Requests are refused with the time left as RetryAfter, Wait waits, and tokens in memory are kept, but
// not spent. A hold is never shortened, and [Limiter.Reset] ends it. If it ends before the open window, that goes on with its
// count; else the next window opens after it. d counts by the store's clock, so clocks need not agree. It is at most 366 days, or Hold
// returns [ErrOption].
//
// It costs a store call, and one for each process that asks next: others hear of it within a round trip, and spend nothing more before they
// have asked. A process to which no message comes, see [Hooks].Subscription, may spend what it holds.
//
// The key is held here at once, whatever ctx says; ctx bounds the wait for the store. After a [*StoreError] or an error of ctx, this process
// tells the store as soon as that answers, unless key has no room by [WithMaxKeys]. A store that loses its data forgets holds. A limit that
// no store counts cannot be held: [ErrLimit].
func (l *Limiter) Hold(ctx context.Context, key string, d time.Duration) error {
	if d <= 0 || d > backend.MaxWindow {
		return fmt.Errorf("%w: a hold of %v, want up to %v", ErrOption, d, backend.MaxWindow)
	}
	if err := cmp.Or(l.validateKey(key), l.usable(context.WithoutCancel(ctx), key)); err != nil {
		return err
	}
	for begin := time.Now(); ; {
		k, limit, err := l.find(key, true)
		if err != nil {
			return err
		}
		if _, special := specialAnswer(limit); special && k == nil {
			return fmt.Errorf("%w: only a limit that a store counts can be held", ErrLimit)
		}
		if k == nil { // there is no room
			return l.failed(ctx, l.holdOutside(ctx, key, limit, d))
		}
		if forgotten, err := k.Hold(ctx, d-time.Since(begin)); !forgotten {
			return l.failed(ctx, err)
		}
	}
}

// holdOutside is Hold for a key that has no room in memory.
func (l *Limiter) holdOutside(ctx context.Context, name string, limit backend.Limit, d time.Duration) error {
	for try := 1; ; try++ {
		q := backend.Statement{Key: placement.Named(l.name, name), Limit: limit.Plain(), Hold: d, Detached: true}
		call := l.newCall("sync", &q)
		q.Begin, q.End = key.Period(limit, call.shard.Clock())
		call.Cause = string(next.Hold)
		here, err := call.await(ctx, nil)
		if !here || err != nil || !call.reply.Astray {
			return err
		}
		if try == key.MaxAstray {
			return key.ErrorAstray()
		}
	}
}

// Refresh makes all processes ask the function of [WithLimits] for the limit of key again, because
// it has changed, as by a ban or another plan. It costs a store call, of Op "publish". This process
// has asked when Refresh returns. Others ask when the message comes, within a round trip, if they
// have the key in memory; otherwise its next request asks anyway. Each process calls the
// function for at most 32 keys at once, and once for all Refreshes of a key that wait for that. A program
// without WithLimits may call Refresh too, if it has the same [WithName].
//
// After an error this process has asked nevertheless. A [*StoreError] says that the message may not
// have been sent; it wraps [backend.ErrNoListener] if the store sends none. Other
// errors are [ErrKey], [ErrClosed], that of ctx and, if the function returned a limit out of range,
// [ErrLimit]. Without an error too, a process to which no message comes does not hear of it; see
// [Hooks].Subscription.
func (l *Limiter) Refresh(ctx context.Context, key string) error {
	if err := l.usable(ctx, key); err != nil {
		return err
	}
	var asked error
	if k := l.env.Find(key); k != nil {
		asked = k.Refresh()
	}
	if _, ok := l.store.(backend.Listener); !ok {
		return &StoreError{Op: "publish", Class: backend.Rejected, Err: backend.ErrNoListener}
	}
	_, err := l.newCall("publish", &backend.Statement{Key: placement.Named(l.name, key)}).await(ctx, nil)
	return cmp.Or(l.failed(ctx, err), asked)
}

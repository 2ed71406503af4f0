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
// The exceptions are [Limiter.Settle] above the charge, and [FailOpen] and [FailLocal] in
// an outage. A charged token is spent, handed back, or expires with its window, and
// [Stats] counts it as one of these. A caller with stock at hand does no I/O and takes no
// lock, except one caller per batch, which orders the next batch. Refusals make no store
// call until the reset, except for an occasional probe. A crowd on one key shares one
// call, and a caller is bounded by its own context.
//
// The window is fixed, so up to twice the limit may pass in an interval of a
// window's length that straddles a reset. See [Limit].
package reservoir

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/waiters"
)

// Limiter limits any number of keys. Make it with [New]; the zero Limiter is not usable.
// It is safe for concurrent use. It holds tokens that the store has charged, so call
// [Limiter.Close] to hand them back. One Limiter per process and limit is enough; two
// share nothing but the store.
type Limiter struct {
	client
	waiters waiters.Pool[outcome]

	epoch   atomic.Uint32 // of new keys, from 1; names their accounts in the store
	sweeper sweeper

	asks      atomic.Uint64 // numbers the calls of relimit
	closed    atomic.Bool
	closeDone chan struct{} // closed when Close has ended
	closeErr  error         // written before closeDone is closed, and only read after

	counting sync.Mutex // held by Stats, and while a key's counts become the limiter's
}

// New returns a Limiter that counts in store. It does no I/O and starts no goroutine. Its
// errors wrap [ErrLimit] for a limit out of range, and [ErrOption] for a nil store or an
// option that makes no sense; a store that is set up wrongly returns its own error.
func New(store backend.Store, limit Limit, opts ...Option) (*Limiter, error) {
	l := &Limiter{client: client{config: defaults(limit), store: store, id: rand.Text()[:12]}}
	l.parts, _ = store.(interface{ Shard(key string) string })
	l.closeDone = make(chan struct{})
	l.life, l.end = context.WithCancel(context.Background())
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
	l.terms.Limit = l.limit
	l.keys.Init(int64(l.maxKeys))
	l.epoch.Store(1)
	l.clock.Init()
	l.sweeper.l = l
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
// [ErrKey], [ErrTokens], [ErrLimit], [ErrExceedsLimit], [ErrConflict], [ErrClosed], a
// [*StoreError], or the error of ctx.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (r Result, err error) {
	err = l.allow(&r, ctx, key, n)
	return r, err
}

// allow writes its Result into the caller's variable; see Result.admit.
func (l *Limiter) allow(r *Result, ctx context.Context, key string, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if node := l.keys.Get(key); node != nil && n > 0 && node.State.try(r, n) {
		if r.Shadowed {
			l.pass(r)
		}
		return nil
	}
	slow, _, err := l.acquire(ctx, key, n, false)
	*r = slow
	return err
}

// pass lets a refused request pass, for WithShadow.
func (c *client) pass(r *Result) {
	r.Allowed, r.RetryAfter = true, 0
	c.count.shadowed.Add(1)
}

// Wait is [Limiter.WaitN] for one token.
func (l *Limiter) Wait(ctx context.Context, key string) (Result, error) {
	return l.WaitN(ctx, key, 1)
}

// WaitN blocks until n tokens of key are charged, even if that takes several resets or a
// long outage. Callers of one key are served in the order in which they come; callers of
// a key past [WithMaxKeys] ask again up to some 20 times a window, in no order. If the
// deadline of ctx cannot be met, WaitN returns [ErrDeadline] at once. If ctx ends first, it
// returns the error of ctx, and nothing is charged. Other errors are those of
// [Limiter.AllowN], but a [*StoreError] only if the store rejects the call, which an
// operator must mend.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) (Result, error) {
	r, _, err := l.acquire(ctx, key, n, true)
	return r, err
}

// acquire finds the key's state and decides there. It returns the state for handles to
// keep; the state is nil if there is no room for it.
func (l *Limiter) acquire(ctx context.Context, key string, n int64, stay bool) (Result, *keyState, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, nil, err
	}
	if err := l.validateKey(key); err != nil {
		return Result{}, nil, err
	}
	if n < 1 {
		return Result{}, nil, fmt.Errorf("%w: %d, want at least 1", ErrTokens, n)
	}
	wait := firstPause / 2
	for round := 0; ; round++ {
		if round > 2 { // a limit that is another one each time it is asked for must not keep the caller busy
			wait = longer(ctx, wait)
			if err := pause(ctx, wait, l.life.Done()); err != nil {
				return Result{}, nil, err
			}
		}
		k, limit, err := l.find(key)
		if err != nil {
			return Result{}, nil, err
		}
		var r Result
		if k == nil {
			r, err = l.acquireStateless(ctx, key, limit, n, stay)
		} else {
			r, err = k.acquire(ctx, n, stay)
		}
		if err == errStartOver {
			continue
		}
		if r.Shadowed && err == nil {
			l.pass(&r)
		}
		return r, k, err
	}
}

// find returns the key's state. If there is no room for it or the limit is special, it
// returns nil and the limit.
func (l *Limiter) find(key string) (*keyState, Limit, error) {
	if n := l.keys.Get(key); n != nil {
		return &n.State, Limit{}, nil
	}
	if l.closed.Load() {
		return nil, Limit{}, ErrClosed
	}
	limit, err := l.limitOf(key)
	if err != nil || planOf(limit) != counted {
		return nil, limit, err
	}
	n := l.keys.GetOrMake(key, func(n *keytable.Node[keyState]) { l.initKey(n, limit) })
	l.sweeper.arm()
	if n == nil {
		return nil, limit, nil
	}
	return &n.State, limit, nil
}

// state is find for a caller that does not need the limit.
func (l *Limiter) state(key string) (*keyState, error) {
	k, _, err := l.find(key)
	return k, err
}

func (l *Limiter) initKey(n *keytable.Node[keyState], limit Limit) {
	k := &n.State
	k.l, k.node, k.shard = l, n, l.shardOf(l.storeKey(n.Key))
	n.Tag = l.epoch.Load() // names the account in the store; no earlier state of the key has it
	k.bound.Store(&l.terms)
	if limit != l.limit { // or a calendar's window has another length
		k.bound.Store(&terms{Limit: limit})
	}
}

// acquireStateless serves a key without a state: call by call if there is no room for one,
// and without a call if its limit, which was just asked for, is special.
func (l *Limiter) acquireStateless(ctx context.Context, key string, limit Limit, n int64, stay bool) (Result, error) {
	wait := firstPause
	for wasSpecial := false; ; {
		r, special := l.byPlan(limit)
		var err error
		if !special {
			if wasSpecial || l.keys.Get(key) != nil {
				return Result{}, errStartOver
			}
			if n > limit.Tokens {
				return l.tooMuch(limit)
			}
			r, err = l.takeStateless(ctx, key, limit, n, stay && !limit.Shadow)
		}
		switch {
		case !stay || limit.Shadow || err == nil && r.Allowed || err != nil && !outage(err):
			if special && !r.Allowed {
				l.count.denied.Add(1)
			}
			return r, err
		case special:
			wait = min(r.RetryAfter, longestPause) // the limit may be raised
		case err == nil:
			if t, ok := ctx.Deadline(); ok && time.Until(t) < r.RetryAfter {
				return r, ErrDeadline
			}
			wait = min(r.RetryAfter+chance.Part(spreadMax), chance.Interval(max(limit.Window/probes, longestPause))) // tokens may come back
		default:
			wait = longer(ctx, wait)
		}
		if err := pause(ctx, wait, l.life.Done()); err != nil {
			return r, err
		}
		wasSpecial = special
		if limit, err = l.limitOf(key); err != nil {
			return Result{}, err
		}
	}
}

// outage reports whether err is a failure of the store that may be over soon.
func outage(err error) bool {
	failure, ok := errors.AsType[*StoreError](err)
	return ok && failure.Class != backend.Rejected
}

// longer is the pause of a caller that waits for the end of an outage, after one of wait. It
// doubles, but ends before the deadline of ctx, because the outage may be over by then.
func longer(ctx context.Context, wait time.Duration) time.Duration {
	wait = min(2*wait, longestPause)
	if t, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(t)/2, firstPause))
	}
	return wait
}

// pause sleeps for d, or until closed is closed. It returns ErrDeadline at once if the
// deadline of ctx comes before that.
func pause(ctx context.Context, d time.Duration, closed <-chan struct{}) error {
	if t, ok := ctx.Deadline(); ok && time.Until(t) < d {
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
// whether one token is available. Check costs a store call, perhaps to a replica, whose
// answer may lag; Source is [Direct]. While the store is away, Check tries about once a
// second and otherwise returns a [*StoreError] at once.
func (l *Limiter) Check(ctx context.Context, key string) (Result, error) {
	if l.closed.Load() {
		return Result{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := l.validateKey(key); err != nil {
		return Result{}, err
	}
	limit, err := l.limitOf(key)
	if err != nil {
		return Result{}, err
	}
	if r, special := l.byPlan(limit); special {
		return r, nil
	}
	id := l.storeKey(key)
	s, err := l.check(ctx, l.shardOf(id), id, limit.Plain())
	if err != nil {
		return Result{}, err
	}
	r := Result{Limit: limit.Tokens, Remaining: s.Remaining, Reset: s.Window.Time(), Source: Direct}
	serves := s.Length == 0 || l.adopts(&terms{Limit: limit}, s, 1, math.MaxInt64, 0)
	if n := l.keys.Find(key); n != nil {
		k := &n.State
		k.event(func(now int64) int64 {
			w := k.lease.Load()
			known := w != nil && w.Window == s.Window
			if known && w.Alive(now) {
				r.Remaining = min(r.Remaining+k.heldLocked(), r.Limit)
			}
			serves = s.Length == 0 || known || k.adopts(s, 1, now)
			return unchanged
		})
	}
	if !serves {
		return Result{}, ErrConflict
	}
	if r.Allowed = r.Remaining > 0; !r.Allowed {
		r.RetryAfter = retryAfter(s.Left, cmp.Or(s.Length, limit.Window))
	}
	return r, nil
}

// Refund takes back what r was charged, so that others can use it, after a request has
// turned out to cost nothing. It is [Limiter.Settle] with 0 tokens used.
func (l *Limiter) Refund(ctx context.Context, key string, r Result) error {
	return l.Settle(ctx, key, r, 0)
}

// Settle corrects the charge of r to used, the tokens that its request has really used.
// Tokens charged above used go back. Tokens used above the charge are charged now: from
// stock, and as debt if the stock has too little. Settle is never refused, does not wait,
// and makes no store call of its own, because debt goes along with the next statement,
// within a 20th of the window. So the limit can be exceeded, by no more than was used
// above the charges; [Stats].Overdrawn counts by how much it was.
//
// If the window of r is over, unused tokens have expired, and tokens used above the charge
// are charged to the window that is open now. If this process knows none, they count as
// Overdrawn. Unused tokens also expire if the key was forgotten after [WithIdle].
//
// A [Direct] result is settled by one store call, in the window of r. The call is never
// repeated. It is bounded by ctx and [WithFetchTimeout], and if ctx ends first, the call goes
// on. A ctx that has ended before, as that of a client that has left, does not bound it.
// An error needs no action: Stats counts the tokens as Overdrawn or Expired, and as Unknown if
// the call may have been carried out.
//
// Settle each r once. If r is settled twice, it counts twice: it may give back tokens that
// another request uses, but no more than requests have used. Settle returns [ErrTokens] if
// used is negative, and [ErrResult] if r is not of key or was never charged. For a request
// that passed without a charge, because it was Shadowed or its limit is [Unlimited], it
// does nothing. Call Settle before Close, because afterwards it returns [ErrClosed], unused
// tokens expire, and others are Overdrawn.
func (l *Limiter) Settle(ctx context.Context, key string, r Result, used int64) error {
	if err := l.validateKey(key); err != nil {
		return err
	}
	var k *keyState
	if n := l.keys.Find(key); n != nil {
		k = &n.State
	}
	s := settlement{l: l, key: key, k: k, r: r}
	return s.settle(ctx, used)
}

// Reset gives key a fresh window, for a user who was limited by mistake: the whole limit
// may be used again from now on. It costs a store call. This process serves from the new
// window at once. Other processes learn of it when they next ask the store: when their
// stock is used up or, if they refuse, at their next probe. All processes together probe
// some 20 times a window, so with many processes that takes long. Tokens of the old window
// that others hold come on top of the limit; if it had run out, [WithStranding] says about
// how many these are. If no window is open, Reset does nothing. After an error of class
// Unknown, or of ctx, the window may be a fresh one.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	switch err := l.validateKey(key); {
	case err != nil:
		return err
	case l.closed.Load():
		return ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	limit, err := l.limitOf(key)
	if err != nil || planOf(limit) != counted {
		return err
	}
	q := backend.ResetRequest{Key: l.storeKey(key), Limit: limit.Plain()}
	q.End, q.Next = calendarEnds(limit, time.Now())
	var was *lease.Lease
	if n := l.keys.Find(key); n != nil {
		was = n.State.lease.Load()
	}
	for range lengthTries {
		s, sent, err := l.reset(ctx, l.shardOf(q.Key), q)
		if err != nil {
			return err
		}
		if s.Conflict && !l.adopts(&terms{Limit: limit}, s, 1, math.MaxInt64, 0) {
			break
		} else if s.Conflict { // the limit has changed since the window was opened
			q.OpenLength = s.Length
			continue
		}
		if n := l.keys.Find(key); n != nil && s.Window != 0 {
			k := &n.State
			k.event(func(now int64) int64 {
				w := k.lease.Load()
				switch {
				case k.retired || w != nil && w.Window == s.Window:
					return unchanged
				case w != was: // another reply was faster: ask the store which window is open
					k.deniedUntil = 0
					return 1
				}
				k.readLocked(s, cmp.Or(s.Length, q.Limit.Window), sent, now)
				return 0
			})
		}
		return nil
	}
	return ErrConflict
}

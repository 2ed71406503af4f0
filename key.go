package reservoir

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// Key is a handle on one key of a [Limiter]. Its methods are the Limiter's with that key,
// without the look-up. It is meant for hot keys that are known ahead, such as a global
// limit. Make it once, with [Limiter.Key]; the zero Key is not usable. It is safe for
// concurrent use and needs no closing.
type Key struct {
	l    *Limiter
	key  string
	held atomic.Pointer[keyState]
}

// Key returns a handle on key. It does no I/O. If key is invalid, calls of the handle
// return [ErrKey].
func (l *Limiter) Key(key string) *Key { return &Key{l: l, key: strings.Clone(key)} }

// Allow is [Limiter.Allow] with k's key.
func (k *Key) Allow(ctx context.Context) (r Result, err error) {
	err = k.allow(&r, ctx, 1)
	return r, err
}

// AllowN is [Limiter.AllowN] with k's key.
func (k *Key) AllowN(ctx context.Context, n int64) (r Result, err error) {
	err = k.allow(&r, ctx, n)
	return r, err
}

func (k *Key) allow(r *Result, ctx context.Context, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s := k.held.Load(); s != nil && n > 0 && s.try(r, n) {
		if r.Shadowed {
			k.l.pass(r)
		}
		return nil
	}
	slow, err := k.acquire(ctx, n, false)
	*r = slow
	return err
}

// Wait is [Limiter.Wait] with k's key.
func (k *Key) Wait(ctx context.Context) (Result, error) { return k.WaitN(ctx, 1) }

// WaitN is [Limiter.WaitN] with k's key.
func (k *Key) WaitN(ctx context.Context, n int64) (Result, error) { return k.acquire(ctx, n, true) }

// Check is [Limiter.Check] with k's key.
func (k *Key) Check(ctx context.Context) (Result, error) { return k.l.Check(ctx, k.key) }

// Reset is [Limiter.Reset] with k's key.
func (k *Key) Reset(ctx context.Context) error { return k.l.Reset(ctx, k.key) }

// Refund is [Limiter.Refund] with k's key.
func (k *Key) Refund(ctx context.Context, r Result) error { return k.l.Refund(ctx, k.key, r) }

// Settle is [Limiter.Settle] with k's key.
func (k *Key) Settle(ctx context.Context, r Result, used int64) error {
	if s := k.held.Load(); s != nil && s.lease.Load() != nil { // the state was not retired since
		of := settlement{l: k.l, key: k.key, k: s, r: r}
		return of.settle(ctx, used)
	}
	return k.l.Settle(ctx, k.key, r, used)
}

// acquire is Limiter.acquire, and keeps the state that it found.
func (k *Key) acquire(ctx context.Context, n int64, wait bool) (Result, error) {
	r, s, err := k.l.acquire(ctx, k.key, n, wait)
	if s != nil && k.held.Load() != s {
		k.held.Store(s)
	}
	return r, err
}

// settlement corrects a charge to what was really used.
type settlement struct {
	l   *Limiter
	key string
	k   *keyState // nil if the key is not in memory
	r   Result    // what was charged
}

// settle corrects the charge to used tokens.
func (s *settlement) settle(ctx context.Context, used int64) error {
	l, k, r := s.l, s.k, &s.r
	n := used - r.charged
	switch {
	case used < 0 || used > backend.MaxTokens:
		return fmt.Errorf("%w: %d used", ErrTokens, used)
	case r.charged == 0 && (r.Shadowed && r.Allowed || r.Unlimited()): // it passed for nothing
		return nil
	case r.charged == 0, k != nil && r.key != k.node.Hash, k == nil && r.key != l.keys.HashOf(s.key):
		return ErrResult
	case n == 0:
		return nil
	case r.Source == Direct:
		return s.byCall(ctx, n)
	case n > 0:
		return s.more(n)
	}
	return s.less(-n)
}

// byCall corrects the charge of a direct call by one call of its own. It charges n tokens
// or, if n is negative, gives back as many. If the window of r is over, an overrun is charged
// to the window that this process knows.
func (s *settlement) byCall(ctx context.Context, n int64) error {
	l, k, r := s.l, s.k, &s.r
	q := backend.SettleRequest{Key: l.storeKey(s.key), Window: r.window(), Tokens: n, Limit: r.Limit}
	if n < 0 {
		if q.Tokens = -takeUpTo(&l.count.direct, -n); q.Tokens == 0 {
			return nil
		}
	}
	if time.Until(r.Reset) <= 0 {
		if q.Window = 0; n > 0 && k != nil {
			if w := k.lease.Load(); w.Alive(l.clock.Now()) {
				q.Window = w.Window
			}
		}
	}
	if q.Window == 0 {
		l.settled(q, backend.SettleReply{}, nil)
		return l.closedError()
	}
	if ctx.Err() != nil { // the client has left, which is usual
		ctx = context.WithoutCancel(ctx)
	}
	reply, err := l.settle(ctx, l.shardOf(q.Key), q)
	if reply.Open && n < 0 && k != nil {
		k.event(func(int64) int64 { // callers may wait for the tokens that the store has now
			if w := k.lease.Load(); w != nil && w.Window == q.Window {
				w.AddRemaining(-q.Tokens)
			}
			return 0
		})
	}
	return err
}

// less takes back n of the tokens that were charged. They expire if the window is over, or
// if the key was forgotten since, because no account has recorded them.
func (s *settlement) less(n int64) error {
	if s.k == nil || !s.refund(n) {
		n = takeUpTo(&s.l.count.left, n)
		s.l.count.refunded.Add(n)
		s.l.count.expired.Add(n)
	}
	return s.l.closedError()
}

// closedError is ErrClosed once Close was called.
func (l *Limiter) closedError() error {
	if l.closed.Load() {
		return ErrClosed
	}
	return nil
}

// refund puts n of the charged tokens back into the stock if they came from there, after
// they have paid for debt. No more goes back than requests have used, so that a Result that
// is refunded again and again creates no tokens. It reports false if the account has left
// the window.
func (s *settlement) refund(n int64) (ok bool) {
	k, r := s.k, &s.r
	k.event(func(now int64) int64 {
		w := k.lease.Load()
		switch {
		case k.retired:
			return unchanged
		case r.Source == Fallback:
			var wanted int64
			wanted, ok = k.refundFallbackLocked(r, n, now)
			return wanted
		case w == nil || w.Window != r.window() || r.epoch != k.node.Tag:
			return unchanged
		}
		ok = true
		back := min(n, k.account.InUse(k.heldLocked()))
		paid := k.account.CancelDebt(back)
		k.account.Refund(back)
		k.l.count.refunded.Add(back)
		k.l.extra.add(k, paid) // spent again
		decide := k.busy != nil || w.Denying() || k.plan != counted
		k.putBackLocked(w, back-paid)
		if w.Stock() > 2*k.idle() && !k.usageLocked().overstocked { // a look must find out whether it is used
			k.use.overstocked, decide = true, true
		}
		if decide {
			return 0
		}
		return unchanged
	})
	return ok
}

// chargePart divides the window. Settled debt may wait that long for a statement.
const chargePart = 20

// more charges n tokens that the request has used above its charge: to its window or, if
// that is over, to the one that this process knows. They are overdrawn if there is none.
func (s *settlement) more(n int64) (err error) {
	l, r := s.l, &s.r
	for {
		if s.k == nil && r.Source != Fallback && time.Until(r.Reset) > 0 { // it was forgotten
			s.k, err = l.state(s.key)
		}
		if s.k == nil {
			l.count.overdrawn.Add(n)
			return cmp.Or(err, l.closedError())
		}
		if !s.overrun(n) {
			return nil
		}
		s.k = nil // look it up again
	}
}

// overrun is more for a key in memory. It reports whether the key was forgotten meanwhile.
func (s *settlement) overrun(n int64) (retired bool) {
	k, r := s.k, &s.r
	if w := k.lease.Load(); w.Alive(k.l.clock.Now()) {
		if left, ok := w.Spend(n); ok {
			k.l.extra.add(k, n)
			k.orderIfLow(w, left)
			return false
		}
	}
	k.event(func(now int64) int64 {
		if retired = k.retired; retired {
			return unchanged
		}
		if k.fallback.pends(r) {
			k.fallback.pending = min(k.fallback.pending+n, backend.MaxTokens)
			return unchanged
		}
		w := k.lease.Load()
		if left := time.Until(r.Reset); w == nil && left > 0 && r.Source != Fallback { // the key was forgotten, but r has its window
			w = k.switchLocked(r.window(), now)
			w.Guess(backend.State{Left: left}, now)
		}
		if !w.Alive(now) { // no statement would be in time
			k.l.count.overdrawn.Add(n)
			return unchanged
		}
		paid, left := w.SpendUpTo(n)
		k.l.extra.add(k, paid)
		k.low = w.ClaimReorder(left) || k.low
		if paid < n {
			s.declareLocked(n-paid, w, now)
		}
		return 0
	})
	return retired
}

// declareLocked adds n tokens to the debt of w, and sets the time to state it.
func (s *settlement) declareLocked(n int64, w *lease.Lease, now int64) {
	if s.k.account.Unpaid() == 0 {
		s.k.usageLocked().charge = s.k.chargeAt(w, now)
	}
	s.k.account.Declare(n)
}

// chargeAt is when to state debt that is settled now.
func (k *keyState) chargeAt(w *lease.Lease, now int64) int64 {
	inTime := w.Deadline() - 2*int64(k.shard.Lead())
	return min(now+int64(k.limit().Window)/chargePart, inTime)
}

// leaveLocked records that the key leaves its window, in which it holds held, and that
// requests which were charged there may still be settled.
func (k *keyState) leaveLocked(held int64) { k.l.count.left.Add(k.account.Used(held)) }

// leaveWindowLocked ends the account of the key's window, if no reply does that.
func (k *keyState) leaveWindowLocked() {
	held := k.drainLocked()
	k.leaveLocked(held)
	k.l.count.move(k.account.Leave(held))
}

// takeUpTo takes n from what is left, or all if that is less, and returns how much.
func takeUpTo(left *atomic.Int64, n int64) int64 {
	for {
		was := left.Load()
		taken := min(n, was)
		if left.CompareAndSwap(was, was-taken) {
			return taken
		}
	}
}

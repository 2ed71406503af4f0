package reservoir

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
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
	switch {
	case used < 0 || used > backend.MaxTokens:
		return fmt.Errorf("%w: %d used", ErrTokens, used)
	case r.charged == 0:
		return nil
	case k != nil && r.key != k.node.Hash, k == nil && r.key != l.keys.HashOf(s.key):
		return ErrResult
	case used > r.charged:
		return s.more(ctx, used-r.charged)
	case used < r.charged:
		return s.less(ctx, r.charged-used)
	}
	return nil
}

// less takes back n of the tokens that were charged.
func (s *settlement) less(ctx context.Context, n int64) error {
	l, k, r := s.l, s.k, &s.r
	if r.Source == Direct && ctx.Err() != nil { // before the account records the refund
		return ctx.Err()
	}
	var back int64
	var q *backend.RefundRequest
	if k != nil {
		back, q = s.refund(n)
	} else {
		back, q = s.refundWithoutAccount(n)
	}
	if q == nil {
		return nil
	}
	q.Key = l.storeKey(s.key)
	total, err := l.refund(ctx, l.shardOf(q.Key), *q)
	if err != nil || total < q.Total {
		return err
	}
	if k != nil {
		k.event(func(int64) int64 { // callers may wait for the tokens that the store has now
			if w := k.lease.Load(); w != nil && w.Window == q.Window {
				w.AddRemaining(back)
				if q.Client == k.l.clientOf(k.epoch) { // the store may have missed an earlier refund
					back = k.account.ConfirmDirect(total)
				}
			}
			return 0
		})
	}
	l.count.refunded.Add(back)
	l.count.returned.Add(back)
	return nil
}

// refund puts n of the charged tokens back into the stock if they came from there, after
// they have paid for debt; q is the store call to make, if one is needed. No more goes
// back than requests have used, so that a Result that is refunded again and again creates
// no tokens.
func (s *settlement) refund(n int64) (back int64, q *backend.RefundRequest) {
	k, r := s.k, &s.r
	k.event(func(now int64) int64 {
		w := k.lease.Load()
		current := w != nil && w.Window == r.window()
		switch {
		case r.Source == Fallback:
			return k.refundFallbackLocked(r, n, now)
		case r.Source == Direct && current && r.epoch == k.epoch:
			var total int64
			if back, total = k.account.RefundDirect(n); back > 0 {
				q = &backend.RefundRequest{Client: k.l.clientOf(k.epoch), Window: r.window(), Total: total}
			}
		case r.Source == Direct || r.epoch != k.node.Tag || k.retired:
			back, q = s.refundWithoutAccount(n)
		case current && w.Alive(now):
			back = min(n, k.account.InUse(k.heldLocked()))
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
		}
		return unchanged
	})
	return back, q
}

// refundWithoutAccount makes the refund of tokens that no account in memory has recorded:
// of a direct call, or of a key that was forgotten since. It has a client name of its own,
// so that the store gives the tokens back once. The name has the number of the direct call,
// or the instant, in ns, and the figures of the request.
func (s *settlement) refundWithoutAccount(n int64) (back int64, q *backend.RefundRequest) {
	r, name := &s.r, ""
	switch {
	case r.Source == Direct:
		name = s.l.clientOf(r.serial)
	case r.Source == Fallback || time.Until(r.Reset) <= 0:
		return 0, nil
	default:
		name = fmt.Sprintf("%s.%x.%x.%x", s.l.clientOf(r.epoch), r.serial, r.Remaining, r.charged)
	}
	return n, &backend.RefundRequest{Client: name, Window: r.window(), Total: n}
}

// chargePart divides the window. Settled debt may wait that long for a statement.
const chargePart = 20

// more charges n tokens that the request has used above its charge.
func (s *settlement) more(ctx context.Context, n int64) error {
	if s.r.Source == Fallback && s.r.epoch == 0 { // no account could record it
		s.l.count.overdrawn.Add(n)
		return nil
	}
	for {
		if s.k == nil {
			var err error
			if s.k, err = s.l.state(s.key); err != nil {
				return err
			} else if s.k == nil {
				return s.chargeByCall(ctx, n)
			}
		}
		switch retired, elsewhere := s.overrun(n); {
		case elsewhere:
			return s.chargeByCall(ctx, n)
		case !retired:
			return nil
		}
		s.k = nil // look it up again
	}
}

// overrun is more for a key in memory. It has recorded the tokens unless the key was
// forgotten meanwhile, or they must count elsewhere: in a window that is not in memory.
func (s *settlement) overrun(n int64) (retired, elsewhere bool) {
	k, r := s.k, &s.r
	if w := k.lease.Load(); w.Alive(k.l.clock.Now()) && w.Window == r.window() {
		if left, ok := w.Spend(n); ok {
			k.l.extra.add(k, n)
			k.orderIfLow(w, left)
			return false, false
		}
	}
	k.event(func(now int64) int64 {
		if retired = k.retired; retired {
			return unchanged
		}
		w := k.lease.Load()
		if left := time.Until(r.Reset); w == nil && left > 0 { // the key was forgotten, but r has its window
			w = k.switchLocked(r.window(), now)
			w.Guess(backend.State{Left: left}, now)
		}
		same := w != nil && w.Window == r.window() || k.fallback.admits(r) // its window may have another name now
		if !w.Alive(now) || !same && !k.l.lateOverruns {
			elsewhere = k.l.lateOverruns && r.Source != Fallback
			if !elsewhere && !w.Over(now) && same { // it may be open, but no statement would be in time
				k.l.count.overdrawn.Add(n)
			}
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
	return retired, elsewhere
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

// chargeByCall is more for a key without a window in memory. It makes a call of its own,
// and one more if the reply names another open window.
func (s *settlement) chargeByCall(ctx context.Context, n int64) error {
	l, key, r := s.l, s.key, &s.r
	limit, err := l.limitOf(key)
	if err != nil {
		return err
	}
	if planOf(limit) != counted {
		return nil
	}
	var reply backend.SyncReply
	inTime := time.Until(r.Reset) > 0 // though the call may come too late
	q := backend.SyncRequest{Key: l.storeKey(key), Client: l.singleUseName(), Limit: limit.Plain(), Window: r.window(), Debt: n, Strand: -1, Leaving: true}
	book := func(err error) {
		switch {
		case err != nil: // the store may not have received it
			l.count.overdrawn.Add(n)
		case reply.Length == 0 && reply.Window == q.Window:
			l.count.move(account.Moved{Taken: reply.Debt, Overdrawn: min(reply.Debt, reply.Over)})
			l.count.spent.Add(reply.Debt)
			l.extra[0].Add(reply.Debt)
		case reply.Window == q.Window || inTime || l.lateOverruns && reply.Window != 0: // no call is left to charge it, in another window or by another length
			l.count.overdrawn.Add(n)
		}
	}
	for range lengthTries {
		call := l.newCall(l.shardOf(q.Key), q.Key, StoreCall{Op: "sync", Cause: string(next.Charge)})
		err = l.detached(ctx, call, func(ctx context.Context) (err error) {
			l.count.syncs.Add(1)
			reply, err = l.store.Sync(ctx, q)
			return l.conflict(reply.State, err)
		}, book)
		if err != nil && err == ctx.Err() { // the call goes on
			return err
		}
		switch {
		case err != nil:
		case reply.Length != 0: // the limit has changed since, but the open window has not
			q.Limit.Window = reply.Length
			continue
		case l.lateOverruns && reply.Window != q.Window && reply.Window != 0:
			q.Window = reply.Window
			continue
		}
		break
	}
	if book(err); err != nil {
		return l.failed(ctx, err)
	}
	return nil
}

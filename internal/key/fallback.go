package key

import (
	"errors"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// This file has what the failure policy admits while the store is away.

// Policy is what callers without stock get while the store is away. The zero Policy is none.
type Policy struct {
	Mode  Mode
	Share float64 // of the limit, that FailLocal admits in a window; 0 to 1
}

// Mode is the kind of a Policy.
type Mode uint8

const (
	NoPolicy   Mode = iota
	FailClosed      // an error
	FailOpen        // every request passes
	FailLocal       // a share of the limit passes
)

// budget is how many tokens of a limit a process may admit without the store in a window.
func (p Policy) budget(limit int64) int64 {
	switch p.Mode {
	case FailOpen:
		return math.MaxInt64
	case FailLocal:
		return int64(p.Share * float64(limit))
	}
	return 0
}

// fallback is what the failure policy has admitted for one key. Its own window bounds what
// FailLocal admits; it is kept until its end, through any number of outages. What was
// admitted is debt of the store's window that was read last, if that is open, or of the
// calendar's period, which is known without a reading. A nil *fallback has admitted nothing.
type fallback struct {
	window   backend.Window // the policy's own, as its answers have it
	end      int64          // its end by the process' clock
	length   time.Duration  // of it
	admitted int64          // tokens in it

	debtor   backend.Window // the window of the store, or period, that owes, as its answers have it
	home     backend.Window // the same, or the one to which the store has carried its debt over
	declared int64          // tokens admitted as its debt, less those that came back
	pending  int64          // debt that waits until the period of that name was read, or none is open
}

// owes reports whether c was admitted as debt of the last window that owes.
func (f *fallback) owes(c Charge) bool {
	return f != nil && c.Fallback && c.Tokens > 0 && f.debtor == c.Window
}

// pends reports whether debt waits for the period of c to be read.
func (f *fallback) pends(c Charge) bool { return f.owes(c) && f.pending > 0 }

// waiting is the debt that waits for its period.
func (f *fallback) waiting() int64 {
	if f == nil {
		return 0
	}
	return f.pending
}

// dropPending takes out the debt that waits.
func (f *fallback) dropPending() (n int64) {
	if f != nil {
		n, f.pending = f.pending, 0
	}
	return n
}

// neededBy reports whether k must stay in memory. Tokens that FailLocal has admitted count
// against its share; debt of any policy must be charged.
func (f *fallback) neededBy(k *Key, now int64) bool {
	switch {
	case f == nil:
		return false
	case k.env.Fallback.Mode == FailLocal && f.admitted > 0 && now <= f.end, f.pending > 0:
		return true
	}
	return f.declared > 0 && k.owed() > 0 && k.lease.Load().Alive(now)
}

// owed is the debt that the store must still charge.
func (k *Key) owed() int64 { return k.account.Unpaid() + k.fallback.waiting() }

// fallbackAt returns what the policy has admitted in its own window at now. A new one ends
// with the store's window, if one is open, or by the process' clock.
func (k *Key) fallbackAt(now int64) *fallback {
	if k.fallback == nil {
		k.fallback = new(fallback)
	}
	f, t := k.fallback, k.terms.Load()
	if now <= f.end && f.window != 0 {
		return f
	}
	f.admitted = 0
	w := k.openWindow(now)
	if w != nil && t.Calendar.Period == 0 {
		f.window, f.end, f.length = w.Window, w.LatestEnd(), t.Window
		return f
	}
	end := t.ownLimit().Ends(wall(k.lease.Load(), now))
	if f.length = t.own(); w != nil {
		end, f.length = w.Window.Time(), t.Window
	}
	f.window, f.end = backend.Window(end.UnixMilli()), now+int64(time.Until(end))
	return f
}

// openWindow returns the store's window if it may be open, as far as this process knows. A
// calendar's window is over with its period, which the wall clock tells more exactly than
// an old reading.
func (k *Key) openWindow(now int64) *lease.Lease {
	w := k.lease.Load()
	if w.Over(now) || k.terms.Load().Calendar.Period != 0 && !time.Now().Before(w.Window.Time()) {
		return nil
	}
	return w
}

// admit records n tokens that the policy admits for k now, and returns the window that they
// count in. Where neither a reading nor the calendar names one, or k is retired and so no
// account records debt, they are overdrawn.
func (f *fallback) admit(k *Key, n, now int64) backend.Window {
	f.admitted = min(f.admitted+n, backend.MaxTokens) // FailOpen has no bound
	window := f.window
	w := k.openWindow(now)
	if w != nil {
		window = w.Window
	}
	if k.phase == phaseRetired || w == nil && k.terms.Load().Calendar.Period == 0 {
		k.env.Counts.overdraw(n)
		return window
	}
	if f.debtor != window {
		k.env.Counts.overdraw(f.pending) // of a period that is over
		f.debtor, f.home, f.declared, f.pending = window, window, 0, 0
	}
	f.declared = min(f.declared+n, backend.MaxTokens)
	if w != nil {
		k.account.Declare(n)
	} else {
		f.pending = min(f.pending+n, backend.MaxTokens)
	}
	return window
}

// found declares pending debt when a reply says which window is open; 0 is none. Debt of a
// period that is open but has no window yet opens it. Debt of another one has come too late.
func (k *Key) found(window backend.Window, now int64) {
	f := k.fallback
	if f.waiting() == 0 {
		return
	}
	left := time.Until(f.debtor.Time())
	switch t := k.terms.Load(); {
	case window == 0 && left > 0:
		k.replace(t.opened(t.own()))
		k.switchWindow(f.debtor, now).Guess(backend.State{Window: f.debtor, Left: left, Remaining: t.Tokens}, now)
	case window != f.debtor:
		k.env.Counts.overdraw(f.dropPending())
		return
	}
	k.account.Declare(f.dropPending())
}

// refundFallback takes back n of the tokens that c was admitted for without the store. Debt
// that no statement has carried is cancelled. Tokens that the store has charged since, or
// may have, go back to the store, because they may be above the limit; if their window is
// over, they have expired. ok is false if c is not debt of the last window that owes.
func (k *Key) refundFallback(c Charge, n int64) (did effect, ok bool) {
	f, w := k.fallback, k.lease.Load()
	if ok = f.owes(c); f != nil && c.Fallback && c.Tokens > 0 && (ok || f.window == c.Window) {
		f.admitted = max(f.admitted-n, 0)
	}
	if !ok {
		return unchanged, false
	}
	n = min(n, f.declared)
	f.declared -= n
	waiting := min(n, f.pending)
	f.pending -= waiting
	n -= waiting
	if n == 0 {
		return unchanged, true
	}
	if w == nil || w.Window != f.home && !k.terms.Load().Rolls { // when the key left it, settleLater counted them
		n = TakeUpTo(&k.env.Counts.Left, n)
		k.env.Counts.Refunded.Add(n)
		k.env.Counts.Expired.Add(n)
		return unchanged, true
	}
	returned := k.account.ReturnDebt(n-k.account.CancelDebt(n), k.held(), c.Window)
	k.env.Counts.Refunded.Add(returned)
	return effect{changed: returned > 0}, true
}

// policy answers, by the failure policy, a request for which the store call failed with err.
// If err is no *backend.Error, it is the answer. Callers that stay and are not admitted get
// no answer, unless an operator must act.
func (k *Key) policy(n int64, stay bool, now int64, err error) (v Verdict, decided bool) {
	failure, ok := errors.AsType[*backend.Error](err)
	if !ok {
		return Verdict{Err: err}, true
	}
	f, left := k.budget(now)
	if n > left && (stay || f == nil) {
		if stay && failure.Class != backend.Rejected {
			return v, false
		}
		k.env.Counts.Failed.Add(1)
		return Verdict{Err: err}, true
	}
	limit := k.terms.Load().ownLimit()
	k.env.Counts.Fallbacks.Add(1)
	a := Answer{Source: Fallback, Allowed: n <= left, Limit: limit.Tokens, Window: f.length, Reset: f.window.Time()}
	if a.Allowed {
		k.env.Counts.AdmittedByPolicy.Add(1)
		left -= n
		a.Reset, a.Charged = f.admit(k, n, now).Time(), n
		if k.use != nil {
			k.use.charge = 0 // at once
		}
	} else {
		k.refusals.Add(1)
		a.Shadowed, a.RetryAfter = limit.Shadow, RetryAfter(time.Duration(f.end-now), f.length)
	}
	a.Remaining = max(min(left, limit.Tokens-f.admitted), 0)
	return Verdict{Answer: a}, true
}

// budget returns what was admitted without the store in the window at now, nil with
// FailClosed, and how many tokens the failure policy still admits there. A key that is not
// kept in memory cannot count its share.
func (k *Key) budget(now int64) (f *fallback, left int64) {
	policy := k.env.Fallback
	if policy.Mode == FailClosed || policy.Mode == FailLocal && k.phase == phaseRetired {
		return nil, 0
	}
	f = k.fallbackAt(now)
	return f, policy.budget(k.terms.Load().Tokens) - f.admitted
}

// policyOrError is policy for a caller that is not in line, and asks again after an error.
func (k *Key) policyOrError(n int64, stay bool, now int64, err error) Verdict {
	v, decided := k.policy(n, stay, now, err)
	if !decided {
		v.Err = err
	}
	return v
}

// answer answers the callers in line up to last by the failure policy, and returns how many
// these are. Callers that stay until they are served wait on, unless the policy admits
// them or an operator must act. Those who wait on are looked at again when the policy has
// more tokens than then.
func (k *Key) answer(last uint64, now int64, err error) (answered int) {
	line, q := k.queue.callers(), k.queue
	var asked uint64
	if failure, ok := errors.AsType[*backend.Error](err); ok && failure.Class != backend.Rejected && q.asked > 0 {
		if _, left := k.budget(now); left <= q.policyLeft {
			asked = q.asked
		}
	}
	waits := false
	line.Since(asked, func(c *waiter) {
		if c.Seq() > last {
			return
		}
		if v, decided := k.policy(c.N, c.Stays, now, err); decided {
			line.Notify(c, outcome{Verdict: v})
			answered++
		} else {
			waits = true
		}
	})
	if waits {
		q.asked = last
		_, q.policyLeft = k.budget(now)
	}
	return answered
}

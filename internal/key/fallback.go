package key

import (
	"errors"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// This file has what the failure policy admits while the store is away. It is never charged later, so it counts as Overdrawn at
// once.

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

// fallback is what the failure policy has admitted for one key, in a window of its own. With FailLocal it is
// kept until its end, through any number of outages. A nil *fallback has admitted nothing.
type fallback struct {
	window   backend.Window // the policy's own, as its answers have it
	end      int64          // its end by the process' clock
	length   time.Duration  // of it
	admitted int64          // tokens in it
}

// neededBy reports whether k must stay in memory, because tokens that FailLocal has admitted count
// against its share.
func (f *fallback) neededBy(k *Key, now int64) bool {
	return f != nil && k.env.Fallback.Mode == FailLocal && f.admitted > 0 && now <= f.end
}

// takeBack takes back n of the tokens that c was admitted for.
func (f *fallback) takeBack(c Charge, n int64) {
	if f != nil && f.window == c.Window {
		f.admitted = max(f.admitted-n, 0)
	}
}

// shares are what FailLocal has admitted for keys that have left their counter, for those who come back before the window's
// end: a plan that changes to and fro must not bring a share each time. The zero value has none.
type shares struct {
	mu   sync.Mutex
	left map[share]*fallback
}

// share names a counter of a key.
type share struct{ key, counter string }

func (k *Key) share() share { return share{k.node.Key, k.Limit().Counter()} }

// leaveShare keeps what the policy has admitted for a key that leaves its counter, unless too many do.
func (k *Key) leaveShare(now int64) {
	if !k.fallback.neededBy(k, now) {
		return
	}
	s := &k.env.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.left, func(_ share, f *fallback) bool { return now > f.end })
	if s.left == nil {
		s.left = make(map[share]*fallback)
	}
	if len(s.left) < mostLeavers {
		s.left[k.share()], k.fallback = k.fallback, nil
	}
}

// comeToShare returns what leaveShare has kept for the key, or nothing admitted.
func (k *Key) comeToShare() *fallback {
	s := &k.env.shares
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.left) > 0 {
		if f := s.left[k.share()]; f != nil {
			delete(s.left, k.share())
			return f
		}
	}
	return new(fallback)
}

// fallbackAt returns what the policy has admitted in its own window at now. A new one ends
// with the store's window, if one is open as far as this process knows, or by the process' clock.
func (k *Key) fallbackAt(now int64) *fallback {
	if k.fallback == nil {
		k.fallback = k.comeToShare()
	}
	f, t := k.fallback, k.Limit()
	if now <= f.end && f.window.End != 0 {
		return f
	}
	*f = fallback{length: t.Window}
	if w := k.lease.Load(); !w.Over(now) && t.Calendar.Period == 0 && !t.Rolls {
		f.window, f.end = w.Window, w.LatestEnd()
		return f
	}
	end := t.Ends(time.Now()) // of a calendar, more exactly than an old reading
	f.window, f.end = backend.Window{End: end.UnixMilli()}, now+int64(time.Until(end))
	return f
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
	limit := k.Limit()
	k.env.Counts.Fallbacks.Add(1)
	a := Answer{Source: Fallback, Allowed: n <= left, Limit: limit.Tokens, Window: f.length, Of: f.window, Reset: f.window.Time()}
	if a.Allowed {
		k.env.Counts.AdmittedByPolicy.Add(1)
		k.env.Counts.overdraw(n)
		f.admitted = min(f.admitted+n, backend.MaxTokens) // FailOpen has no bound
		left -= n
		a.Charged = n
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
	return f, policy.budget(k.Limit().Tokens) - f.admitted
}

// policyOrError is policy for a caller that is not in line, and asks again after an error.
func (k *Key) policyOrError(n int64, stay bool, now int64, err error) Verdict {
	v, decided := k.policy(n, stay, now, err)
	if !decided {
		v.Err = err
	}
	return v
}

// answer answers the callers in line up to last by the failure policy. Callers that stay until they are served wait on, unless the policy admits
// them or an operator must act. Those who wait on are looked at again when the policy has
// more tokens than then.
func (k *Key) answer(last uint64, now int64, err error) {
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
		} else {
			waits = true
		}
	})
	if waits {
		q.asked = last
		_, q.policyLeft = k.budget(now)
	}
}

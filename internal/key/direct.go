package key

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// This file has what calls for one request do to a key: those of keys that have no room in memory, those of
// rolling limits, Check and Reset.

// Outside returns a key that no other caller finds, for one that has no room in memory, and
// what to do for a request: it counts as forgotten, so it keeps no account. It copies the
// name, because a Result keeps the key.
func (e *Env) Outside(name string, limit backend.Limit, n int64, stay bool) (*Key, Verdict) {
	at := &node{Key: strings.Clone(name), Hash: e.Table.HashOf(name)}
	e.init(at, e.Caller.Shard(e.Stored(name)), limit)
	k := &at.State
	if k.enter(phaseRetired); n <= limit.Tokens && k.shard.Open() {
		return k, k.policyOrError(n, stay, e.Clock.Now(), k.shard.OpenError())
	}
	e.Counts.Waited.Add(1)
	return k, Verdict{Next: Call}
}

// AskAgain is how long to wait after a refusal outside memory, with left of a window of that
// length: tokens may come back.
func AskAgain(left, window time.Duration) time.Duration {
	return min(left+chance.Part(spreadMax), chance.Interval(max(window/askTimes, LongestPause)))
}

// Alone is a statement without an account, for the tokens of one request, all or none.
type Alone struct {
	Req  backend.Statement
	k    *Key
	stay bool
}

// Alone returns the statement for n tokens that a caller must make, if Next is Call.
func (k *Key) Alone(n int64, stay bool) (a Alone, v Verdict) {
	limit := k.Limit()
	if n > limit.Tokens {
		return a, k.env.TooMuch(*limit)
	}
	a = Alone{k: k, stay: stay, Req: backend.Statement{Key: k.env.Stored(k.node.Key), Limit: limit.Plain(), Need: n}}
	a.Req.Begin, a.Req.End = Period(*limit, k.shard.Clock())
	return a, Verdict{Next: Call}
}

// Answer answers the request by the reply r, which was requested at sent, or the error of the call. ended says that the
// caller's context has ended. Tokens of a reply that comes after the window may have ended have expired, and the failure
// policy answers.
func (a *Alone) Answer(r *backend.Reply, sent int64, err error, ended bool) (v Verdict) {
	k, n, counts := a.k, a.Req.Need, &a.k.env.Counts
	allowed := err == nil && r.Grant == n
	if allowed && a.late(r, sent) {
		counts.Expire(n)
		err = &backend.Error{Op: "sync", Class: backend.Unavailable, Err: ErrTooSlow}
	}
	switch {
	case err != nil && ended:
		return Verdict{Err: err}
	case err != nil:
		k.event(func(now int64) effect { v = k.policyOrError(n, a.stay, now, err); return unchanged })
		return v
	}
	v.Answer = Answer{
		Allowed: allowed, Source: Direct, Limit: a.Req.Limit.Tokens, Window: a.Req.Limit.Window, Remaining: r.Remaining, Of: r.Window, Reset: r.Window.Time(),
	}
	if !allowed {
		v.Answer.Shadowed, v.Answer.RetryAfter = k.Limit().Shadow, RetryAfter(r.Left, a.Req.Limit.Window)
		if !a.stay {
			counts.Denied.Add(1)
		}
		return v
	}
	v.Answer.Charged = n
	counts.Taken.Add(n)
	counts.Spent.Add(n)
	counts.Left.Add(n)
	counts.Extra.Add(k.node.Hash, n-1)
	return v
}

// late reports whether the window of the reply may have ended.
func (a *Alone) late(r *backend.Reply, sent int64) bool {
	now, of := a.k.env.Clock.Now(), lease.New(r.Window)
	of.Apply(r.State, 0, sent, now)
	return !of.Alive(now)
}

// Expire counts n tokens that were charged for a caller who has left, or too late.
func (c *Counts) Expire(n int64) {
	c.Taken.Add(n)
	c.Expired.Add(n)
}

// Take is a call for the tokens of one request of a rolling limit, all or none. It leaves the stock alone.
type Take struct {
	Req  backend.TakeRequest
	k    *Key
	stay bool
}

// Take returns the call for n tokens that a caller must make, if Next is Call.
func (k *Key) Take(n int64, stay bool) (t Take, v Verdict) {
	limit := k.Limit()
	if n > limit.Tokens {
		return t, k.env.TooMuch(*limit)
	}
	v.Next = Call
	return Take{k: k, stay: stay, Req: backend.TakeRequest{Key: k.env.Stored(k.node.Key), Limit: limit.Plain(), Tokens: n, Within: k.env.Timeout}}, v
}

// Late reports whether the reply has charged the tokens but comes so late that the limit may
// count them no longer than others from now on. Then they must go back.
func (t *Take) Late(r backend.TakeReply, sent int64) bool {
	if !r.Allowed {
		return false
	}
	of := lease.New(r.Window)
	of.Apply(r.State, t.Req.Limit.Window, sent, sent)
	return !of.Alive(t.k.env.Clock.Now())
}

// End applies the reply, or the error of the call. ended says that the caller's context has
// ended. If the tokens lie idle elsewhere, the caller of a key
// in memory starts over, in line, and any other must recall them itself.
func (t *Take) End(r backend.TakeReply, sent int64, err error, ended bool) (v Verdict) {
	k := t.k
	k.event(func(now int64) effect {
		switch {
		case err != nil && ended:
			v.Err = err
			return unchanged
		case err != nil:
			v = k.policyOrError(t.Req.Tokens, t.stay, now, err)
			return changed
		}
		if k.firstFetch == 0 {
			k.firstFetch = max(sent, 1)
		}
		t.read(r, sent, now)
		w := k.lease.Load()
		switch {
		case r.Allowed || !r.Idle && !r.Called:
		case k.phase == phaseRetired:
			v.Next = Recall
			return unchanged
		case w != nil:
			k.usage().recall.missed, v.Next = w.Window, StartOver
			return unchanged
		}
		var did effect
		v.Answer, did = t.book(r, now)
		return did
	})
	return v
}

// read applies the reading that came with the call. It says nothing of the account, so it
// never ends a lease whose tokens may be spent.
func (t *Take) read(r backend.TakeReply, sent, now int64) {
	k := t.k
	w := k.lease.Load()
	if w != nil && (w.Alive(now) || k.account.Rolls.Named()) { // the account's lease stays
		w.Note(r.State, now)
		return
	}
	if k.phase == phaseRetired || r.Window.End == 0 || w != nil && r.Window.End < w.Window.End {
		return
	}
	if w == nil || w.Window != r.Window {
		spent := k.spent()
		k.leaveWindow()
		w = k.enterWindow(r.Window, spent, now)
	}
	w.Apply(r.State, k.Limit().Window, sent, now)
}

// book records what the call has charged, or its refusal.
func (t *Take) book(r backend.TakeReply, now int64) (Answer, effect) {
	k, n, counts := t.k, t.Req.Tokens, &t.k.env.Counts
	w := k.lease.Load()
	a := t.answer(r)
	if w != nil && r.Allowed { // a refusal tells what was too little
		a.Remaining = min(a.Remaining+w.Stock(), a.Limit)
	}
	switch {
	case r.Allowed:
		if w != nil {
			counts.Move(k.account.Rolls.Direct(n))
			k.allow()
		} else { // the key is forgotten, so no account records it
			counts.Taken.Add(n)
			counts.Spent.Add(n)
		}
		counts.Direct.Add(n)
		counts.Extra.Add(k.node.Hash, n-1)
	case k.phase == phaseRetired:
		if !t.stay {
			counts.Denied.Add(1)
		}
	default:
		k.refusals.Add(1)
		if w != nil && now >= k.deniedUntil() && t.Req.Limit.Tokens >= k.Limit().Tokens { // the limit was not raised since
			k.deny(w, now)
		}
	}
	return a, changed
}

// answer is the answer to the request.
func (t *Take) answer(r backend.TakeReply) Answer {
	a := Answer{Allowed: r.Allowed, Source: Direct, Limit: t.Req.Limit.Tokens, Window: t.Req.Limit.Window, Remaining: r.Remaining, Of: r.Window, Reset: r.Window.Time()}
	if r.Allowed {
		a.Charged = t.Req.Tokens
	} else {
		limit := t.k.Limit()
		a.Shadowed, a.RetryAfter = limit.Shadow, RetryAfter(cmp.Or(r.Frees, r.Left), Longest(*limit))
	}
	return a
}

// GivenBack records that n tokens of window went back to the store by a call, because
// callers may wait for them.
func (k *Key) GivenBack(window backend.Window, n int64) {
	k.event(func(int64) effect {
		if w := k.lease.Load(); w != nil && w.Window == window {
			w.AddRemaining(n)
		}
		return changed
	})
}

// Held returns what this process holds of the window that a Check has read.
func (k *Key) Held(s backend.State) (held int64) {
	k.event(func(now int64) effect {
		if w := k.lease.Load(); w.Alive(now) && (w.Window == s.Window || k.Limit().Rolls) {
			held = k.held()
		}
		return unchanged
	})
	return held
}

// Reset leaves the window that a Reset has voided: nothing of it is spent or refused any more. The next caller opens another.
func (k *Key) Reset(void backend.Window) {
	k.event(func(now int64) effect { return k.voided(void, now) })
}

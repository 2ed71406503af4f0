package key

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// This file has what calls for one request do to a key: direct calls, Check and Reset.

// LengthTries is how often a request without stock is made while replies name windows of
// other lengths. After the first reply the request names that length too, but its window
// may end before the second try, and a slow process may open one of a third length.
const LengthTries = 3

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

// Take is a call for the tokens of one request, all or none. It leaves the stock alone.
type Take struct {
	Req  backend.TakeRequest
	k    *Key
	stay bool
}

// Take returns the call for n tokens that a caller must make, if Next is Call.
func (k *Key) Take(n int64, stay bool) (t Take, v Verdict) {
	terms := k.terms.Load()
	if n > terms.Tokens {
		return t, k.env.TooMuch(terms.Limit)
	}
	v.Next = Call
	t = Take{k: k, stay: stay, Req: backend.TakeRequest{Key: k.env.Stored(k.node.Key), Tokens: n, Within: k.env.Timeout}}
	k.event(func(now int64) effect {
		terms := k.terms.Load()
		if terms.plan != Counted {
			v.Next = Special
		}
		t.Req.Limit, t.Req.OpenLength, t.Req.End, t.Req.Next = terms.openings(k.lease.Load(), now)
		return unchanged
	})
	return t, v
}

// Late reports whether the reply has charged the tokens but comes so late that a rolling limit may
// count them no longer than others from now on. Then they must go back.
func (t *Take) Late(r backend.TakeReply, sent int64) bool {
	if !r.Allowed || !t.Req.Limit.Rolls {
		return false
	}
	of := lease.New(r.Window)
	of.Apply(r.State, t.Req.Limit.Window, sent, sent)
	return !of.Alive(t.k.env.Clock.Now())
}

// End applies the reply, or the error of the call. ended says that the caller's context has
// ended. Next is Call if the open window has another length, in which the limit may count:
// then the call may be made once more. If the tokens lie idle elsewhere, the caller of a key
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
		case r.Conflict && k.adopts(r.State, 1, sent):
			k.read(r.State, r.Length, sent, now)
			v.Next = Call
			return unchanged
		case r.Conflict:
			k.conflict(r.State, now)
			v.Err = ErrConflict
			return unchanged
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
		case t.current(w, r):
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
// never ends a window whose tokens may be spent.
func (t *Take) read(r backend.TakeReply, sent, now int64) {
	k := t.k
	w := k.lease.Load()
	if t.Req.Limit.Rolls && w != nil && (w.Alive(now) || k.account.Named()) { // the account's lease stays
		w.Note(r.State, now)
		return
	}
	if w == nil || r.Window == w.Window || r.Window > w.Window && !w.Alive(now) {
		length := cmp.Or(r.Length, t.Req.Limit.Window)
		if w == nil || r.Window != w.Window {
			length = k.lengthOf(r.State, t.Req.Limit.Window, 1, sent)
		}
		k.read(r.State, length, sent, now)
	}
}

// current reports whether the reply is about the window of w. All windows of a rolling limit are.
func (t *Take) current(w *lease.Lease, r backend.TakeReply) bool {
	return w != nil && (w.Window == r.Window || t.Req.Limit.Rolls)
}

// book records what the call has charged, or its refusal. If the refusal is of a window
// that a Reset elsewhere has opened, a probe must end the old window here.
func (t *Take) book(r backend.TakeReply, now int64) (Answer, effect) {
	k, n, counts := t.k, t.Req.Tokens, &t.k.env.Counts
	w := k.lease.Load()
	current := t.current(w, r)
	a := t.answer(r)
	if current && r.Allowed { // a refusal tells what was too little
		a.Remaining = min(a.Remaining+w.Stock(), a.Limit)
	}
	switch {
	case r.Allowed:
		if current {
			counts.Move(k.account.Direct(n))
			k.allow()
		} else { // the key is forgotten, or in another window, so no account records it
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
		if current && now >= k.deniedUntil && t.Req.Limit.Tokens >= k.terms.Load().Tokens { // the limit was not raised since
			k.deny(w, now)
		} else if !current && !w.Over(now) {
			return a, effect{changed: true, probe: n}
		}
	}
	return a, changed
}

// answer is the answer to the request.
func (t *Take) answer(r backend.TakeReply) Answer {
	a := Answer{Allowed: r.Allowed, Source: Direct, Limit: t.Req.Limit.Tokens, Window: cmp.Or(r.Length, t.Req.Limit.Window), Remaining: r.Remaining, Reset: r.Window.Time()}
	if r.Allowed {
		a.Charged = t.Req.Tokens
	} else {
		a.Shadowed, a.RetryAfter = t.k.terms.Load().Shadow, RetryAfter(cmp.Or(r.Frees, r.Left), cmp.Or(r.Length, Longest(t.k.terms.Load().Limit)))
	}
	return a
}

// Held returns what this process holds of the window that a Check has read, and whether the
// key's limit counts in that window.
func (k *Key) Held(s backend.State) (held int64, serves bool) {
	k.event(func(now int64) effect {
		w := k.lease.Load()
		known := w != nil && (w.Window == s.Window || k.terms.Load().Rolls)
		if known && w.Alive(now) {
			held = k.held()
		}
		serves = s.Length == 0 || known || k.adopts(s, 1, now)
		return unchanged
	})
	return held, serves
}

// Reset enters the fresh window that a Reset has opened. was is the key's lease before that.
func (k *Key) Reset(s backend.State, limit backend.Limit, sent int64, was *lease.Lease) {
	k.event(func(now int64) effect {
		w := k.lease.Load()
		switch {
		case k.phase == phaseRetired || w != nil && w.Window == s.Window && !limit.Rolls:
			return unchanged
		case limit.Rolls && w != nil: // the reply to a statement ends the account
			did := k.void(w, now)
			did.probe = 1
			return did
		case w != was: // another reply was faster: ask the store which window is open
			k.allow()
			return effect{changed: true, probe: 1}
		}
		k.read(s, cmp.Or(s.Length, limit.Window), sent, now)
		return changed
	})
}

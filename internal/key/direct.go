package key

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// This file has what calls for one request do to a key: those of keys that have no room in memory, Check and Reset.

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
	if a.Req.Begin, a.Req.End = Period(*limit, k.shard.Clock()); limit.Rolls {
		a.Req.Within = k.env.Timeout
	}
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
		v.Answer.Shadowed, v.Answer.RetryAfter = k.Limit().Shadow, RetryAfter(cmp.Or(r.Frees, r.Left), Longest(a.Req.Limit))
		if !a.stay {
			counts.Denied.Add(1)
		}
		return v
	}
	v.Answer.Charged, v.Answer.Bucket = n, a.bucket(r)
	counts.Taken.Add(n)
	counts.Spent.Add(n)
	counts.Left.Add(n)
	counts.Extra.Add(k.node.Hash, n-1)
	return v
}

// bucket is that of the tokens of a rolling limit, else 0.
func (a *Alone) bucket(r *backend.Reply) int64 {
	if len(r.Grants) == 0 {
		return 0
	}
	return r.Grants[0].Bucket
}

// late reports whether the window of the reply, or the bucket of its tokens, may have ended.
func (a *Alone) late(r *backend.Reply, sent int64) bool {
	now, of, state := a.k.env.Clock.Now(), lease.New(r.Window), r.State
	if limit := a.Req.Limit; limit.Rolls {
		state.Left = time.Duration(backend.BucketEnd(a.bucket(r), limit.Window)-r.Now) * time.Microsecond
	}
	of.Apply(state, sent, now)
	return !of.Alive(now)
}

// Expire counts n tokens that were charged for a caller who has left, or too late.
func (c *Counts) Expire(n int64) {
	c.Taken.Add(n)
	c.Expired.Add(n)
}

// Held returns what this process holds of the window that a Check has read.
func (k *Key) Held(s backend.State) (held int64) {
	k.event(func(now int64) effect {
		if w := k.lease.Load(); k.Limit().Rolls || w.Alive(now) && w.Window == s.Window {
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

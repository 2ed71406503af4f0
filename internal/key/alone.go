package key

import (
	"cmp"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/denial"
	"github.com/go-reservoir/reservoir/internal/placement"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

// This file has the calls for one request of a key that has no room in memory.

// Outside returns a key that no other caller finds, for one that has no room in memory, and
// what to do for a request: it counts as forgotten, so it keeps no account. It copies the
// name, because a Result keeps the key.
func (e *Env) Outside(name string, limit backend.Limit, q Ask) (*Key, Verdict) {
	at := &node{Key: strings.Clone(name)} // its Hash only says which counter of Counts.Extra it uses
	e.init(at, e.Shard(placement.Named(e.Name, name)), limit)
	k := &at.State
	k.shard.keys.Add(-1)
	// It is born retired: it has an environment, a limit and a shard, which an answer needs, and its account stays empty.
	if k.phase = retired; q.under(&limit).N <= limit.Tokens && k.shard.Open.Load() {
		return k, k.withoutStore(q.under(&limit), k.shard.OpenError())
	}
	e.Counts.Waited.Add(1)
	return k, Verdict{Next: Call}
}

// withoutStore answers a request that is not in line by the failure policy, or with err.
func (k *Key) withoutStore(q Ask, err error) (v Verdict) {
	k.event(func(now int64) effect {
		var decided bool
		if v, decided = k.policy(q, now, err); !decided {
			v.Err = err
		}
		return unchanged
	})
	return v
}

// AskAgain is how long to wait after a refusal outside memory, with left of a window of that
// length: tokens may come back.
func AskAgain(left, window time.Duration) time.Duration {
	return min(left+chance.Part(spreadMax), chance.Interval(max(window/denial.Times, LongestPause)))
}

// Alone is a statement without an account, for the tokens of one request, all or none.
type Alone struct {
	Req backend.Statement
	k   *Key
	q   Ask
}

// Alone returns the statement that a caller must make for q, if Next is Call.
func (k *Key) Alone(q Ask) (a Alone, v Verdict) {
	limit := k.Limit.Load()
	if q = q.under(limit); q.N > limit.Tokens {
		return a, k.env.TooMuch(*limit)
	}
	a = Alone{k: k, q: q, Req: backend.Statement{Key: placement.Named(k.env.Name, k.node.Key), Limit: limit.Plain(), Need: q.N}}
	if a.Req.Begin, a.Req.End = Period(*limit, k.shard.Clock()); limit.Rolls {
		a.Req.Within = k.env.Timeout
	}
	return a, Verdict{Next: Call}
}

// Answer answers the request by the reply r, which was requested at sent, or the error of the call. ended says that the
// caller's context has ended. Tokens of a reply that comes after the window may have ended have expired, and the failure
// policy answers. If fewer are left, and the request takes some, Next is Call, for as many as Remaining.
func (a *Alone) Answer(r *backend.Reply, sent int64, err error, ended bool) (v Verdict) {
	k, n, counts, limit := a.k, a.Req.Need, &a.k.env.Counts, a.Req.Limit
	allowed, bucket, state := err == nil && r.Grant == n, int64(0), backend.State{}
	if allowed {
		if state = r.State; limit.Rolls {
			bucket = r.Grants[0].Bucket
			state.Left = time.Duration(backend.BucketEnd(bucket, limit.Window)-r.Now) * time.Microsecond
		}
		now, of := k.env.Clock.Now(), tokens.Lease{}
		if of.Read(state, sent, now); !of.Alive(now) {
			counts.Expire(n)
			err = &backend.Error{Op: "sync", Class: backend.Unavailable, Err: ErrTooSlow}
		}
	}
	switch {
	// A caller that has left takes nothing of the policy's share.
	case err != nil && ended:
		return Verdict{Err: err}
	case err != nil:
		return k.withoutStore(a.q, err)
	}
	v.Answer = Answer{
		Allowed: allowed, Source: Direct, Limit: limit.Tokens, Window: limit.Window, Remaining: r.Remaining, Of: r.Window, Reset: r.Window.Time(),
	}
	// The store grants all or nothing, so who takes some asks a second time for what was left.
	if !allowed && a.q.Some && r.Held == 0 && r.Remaining > 0 {
		v.Next = Call
		return v
	}
	if !allowed {
		v.Answer.Shadowed, v.Answer.RetryAfter = k.Limit.Load().Shadow, RetryAfter(cmp.Or(r.Frees, r.Left), tokens.Longest(limit))
		if r.Held > 0 {
			v.Answer.RetryAfter = r.Held
		}
		if !a.q.Stays {
			counts.Denied.Add(1)
		}
		return v
	}
	v.Answer.Charged, v.Answer.Bucket = n, bucket
	counts.Taken.Add(n)
	counts.Spent.Add(n)
	counts.Left.Add(n)
	counts.Extra.Add(k.node.Hash, n-1)
	return v
}

// Expire counts n tokens that were charged for a caller who has left, or too late.
func (c *Counts) Expire(n int64) {
	c.Taken.Add(n)
	c.Expired.Add(n)
}

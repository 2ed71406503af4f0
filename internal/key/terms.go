package key

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Plan says whether a limit needs the store or is special. The limiter answers special ones; no key has one.
type Plan uint8

const (
	Counted   Plan = iota // the store counts
	Blocked               // no request passes
	Unlimited             // every request passes
)

// The tokens of special limits: of one that lets every request pass, and of one that lets none.
const (
	UnlimitedTokens = math.MaxInt64
	BlockTokens     = math.MinInt64
)

// PlanOf returns the plan of a limit.
func PlanOf(l backend.Limit) Plan {
	switch l.Tokens {
	case BlockTokens:
		return Blocked
	case UnlimitedTokens:
		return Unlimited
	}
	return Counted
}

// AnswerSpecial answers a request if the limit is special. A blocked request has no Reset and no
// RetryAfter, because no waiting helps.
func AnswerSpecial(limit backend.Limit) (a Answer, special bool) {
	switch PlanOf(limit) {
	case Unlimited:
		return Answer{Allowed: true, Limit: limit.Tokens, Remaining: limit.Tokens}, true
	case Blocked:
		return Answer{Shadowed: limit.Shadow}, true
	}
	return a, false
}

// Longest is how long a refused request may have to wait: for the window's end or, if the limit is a rolling
// one, until a token of the last bucket counts no more.
func Longest(l backend.Limit) time.Duration {
	if l.Rolls {
		return longestRolling(l.Window)
	}
	return l.Window
}

// Period returns the calendar's period at t, in Unix milliseconds; 0 if the limit has no calendar.
func Period(limit backend.Limit, t time.Time) (begin, end int64) {
	if limit.Calendar.Period == 0 {
		return 0, 0
	}
	from, to := limit.Calendar.Around(t)
	return from.UnixMilli(), to.UnixMilli()
}

// sameCounter reports whether the two limits count in one counter of a key; see backend.Limit.Counter. A program may load
// its time zone anew each time.
func sameCounter(a, b *backend.Limit) bool {
	switch {
	case a.Rolls != b.Rolls || a.Calendar.Period != b.Calendar.Period:
		return false
	case a.Calendar.Period == 0:
		return a.Window == b.Window
	}
	return a.Calendar.Zone == b.Calendar.Zone || a.Counter() == b.Counter()
}

// TooMuch answers a request for more tokens than the limit has. Waiting would not help, so
// it is an error; in shadow the request passes.
func (e *Env) TooMuch(limit backend.Limit) Verdict {
	if limit.Shadow {
		e.Counts.Denied.Add(1)
		return Verdict{Answer: Answer{Shadowed: true, Limit: limit.Tokens, Window: limit.Window, Reset: limit.Ends(time.Now())}}
	}
	return Verdict{Err: ErrExceedsLimit}
}

// tooMuch is TooMuch for a key in memory.
func (k *Key) tooMuch(now int64) Verdict {
	v := k.env.TooMuch(*k.Limit())
	if w := k.lease.Load(); v.Err == nil && w.Alive(now) {
		v.Answer = k.refuse(w, now, Local) // the open window's end, which does not move
	}
	return v
}

// Relimit makes limit the key's limit.
func (k *Key) Relimit(limit backend.Limit) {
	k.event(func(now int64) effect { return k.relimit(limit, now) })
	k.retireIfTooMany()
}

// AskLimit asks for the present limit, which may be another one, and applies it, also to f, a statement that is about to be
// sent; f may be nil. It holds no lock while it calls the user's function. If that
// has returned a special limit to another call meanwhile, or a Refresh has begun, its answer here may
// be older, and does not count, unless it is a block.
func (k *Key) AskLimit(f *Fetch) (backend.Limit, error) {
	e := k.env
	if !e.Varies() {
		return *k.Limit(), nil
	}
	asked := e.asks.Add(1)
	limit, err := e.Caller.Limit(k.node.Key)
	if err == nil {
		k.event(func(now int64) (did effect) {
			if k.use == nil || asked > k.use.asked || PlanOf(limit) == Blocked {
				did = k.relimit(limit, now)
			}
			if f != nil {
				f.relimit()
			}
			return did
		})
		k.retireIfTooMany()
	}
	return limit, err
}

// Refresh asks for the limit because it has changed.
func (k *Key) Refresh() error {
	k.event(func(int64) effect {
		if k.env.Varies() && k.phase != phaseRetired {
			k.usage().asked = k.env.asks.Load()
		}
		return unchanged
	})
	_, err := k.AskLimit(nil)
	return err
}

// relimit makes limit the key's limit. One that counts in another counter, or in none, is not this key's: it leaves. A caller
// in line that wants more than the limit has gets ErrExceedsLimit or, in shadow, passes.
func (k *Key) relimit(limit backend.Limit, now int64) effect {
	was, line := k.Limit(), k.queue.callers()
	if PlanOf(limit) != Counted || !sameCounter(&limit, was) {
		return k.leaveCounter(now)
	}
	limit.Calendar = was.Calendar // the zone may be another pointer
	if limit == *was {
		return unchanged
	}
	if limit.Tokens > was.Tokens { // the store may have more now
		k.allow()
	}
	k.limit.Store(&limit)
	line.Since(0, func(c *waiter) {
		switch {
		case c.N > limit.Tokens:
			line.Notify(c, outcome{Verdict: k.tooMuch(now)})
		case limit.Shadow && c.Stays: // nobody waits for a limit in shadow
			line.Notify(c, outcome{Verdict: Verdict{Next: StartOver}})
		}
	})
	return changed
}

// askTimes is how often in a window a refused key asks for its limit, and all processes
// together ask the store.
const askTimes = 20

// old reports whether to ask for the limit before a decision, because another limit may
// matter to a request for n: n is larger than the limit, or the denial of the key is old.
func (k *Key) old(n, now int64) bool {
	t := k.Limit()
	if k.deniedUntil() != 0 && now >= k.use.recheck {
		k.use.recheck = now + int64(t.Window)/askTimes
		return true
	}
	return n > t.Tokens
}

// Counts reports whether other, which may be forgotten, counted in the same counter.
func (k *Key) Counts(other *Key) bool { return sameCounter(k.Limit(), other.Limit()) }

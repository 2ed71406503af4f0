package key

import (
	"cmp"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// Terms are a key's limit, and the length of its open window, which was opened with it. A
// changed limit applies its length from the next window on. Terms never change; a key gets
// others.
type Terms struct {
	backend.Limit               // Window is the length of the open window or, if none is, of the next
	next          time.Duration // length of the next window, if it is another; else 0
	since         int64         // since when the limit has had that length; 0 = since the key's first fetch
	plan          Plan          // if it is special, Limit is the last one that was not: the account is stated under that
}

// Plan says whether a limit needs the store or is special.
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

// Rolling is the length of a rolling limit's window, and 0 of others. By that much earlier than their
// window ends tokens may be spent, because they count until a window after the slice in which they
// may be.
func Rolling(l backend.Limit) time.Duration {
	if l.Rolls {
		return l.Window
	}
	return 0
}

// Longest is how long a refused request may have to wait: for the window's end or, if the limit is a rolling
// one, until a token counts no more that may be spent in the last slice of a lease.
func Longest(l backend.Limit) time.Duration {
	return l.Window + Rolling(l)*(backend.Refundable+1)/backend.Slices
}

// own is the length that the limit has.
func (t *Terms) own() time.Duration { return cmp.Or(t.next, t.Window) }

// ownLimit is the limit with the length of the next window.
func (t *Terms) ownLimit() backend.Limit {
	limit := t.Limit
	limit.Window = t.own()
	return limit
}

// changeTime is how long a changed limit may take to reach all processes. If a window ends
// meanwhile, a slow process may open one more of the old length.
const changeTime = 30 * time.Second

// adopts reports whether a limit with these terms may count in an open window of another
// length, which s has. It may if the limit has changed since that window was opened, here
// or in another process. Two limits that go on together conflict: then the window was
// opened after this process began, at since, to state another length. It may have been opened
// a little later by a process that learnt of the change later; if it is the longer one, to
// count in it admits no more. changes says that the limit can have changed.
func (t *Terms) adopts(s backend.State, changes bool, since, sent int64) bool {
	if t.Rolls { // the store changes the length of its own accord, unless two limits use the key
		return false
	}
	off := s.Length - t.own()
	if t.Calendar.Period != 0 && max(off, -off) < t.own()/8 {
		return true // by the calendar, a month is up to three days shorter
	}
	opened := sent - int64(s.Length-s.Left)
	return changes && (opened <= since || off > 0 && opened-since <= int64(changeTime))
}

// Serves reports whether limit, of a key that is not in memory, may count in the open window
// that s has.
func (s *Settings) Serves(limit backend.Limit, open backend.State) bool {
	t := Terms{Limit: limit}
	return open.Length == 0 || t.adopts(open, s.ByKey, math.MaxInt64, 0)
}

// openings returns what a request states of windows: the limit for one that opens now, the
// length of one that is open, if it is another, and the ends by the calendar.
func (t *Terms) openings(w *lease.Lease, now int64) (limit backend.Limit, open time.Duration, end, next backend.Window) {
	if limit = t.ownLimit().Plain(); t.next != 0 {
		open = t.Window
	}
	end, next = CalendarEnds(t.Limit, wall(w, now))
	return limit, open, end, next
}

// CalendarEnds returns the ends of the window that opens at t and of the next one, if the
// limit is by the calendar.
func CalendarEnds(limit backend.Limit, t time.Time) (end, next backend.Window) {
	if limit.Calendar.Period == 0 {
		return 0, 0
	}
	first := limit.Ends(t)
	return backend.Window(first.UnixMilli()), backend.Window(limit.Ends(first).UnixMilli())
}

// wall is the wall-clock time, except that it is not in a window that is surely over,
// because the store's clock may be ahead of ours.
func wall(w *lease.Lease, now int64) time.Time {
	t := time.Now()
	if w != nil && w.Over(now) && t.Before(w.Window.Time()) {
		return w.Window.Time()
	}
	return t
}

// opened returns the terms when a window of that length is open.
func (t Terms) opened(length time.Duration) Terms {
	if t.next, t.Window = t.own(), length; t.next == length {
		t.next = 0
	}
	return t
}

// with returns the terms when the limit is another one. An open window keeps its length.
func (t Terms) with(limit backend.Limit, w *lease.Lease, now int64) Terms {
	is := Terms{Limit: limit.At(wall(w, now)), since: t.since}
	if is.Calendar != t.Calendar || is.Calendar.Period == 0 && is.Window != t.own() {
		is.since = max(now, 1)
	}
	if !w.Over(now) && is.Window != t.Window {
		is.Window, is.next = t.Window, is.Window
	}
	return is
}

// replace gives the key other terms.
func (k *Key) replace(t Terms) {
	if t != *k.terms.Load() {
		k.terms.Store(&t)
	}
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
	v := k.env.TooMuch(k.terms.Load().Limit)
	if w := k.lease.Load(); v.Err == nil && w.Alive(now) {
		v.Answer = k.refuse(w, now, Local) // the open window's end, which does not move
	}
	return v
}

// Relimit makes limit the key's limit.
func (k *Key) Relimit(limit backend.Limit) {
	k.event(func(now int64) effect { return k.relimit(limit, now) })
}

// AskLimit asks for the present limit, which may be another one or, by the calendar, have
// another length, and applies it, also to f, a statement in flight that was written under
// the old limit; f may be nil. It holds no lock while it calls the user's function. If that
// has returned a special limit to another call meanwhile, or a Refresh has begun, its answer here may
// be older, and does not count, unless it is a block.
func (k *Key) AskLimit(f *Fetch) (backend.Limit, error) {
	e := k.env
	if !e.Varies() {
		return k.terms.Load().Limit, nil
	}
	asked := e.asks.Add(1)
	limit, err := e.Caller.Limit(k.node.Key)
	if err == nil && PlanOf(limit) == Counted && limit.Rolls != k.terms.Load().Rolls { // it needs another name
		err = ErrConflict
	}
	if err == nil {
		k.event(func(now int64) (did effect) {
			if k.use == nil || asked > k.use.asked || PlanOf(limit) == Blocked {
				did = k.relimit(limit, now)
			}
			if f != nil {
				f.relimit(now)
			}
			return did
		})
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

// relimit makes limit the key's limit. A caller in line that wants more gets
// ErrExceedsLimit or, in shadow, passes. A special limit answers all callers in line.
func (k *Key) relimit(limit backend.Limit, now int64) effect {
	w, was := k.lease.Load(), *k.terms.Load()
	line := k.queue.callers()
	if plan := PlanOf(limit); plan != Counted {
		k.usage().asked = k.env.asks.Load()
		was.plan = plan
		k.replace(was)
		line.Since(0, func(c *waiter) { line.Notify(c, k.special(c, limit)) })
		return changed
	}
	is := was.with(limit, w, now)
	if is == was {
		return unchanged
	}
	if w != nil && limit.Tokens > was.Tokens { // the store may have more now
		k.allow()
	}
	k.replace(is)
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

// special is the outcome for a caller in line if the limit is special. A caller that stays
// starts over if it is refused.
func (k *Key) special(c *waiter, limit backend.Limit) (o outcome) {
	o.Answer, _ = AnswerSpecial(limit)
	if !o.Answer.Allowed && (!c.Stays || limit.Shadow) {
		k.refusals.Add(1)
	}
	return o
}

// askTimes is how often in a window a refused key asks for its limit, and all processes
// together ask the store.
const askTimes = 20

// old reports whether to ask for the limit before a decision, because another limit may
// matter to a request for n: n is larger than the limit, the limit is special, or the
// denial of the key is old.
func (k *Key) old(n, now int64) bool {
	t := k.terms.Load()
	if k.deniedUntil != 0 && now >= k.use.recheck {
		k.use.recheck = now + int64(t.Window)/askTimes
		return true
	}
	return n > t.Tokens || t.plan != Counted
}

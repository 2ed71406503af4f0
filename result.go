package reservoir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/lease"
)

// Result is the answer to one request. All of its fields come from the same reading of
// the same window. A Result that comes with an error means nothing.
type Result struct {
	// Allowed says that the tokens were charged, and the request may go on.
	Allowed bool

	// Source says how the decision was made, and so what it cost.
	Source Source

	// Shadowed says that the limit would have refused the request, which passes because of
	// [WithShadow]. Nothing was charged.
	Shadowed bool

	epoch uint32 // the key's Tag; 0 = of a direct call, or no key in memory

	// Limit is the number of tokens per window; math.MaxInt64 if no limit applies.
	Limit int64

	// Remaining is how many tokens this process could still get in the window, at most
	// Limit: what the store had left at the last reading, and the stock. Other processes
	// spend from what the store has left too. Remaining is exact for [Direct] results.
	Remaining int64

	// Reset is the stored end of the window, to the millisecond, which is the same
	// instant in every process. It is zero if Check found no open window. It is this
	// process' own guess if a [Fallback], or a shadowed request for more than the limit,
	// has no window of the store.
	Reset time.Time

	// RetryAfter is the time until Reset when the request was refused, counted
	// from the decision, and 0 when it was allowed. It is at most the window, also where
	// Reset is later: by less than a millisecond, if the window is not in whole seconds and
	// its end is rounded up, and by up to a second, if clocks differ.
	RetryAfter time.Duration

	key     uint32 // its hash
	charged int64  // tokens, to the window that ends at Reset
}

// admit fills in r for n tokens of k that were spent now; stock is what is left. A Result has
// nine words, so the hot path writes it where the caller will read it.
func (r *Result) admit(k *keyState, w *lease.Lease, now, n, stock int64, from Source) {
	limit := k.bound.Load().Tokens
	r.Allowed, r.Source, r.Limit, r.Remaining = true, from, limit, min(w.Remaining()+stock, limit)
	r.Reset, r.key, r.epoch, r.charged = w.Window.Time(), k.node.Hash, k.node.Tag, n
	if n > 1 {
		k.l.extra.add(k, n-1)
	}
}

// refuse fills in r for a request that w cannot serve.
func (r *Result) refuse(k *keyState, w *lease.Lease, now int64, from Source) {
	bound := k.bound.Load()
	r.Source, r.Shadowed = from, bound.Shadow
	r.Limit, r.Remaining = bound.Tokens, min(w.Available(), bound.Tokens)
	r.Reset, r.RetryAfter = w.Window.Time(), retryAfter(w.RetryAfter(now), bound.Window)
}

// retryAfter is what a Result says about a window of that length whose end is left away.
func retryAfter(left, length time.Duration) time.Duration { return min(max(left, 1), length) }

// Unlimited reports whether no limit applied, so Limit and Remaining mean nothing.
func (r Result) Unlimited() bool { return r.Limit == unlimitedTokens }

// window is the window that r was charged to.
func (r Result) window() backend.Window { return backend.Window(r.Reset.UnixMilli()) }

// Source is where a decision came from.
type Source uint8

const (
	// Local: from stock in memory. No call, no wait.
	Local Source = iota
	// Fetched: the caller waited for a fetch that it shared with others.
	Fetched
	// Direct: by a call to the store for this request alone.
	Direct
	// Denied: refused from memory, because the window is exhausted or the key is blocked.
	Denied
	// Fallback: by the failure policy, because the store is away.
	Fallback
)

// String returns the name of s in lower case.
func (s Source) String() string {
	names := [...]string{"local", "fetched", "direct", "denied", "fallback"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// OnNetwork reports whether the caller waited for the store.
func (s Source) OnNetwork() bool { return s == Fetched || s == Direct }

// Limit is a number of tokens per fixed window, which opens at its key's first charge and
// ends Window later or, if Window is whole seconds, at a whole second, rounded down: the
// first window of PerSecond(10) may be almost a second shorter than that, and then twice
// Tokens may pass in milliseconds. In any case they may pass in an interval that straddles a
// reset, by the nature of fixed windows. A limit by the calendar ends its windows with the
// day, week or month.
//
// Tokens is from 1 to 2^53-1, Window in whole milliseconds from 1 ms to 366 days. For a
// limit out of range [New] returns [ErrLimit], and so do calls if [WithLimits] returns it.
// Two limits are special and need no store call: 0 Tokens, as in Limit{}, blocks every
// request, and [Unlimited] admits every request.
type Limit = backend.Limit

// Unlimited admits every request, without a store call. [Stats] does not count such
// requests.
func Unlimited() Limit { return Limit{Tokens: unlimitedTokens} }

const unlimitedTokens = math.MaxInt64

// PerSecond is a limit of tokens in each second.
func PerSecond(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Second} }

// PerMinute is a limit of tokens in each minute.
func PerMinute(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Minute} }

// PerHour is a limit of tokens in each hour.
func PerHour(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Hour} }

// PerDay is a limit of tokens in each day of a time zone, from midnight to midnight. A
// day on which clocks change is shorter or longer than 24 hours. A nil zone is UTC.
//
// The store's clock decides when a day is over, and the process' clock names the day that
// opens then, as for [PerWeek] and [PerMonth]. If the process' clock is ahead, a key that
// has no window open gets tomorrow's up to a second before midnight by the store's clock.
func PerDay(tokens int64, zone *time.Location) Limit {
	return perPeriod(tokens, 24*time.Hour, backend.Day, zone)
}

// PerWeek is a limit of tokens in each week of a time zone, which begins at midnight on
// Monday. A nil zone is UTC.
func PerWeek(tokens int64, zone *time.Location) Limit {
	return perPeriod(tokens, 7*24*time.Hour, backend.Week, zone)
}

// PerMonth is a limit of tokens in each month of a time zone, which begins at midnight on
// the first. A nil zone is UTC.
func PerMonth(tokens int64, zone *time.Location) Limit {
	return perPeriod(tokens, 31*24*time.Hour, backend.Month, zone)
}

func perPeriod(tokens int64, about time.Duration, p backend.Period, zone *time.Location) Limit {
	return Limit{Tokens: tokens, Window: about, Calendar: backend.Calendar{Period: p, Zone: zone}}
}

// plan says whether a limit needs the store or is special.
type plan uint8

const (
	counted   plan = iota // the store counts
	blocked               // no request passes
	unlimited             // every request passes
)

func planOf(l Limit) plan {
	switch l.Tokens {
	case 0:
		return blocked
	case unlimitedTokens:
		return unlimited
	}
	return counted
}

// validateLimit accepts special limits too.
func validateLimit(l Limit) error {
	if planOf(l) != counted {
		l.Tokens = 1
		if l.Window == 0 {
			l.Window = time.Second
		}
	}
	return l.Validate()
}

// Errors of a call. An error means that no decision was made; a refusal is a [Result]. No
// error text contains a key.
var (
	// ErrClosed: the Limiter was closed.
	ErrClosed = errors.New("reservoir: limiter closed")

	// ErrExceedsLimit: the request asks for more tokens than the limit has. Waiting would
	// not help, so there is no RetryAfter.
	ErrExceedsLimit = errors.New("reservoir: more tokens than the limit")

	// ErrDeadline: a Wait could not be served before its context's deadline.
	// It is returned at once, not at the deadline, and wraps
	// context.DeadlineExceeded.
	ErrDeadline = fmt.Errorf("reservoir: no tokens before the %w", context.DeadlineExceeded)

	// ErrKey: the key is empty or longer than backend.MaxKeyLen.
	ErrKey = backend.ErrKey

	// ErrLimit: a Limit is out of range.
	ErrLimit = backend.ErrLimit

	// ErrTokens: the number of tokens is less than one or, in Settle, negative.
	ErrTokens = backend.ErrTokens

	// ErrConflict: the key's open window belongs to a limit of another length, because two
	// limits count on one key. Give each a name with [WithName]. It is no conflict if the
	// limit may have changed since that window was opened. The store is asked again
	// after a second, or after a 20th of the window if that is shorter; for keys past
	// [WithMaxKeys] by each request.
	ErrConflict = errors.New("reservoir: two limits with windows of different lengths share a key: give them names with WithName")

	// ErrResult: a Result was settled or refunded for another key, or at another Limiter,
	// than its own, or was never charged.
	ErrResult = errors.New("reservoir: a result of another key, or of no charge")

	// ErrOption: an option of New has a value that makes no sense.
	ErrOption = errors.New("reservoir: bad option")
)

// StoreError is the failure of a call to the store; Class says whether the call may have
// been carried out. Use errors.As to find it.
type StoreError = backend.Error

// errStartOver says that the request must start over, because the key's state was forgotten
// or its limit has changed meanwhile.
var errStartOver = errors.New("reservoir: start over")

// errOldLimit says that WithLimits' function must be called before a decision.
var errOldLimit = errors.New("reservoir: a limit of before")

// errSpecial says that a key's limit is special, so that nobody need count.
var errSpecial = errors.New("reservoir: a special limit")

// errOpen is the cause of a StoreError while the circuit is open, together with the cause
// of the failure that opened it.
var errOpen = errors.New("the circuit is open")

// errNoAnswer is the cause of a StoreError when a fetch has taken longer than
// WithFetchTimeout allows, and the store has not returned.
var errNoAnswer = errors.New("no answer within the fetch timeout")

// errTooSlow is the cause when grants keep arriving after their window's end.
var errTooSlow = errors.New("replies take longer than the window")

// limitOf is ask, and tells the key's state of a block at once.
func (l *Limiter) limitOf(key string) (Limit, error) {
	limit, err := l.ask(key)
	if err == nil && planOf(limit) == blocked {
		if n := l.keys.Find(key); n != nil {
			n.State.event(func(now int64) int64 { return n.State.relimitLocked(limit, now) })
		}
	}
	return limit, err
}

// ask returns the key's limit for the window that is open now.
func (l *Limiter) ask(key string) (Limit, error) {
	limit := l.limit
	if l.limits != nil {
		limit = l.limits(key)
		limit.Shadow = limit.Shadow || l.shadow
	}
	if err := validateLimit(limit); err != nil {
		return limit, err
	}
	return limit.At(time.Now()), nil
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

// calendarEnds returns the ends of the window that opens at t and of the next one, if the
// limit is by the calendar.
func calendarEnds(limit Limit, t time.Time) (end, next backend.Window) {
	if limit.Calendar.Period == 0 {
		return 0, 0
	}
	first := limit.Ends(t)
	return backend.Window(first.UnixMilli()), backend.Window(limit.Ends(first).UnixMilli())
}

// terms are a key's limit, and the length of its open window, which was opened with it. A
// changed limit applies its length from the next window on. Terms never change; a key gets
// others.
type terms struct {
	Limit               // Window is the length of the open window or, if none is, of the next
	next  time.Duration // length of the next window, if it is another; else 0
	since int64         // since when the limit has had that length; 0 = since the key's first fetch
}

// own is the length that the limit has.
func (t *terms) own() time.Duration { return cmp.Or(t.next, t.Window) }

// adopts reports whether a limit with these terms may count in an open window of another
// length, which s has. It may if the limit has changed since that window was opened, here
// or in another process. Two limits that go on together conflict: then the window was
// opened after this process began to state another length. It may have been opened a little
// later by a process that learnt of the change later; if it is the longer one, to count in it
// admits no more. A limit that is New's changes only with the program, so others who share
// the window must have left, too.
func (c *client) adopts(t *terms, s backend.State, others, since, sent int64) bool {
	off := s.Length - t.own()
	if t.Calendar.Period != 0 && max(off, -off) < t.own()/8 {
		return true // by the calendar, a month is up to three days shorter
	}
	opened := sent - int64(s.Length-s.Left)
	soon := opened <= since || off > 0 && opened-since <= int64(changeTime)
	return soon && (c.limits != nil || others == 0)
}

// changeTime is how long a changed limit may take to reach all processes. If a window ends
// meanwhile, a slow process may open one more of the old length.
const changeTime = 30 * time.Second

// adopts is client.adopts for a key, whose own length is known since its first fetch.
func (k *keyState) adopts(s backend.State, others, sent int64) bool {
	t := k.bound.Load()
	return k.l.adopts(t, s, others, cmp.Or(t.since, k.firstFetch, sent), sent)
}

// nextLength is the length of the window of s, which the key enters by a request of a limit
// with the length stated. A window of another length may be one more of the length that the
// window before had, of a process that goes on with it. Then it is the limit's own length: the
// next request states no other, and finds the conflict.
func (k *keyState) nextLength(s backend.State, stated time.Duration, others, sent int64) time.Duration {
	switch {
	case s.Length == 0:
		return stated
	case k.adopts(s, others, sent):
		return s.Length
	}
	return k.bound.Load().own()
}

// bound holds terms, which may be replaced.
type bound struct{ atomic.Pointer[terms] }

func (b *bound) limit() Limit { return b.Load().Limit }

// ownLimit is the limit with the length of the next window.
func (b *bound) ownLimit() Limit {
	t := b.Load()
	limit := t.Limit
	limit.Window = t.own()
	return limit
}

// openings returns what a request states of windows: the limit for one that opens now, the
// length of one that is open, if it is another, and the ends by the calendar.
func (b *bound) openings(w *lease.Lease, now int64) (limit Limit, open time.Duration, end, next backend.Window) {
	t := b.Load()
	if limit = b.ownLimit().Plain(); t.next != 0 {
		open = t.Window
	}
	end, next = calendarEnds(t.Limit, wall(w, now))
	return limit, open, end, next
}

// openedLocked records the length of the window that is open.
func (k *keyState) openedLocked(length time.Duration) {
	t := *k.bound.Load()
	if length == t.Window && t.next == 0 {
		return
	}
	if t.next, t.Window = t.own(), length; t.next == length {
		t.next = 0
	}
	if t != *k.bound.Load() {
		k.bound.Store(&t)
	}
}

// oldLocked reports whether to call WithLimits' function again, because another limit may
// matter to a request for n: n is larger than the limit, the limit is special, or the
// denial of the key is old.
func (k *keyState) oldLocked(n, now int64) bool {
	limit := k.limit()
	if k.deniedUntil != 0 && now >= k.use.recheck {
		k.use.recheck = now + int64(limit.Window)/probes
		return true
	}
	return n > limit.Tokens || k.plan != counted
}

// relimit asks for the present limit, from WithLimits or the calendar, and applies it, also
// to q, a statement in flight that was written under the old limit; q may be nil. It holds
// no lock while it calls the user's function. If that returned a block to another call
// meanwhile, its answer here may be older than the block, and does not count.
func (l *Limiter) relimit(k *keyState, q *backend.SyncRequest) (Limit, error) {
	if !l.varies() {
		return k.limit(), nil
	}
	asked := l.asks.Add(1)
	limit, err := l.ask(k.node.Key)
	if err == nil {
		k.event(func(now int64) (wanted int64) {
			wanted = unchanged
			if k.plan != blocked || planOf(limit) == blocked || asked > k.use.blocked {
				wanted = k.relimitLocked(limit, now)
			}
			if q != nil {
				q.Limit, q.OpenLength, q.End, q.Next = k.openings(k.lease.Load(), now)
				if clamp(q); k.plan != counted { // what it brought would only have to go back
					q.Want, q.Need, q.Least = 0, 0, 0
				}
			}
			return wanted
		})
	}
	return limit, err
}

// relimitLocked makes limit the key's limit. A caller in line that wants more gets
// ErrExceedsLimit or, in shadow, passes. An open window keeps its length. A special limit is
// kept in plan, beside the limit under which the account is stated, and answers the callers
// in line.
func (k *keyState) relimitLocked(limit Limit, now int64) int64 {
	w, was := k.lease.Load(), k.bound.Load()
	line := k.busy.callers()
	if k.plan = planOf(limit); k.plan != counted {
		k.usageLocked().blocked = k.l.asks.Load()
		line.Since(0, func(c *waiter) { line.Notify(c, k.specialLocked(c, limit)) })
		return 0
	}
	t := terms{Limit: limit.At(wall(w, now)), since: was.since}
	if t.Calendar != was.Calendar || t.Calendar.Period == 0 && t.Window != was.own() {
		t.since = max(now, 1)
	}
	if !w.Over(now) && t.Window != was.Window {
		t.Window, t.next = was.Window, t.Window
	}
	if t == *was {
		return unchanged
	}
	if w != nil && limit.Tokens > was.Tokens { // the store may have more now
		k.deniedUntil = 0
	}
	k.bound.Store(&t)
	line.Since(0, func(c *waiter) {
		switch {
		case c.N > limit.Tokens:
			var o outcome
			o.Result, o.err = k.tooMuchLocked(now)
			line.Notify(c, o)
		case limit.Shadow && c.Stays: // nobody waits for a limit in shadow
			line.Notify(c, outcome{err: errStartOver})
		}
	})
	return 0
}

// specialLocked is the outcome for a caller in line if the limit is special. A caller that
// stays starts over if it is refused.
func (k *keyState) specialLocked(c *waiter, limit Limit) (o outcome) {
	o.Result, _ = k.l.byPlan(limit)
	if !o.Allowed && (!c.Stays || limit.Shadow) {
		k.denied.Add(1)
	}
	return o
}

// tooMuchLocked is tooMuch for a key in memory.
func (k *keyState) tooMuchLocked(now int64) (Result, error) {
	r, err := k.l.tooMuch(k.limit())
	if w := k.lease.Load(); err == nil && w.Alive(now) {
		r.refuse(k, w, now, Denied) // the open window's end, which does not move
	}
	return r, err
}

// clamp adapts the wants of q, which was written under an older limit, to its limit.
func clamp(q *backend.SyncRequest) {
	most := q.Limit.Tokens
	q.Want, q.Need, q.Least, q.Pace = min(q.Want, most), min(q.Need, most), min(q.Least, most), min(q.Pace, most)
}

// adoptLocked takes over an open window of another length, as s has it, and reports whether
// the limit may count in it.
func (k *keyState) adoptLocked(s backend.State, others, sent, now int64) bool {
	if !k.adopts(s, others, sent) {
		return false
	}
	k.readLocked(s, s.Length, sent, now)
	return true
}

// conflictLocked remembers that the open window belongs to a limit of another length, until
// it ends or it is this process' turn to ask again.
func (k *keyState) conflictLocked(s backend.State, now int64) {
	pause := min(s.Length/probes, longestPause)
	if s.Left > 0 {
		pause = min(pause, s.Left)
	}
	k.usageLocked().conflict = now + int64(pause)
}

// readLocked applies a reading that came without the account, and enters its window, of
// that length.
func (k *keyState) readLocked(s backend.State, length time.Duration, sent, now int64) {
	if k.openedLocked(length); k.retired || s.Window == 0 {
		return
	}
	w := k.lease.Load()
	if w == nil || w.Window != s.Window {
		w = k.switchLocked(s.Window, now)
	}
	w.Apply(s, sent, now)
	k.foundLocked(s.Window, now)
}

// byPlan answers a request if the limit is special. The Reset of a blocked request is the
// next multiple of the window, so that it does not move.
func (l *Limiter) byPlan(limit Limit) (r Result, decided bool) {
	switch planOf(limit) {
	case unlimited:
		return Result{Allowed: true, Limit: limit.Tokens, Remaining: limit.Tokens}, true
	case blocked:
		limit.Window = cmp.Or(limit.Window, l.limit.Window, time.Minute)
		now := time.Now()
		r = Result{Source: Denied, Shadowed: limit.Shadow, Reset: now.Truncate(limit.Window).Add(limit.Window)}
		if limit.Calendar.Period != 0 {
			r.Reset = limit.Ends(now)
		}
		r.RetryAfter = r.Reset.Sub(now)
		return r, true
	}
	return r, false
}

// tooMuch answers a request for more tokens than the limit has. Waiting would not help, so
// it is an error; in shadow the request passes.
func (c *client) tooMuch(limit Limit) (Result, error) {
	if limit.Shadow {
		c.count.denied.Add(1)
		return Result{Shadowed: true, Source: Denied, Limit: limit.Tokens, Reset: limit.Ends(time.Now())}, nil
	}
	return Result{}, ErrExceedsLimit
}

// Package counter has the rules of one key in Go. A Counter keeps as one value what the
// scripts in package lua keep in three Redis keys. Its methods are pure steps: state,
// request and now (Unix us) come in, a reply goes out. They follow lua/*.lua line by line;
// a differential test in redisstore gives both the same requests.
package counter

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Counter is one key: its window, and the ledger of the clients' accounts in it. The
// zero Counter is a key that was never charged. A copy shares the ledger. A Counter is
// not safe for concurrent use; its replies do not refer to it.
type Counter struct {
	stop   int64 // the end of the window, Unix ms; 0 = never opened
	length int64 // of the limit that opened it, ms
	used   int64 // tokens charged in it
	ledger
}

// ledger is empty, and own is nil, until a statement or a reset needs it.
type ledger struct {
	own          map[string]account
	present      int64 // clients that have not left
	total        int64 // granted to all clients and returned by them, and their debt; it never shrinks
	learn        int64 // the end of the learning time, Unix ms: until then grants are small
	unattributed int64 // charged to no account; a client whose grant the ledger lacks may claim it
	exhausted    int64 // when the limit was first used up, Unix ms; 0 = not yet
	reset        bool  // Reset opened the window: statements about any other window are void
	idle         int64 // the sum of the accounts'
	recalls
}

// account is a client's ledger entry, cumulative in the window.
type account struct {
	granted, returned int64
	debt              int64 // used without a grant
	idle              int64 // it holds at most so many that nobody there waits for
	present           bool  // it has not left
	called            bool  // to return what is idle, and has not stated since
}

// slack is how much later than expected a window may end, because the clocks of two
// servers differ. A later end is a sign that the clock has stepped back.
func slack(length int64) int64 { return min(length/10, 1000) }

// latest is when a window of that length ends at the latest, Unix ms.
func latest(now, length int64) int64 { return (now+999)/1000 + length }

// opening is the end, in Unix ms, of a window that opens at now: end, by the client's
// calendar, or a length from now. The client's clock may be off, so an end that is over or
// impossibly late moves by whole lengths. Without a calendar, a window of whole seconds
// ends at a whole second, rounded down as GitHub's integer clock does.
func opening(now, length int64, end backend.Window) int64 {
	stop := int64(end)
	switch {
	case stop > 0 && stop*1000 <= now: // over by this clock: take the calendar's next end, or a later one
		return stop + ((now-stop*1000)/(length*1000)+1)*length
	case stop > 0:
		ahead := max(stop-latest(now, length)-slack(length), 0)
		return stop - (ahead+length-1)/length*length
	case length%1000 == 0:
		return now/1_000_000*1000 + length
	default:
		return latest(now, length)
	}
}

// Clone returns a copy that shares nothing with c.
func (c *Counter) Clone() Counter {
	next := *c
	next.own = maps.Clone(c.own)
	return next
}

// LoseLedger forgets the clients' accounts, as a store does that lost them and kept the
// count.
func (c *Counter) LoseLedger() { c.ledger = ledger{} }

// Opened reports whether c has, or had, a window.
func (c *Counter) Opened() bool { return c.stop != 0 }

// Open reports whether c has a window that is not over.
func (c *Counter) Open(now int64) bool { return c.stop != 0 && c.stop*1000 >= now }

// Past reports whether nothing is left of c at now.
func (c *Counter) Past(now int64) bool { return !c.Open(now) }

// enter moves c into the window that is open at now, or opens one of a request's limit. If
// the window ends impossibly late, the clock has stepped back: its end is brought back, so
// that nobody starves for longer than a window. It returns the window's length, as the
// request states it.
func (c *Counter) enter(now int64, q terms) (length int64) {
	if !c.Open(now) {
		stop := opening(now, q.length, q.end)
		length = q.length
		if int64(q.end)*1000 <= now && int64(q.next)*1000 > now { // the calendar's next period has begun
			stop, length = int64(q.next), q.period()
		}
		if c.closed(stop, length) { // after a reset, in the last millisecond of a period
			if length = q.length; q.period() > 0 {
				length = q.period()
			}
			stop += length
		}
		*c = Counter{stop: stop, length: length}
		return length
	}
	length, end := q.match(c.length), q.end
	if length != q.length {
		end = 0 // it is another limit's
	}
	if c.stop > latest(now, length)+slack(length) {
		*c = Counter{stop: opening(now, length, end), length: length, used: c.used}
	}
	return length
}

// terms are the lengths and ends that a request states, in ms.
type terms struct {
	length    int64 // of a window that opens now
	open      int64 // of the open window, if it is another; else 0
	end, next backend.Window
}

func termsOf(l backend.Limit, open time.Duration, end, next backend.Window) terms {
	return terms{l.Window.Milliseconds(), open.Milliseconds(), end, next}
}

// period is the length of the calendar's next period, or 0.
func (q terms) period() int64 { return max(int64(q.next-q.end), 0) }

// match returns the stated length that equals the one of a window, or the window's own.
// Redis keeps it as a time to live, which is inexact after a slot has moved, so lengths
// count as equal if they differ by no more than slack.
func (q terms) match(length int64) int64 {
	for _, stated := range [...]int64{q.length, q.open, q.period()} {
		if stated > 0 && max(length-stated, stated-length) <= slack(stated) {
			return stated
		}
	}
	return length
}

// accepts reports whether a window of that length, as match returns it, may be served.
func (q terms) accepts(length int64) bool {
	return length == q.length || length == q.open || length == q.period()
}

// closed reports whether a reset has closed the window that would end at stop: the fresh
// window ended a moment before stop.
func (c *Counter) closed(stop, length int64) bool {
	return c.stop != 0 && stop > c.stop && stop-c.stop < slack(length)
}

// Left is the time until the window's end; negative when it is over.
func (c *Counter) Left(now int64) time.Duration {
	return time.Duration(c.stop*1000-now) * time.Microsecond
}

// state is a reading for a request that states q, of a window of that length.
func (c *Counter) state(now int64, l backend.Limit, q terms, length int64) backend.State {
	s := backend.State{Window: backend.Window(c.stop), Remaining: max(l.Tokens-c.used, 0)}
	if c.stop != 0 {
		s.Left = c.Left(now)
	}
	if length != q.length {
		s.Length = time.Duration(length) * time.Millisecond
	}
	s.Conflict = !q.accepts(length)
	return s
}

// Take is the step of backend.Store.Take; the methods below are steps too. The request
// must be valid. Take charges all of r.Tokens, or changes nothing.
func (c *Counter) Take(r backend.TakeRequest, now int64) backend.TakeReply {
	next, q := *c, termsOf(r.Limit, r.OpenLength, r.End, r.Next)
	length := next.enter(now, q)
	if !q.accepts(length) {
		return backend.TakeReply{State: next.state(now, r.Limit, q, length)}
	}
	if next.used+r.Tokens > r.Limit.Tokens {
		return backend.TakeReply{State: next.state(now, r.Limit, q, length), Idle: next.idle > 0, Called: next.waits(now, length)}
	}
	next.used += r.Tokens
	*c = next
	return backend.TakeReply{State: next.state(now, r.Limit, q, length), Allowed: true}
}

// Check changes nothing.
func (c *Counter) Check(l backend.Limit, now int64) backend.State {
	if !c.Open(now) {
		return backend.State{Remaining: l.Tokens}
	}
	q := termsOf(l, 0, 0, 0)
	s := c.state(now, l, q, q.match(c.length))
	s.Conflict = false
	return s
}

// Settle changes nothing if another window is open, or none.
func (c *Counter) Settle(r backend.SettleRequest, now int64) backend.SettleReply {
	if !c.Open(now) || c.stop != int64(r.Window) {
		return backend.SettleReply{}
	}
	c.used = max(min(c.used+r.Tokens, backend.MaxTokens), 0)
	c.unattributed = max(c.unattributed+min(r.Tokens, 0), 0) // these may be the ones that are given back
	return backend.SettleReply{Open: true, Over: max(c.used-r.Limit, 0)}
}

// Reset changes nothing if no window is open. The new window's end is its name, so it must
// differ from the ends of the old window and of those that earlier Resets have closed.
// For that reason ends that lie close together go down by milliseconds. Names differ as
// long as ends do not go back by more than the slack.
func (c *Counter) Reset(r backend.ResetRequest, now int64) backend.State {
	q := termsOf(r.Limit, r.OpenLength, r.End, r.Next)
	if !c.Open(now) {
		return c.Check(r.Limit, now)
	} else if length := q.match(c.length); !q.accepts(length) {
		return c.state(now, r.Limit, q, length)
	}
	length := q.length
	stop := opening(now, length, r.End)
	if int64(r.End)*1000 <= now && int64(r.Next)*1000 > now {
		stop, length = int64(r.Next), q.period()
	}
	if next := int64(r.Next); stop != next && stop*1000-now <= slack(length)*1000 && max(c.stop-next, next-c.stop) <= slack(length) {
		stop, length = c.stop, q.period() // the next period was opened a moment early, and stop names one that is void
	}
	if max(stop-c.stop, c.stop-stop) < max(slack(length), 1) {
		stop = min(stop, c.stop-1)
	}
	if stop*1000 < now { // in the last millisecond: the next period's
		if q.period() > 0 {
			length = q.period()
		}
		stop += length
	}
	*c = Counter{stop: stop, length: length, ledger: ledger{reset: true}}
	c.open()
	return c.state(now, r.Limit, q, length)
}

// Contents changes nothing.
func (c *Counter) Contents(now int64) backend.Contents {
	if !c.Open(now) {
		return backend.Contents{}
	}
	out := backend.Contents{Window: backend.Window(c.stop), Used: c.used, Left: c.Left(now), Idle: c.idle}
	for name, a := range c.own {
		out.Clients = append(out.Clients, backend.Account{Client: name, Granted: a.granted, Returned: a.returned, Idle: a.idle})
	}
	slices.SortFunc(out.Clients, func(a, b backend.Account) int { return strings.Compare(a.Client, b.Client) })
	return out
}

// Package counter is the rules of one key, for stores that have them in Go: what
// the scripts in package lua keep in three Redis keys, as one value. Its methods
// are pure steps: state, request and now (Unix us) in, reply out. They follow
// lua/*.lua line by line; a differential test in redisstore gives both the same
// requests.
package counter

import (
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Counter is one key: its window, and the ledger of who was granted what in it.
// The zero Counter is a key that was never charged. A copy is not independent: the
// ledger is shared. Not safe for concurrent use; a reply refers to nothing in it.
type Counter struct {
	stop   int64 // the end of the window, Unix ms; 0 = never opened
	length int64 // of the limit that opened it, ms
	used   int64 // tokens charged in it
	ledger
}

// ledger is empty, and own is nil, until a client speaks in the window.
type ledger struct {
	own          map[string]account
	present      int64 // clients that have not left
	total        int64 // granted to all clients and returned by them, and their debt; it never shrinks
	learn        int64 // until then, Unix ms, grants are small
	unattributed int64 // charged, and whoever can show a grant that the ledger lacks may claim it
	exhausted    int64 // when the limit was first used up, Unix ms; 0 = it is not
	reset        bool  // the window was opened by Reset: what is said of any other one is void
}

// account is a client's ledger entry, cumulative in the window.
type account struct {
	granted, returned int64
	debt              int64 // used without a grant
	refunded          int64 // of direct charges, by Refund
	present           bool  // it has not left
}

// slack is how much later than expected a window may end before that counts as a
// sign that the clock stepped back: the clocks of two servers differ.
func slack(length int64) int64 { return min(length/10, 1000) }

// latest is when a window of that length ends at the latest, Unix ms.
func latest(now, length int64) int64 { return (now+999)/1000 + length }

// opening is where a window ends that opens at now: at end, by the client's calendar,
// or a length from now. A client's clock may be off: of an end that is over, or later than
// can be, the calendar has one that is not, some lengths away. A window of whole seconds
// without a calendar ends at a whole second, rounded down as GitHub's integer clock does.
func opening(now, length int64, end backend.Window) int64 {
	stop := int64(end)
	switch {
	case stop > 0 && stop*1000 <= now: // over by this clock: the calendar's next, or one after it
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

// Opened reports whether c has, or had, a window.
func (c *Counter) Opened() bool { return c.stop != 0 }

// Open reports whether c has a window that is not over.
func (c *Counter) Open(now int64) bool { return c.stop != 0 && c.stop*1000 >= now }

// enter moves c into the window that is open at now. If none is, one opens. One
// that ends impossibly late is brought back, since the clock has stepped back:
// nobody starves for longer than a window. In the millisecond that a reset left of a
// period the next one opens, and l gets its length.
func (c *Counter) enter(now int64, l *backend.Limit, end, next backend.Window) {
	length, opened := l.Window.Milliseconds(), c.length
	if between := int64(next - end); !c.Open(now) && int64(end)*1000 <= now && int64(next)*1000 > now && max(between-length, length-between) > slack(length) {
		*c = Counter{length: between} // which conflicts: the client is told, and comes again
		return
	}
	if !c.conflicts(*l) {
		opened = length
	}
	switch {
	case !c.Open(now):
		stop := opening(now, length, end)
		if c.closed(stop, length) {
			length = after(l, end, next)
			stop += length
		}
		*c = Counter{stop: stop, length: length}
	case c.stop > latest(now, opened)+slack(opened):
		if opened != length {
			end = 0 // of another calendar
		}
		*c = Counter{stop: opening(now, opened, end), length: opened, used: c.used}
	}
}

// closed reports whether the window that would end at stop is the one that a reset has
// closed: the fresh one ended a moment before.
func (c *Counter) closed(stop, length int64) bool {
	return c.stop != 0 && stop > c.stop && stop-c.stop < slack(length)
}

// after makes l the limit of the period after the one that ends at end, and returns its
// length in ms. Without a calendar that is l's.
func after(l *backend.Limit, end, next backend.Window) int64 {
	if next > end {
		l.Window = time.Duration(next-end) * time.Millisecond
	}
	return l.Window.Milliseconds()
}

// Left is the time until the window's end; negative when it is over.
func (c *Counter) Left(now int64) time.Duration {
	return time.Duration(c.stop*1000-now) * time.Microsecond
}

// conflicts reports whether the window belongs to a limit of another length. Redis
// keeps the length as a time to live, which is not exact any more once a slot has moved:
// lengths that differ by no more than clocks may differ are the same.
func (c *Counter) conflicts(l backend.Limit) bool {
	length := l.Window.Milliseconds()
	return max(c.length-length, length-c.length) > slack(length)
}

func (c *Counter) state(now int64, l backend.Limit) backend.State {
	s := backend.State{Window: backend.Window(c.stop), Remaining: max(l.Tokens-c.used, 0)}
	if c.stop != 0 {
		s.Left = c.Left(now)
	}
	if c.conflicts(l) {
		s.Length = time.Duration(c.length) * time.Millisecond
	}
	return s
}

// Take is the step of backend.Store.Take, and so are the following of theirs. The
// request is valid. It charges all of r.Tokens, or nothing and changes nothing.
func (c *Counter) Take(r backend.TakeRequest, now int64) backend.TakeReply {
	next := *c
	next.enter(now, &r.Limit, r.End, r.Next)
	if next.conflicts(r.Limit) || next.used+r.Tokens > r.Limit.Tokens {
		return backend.TakeReply{State: next.state(now, r.Limit)}
	}
	next.used += r.Tokens
	*c = next
	return backend.TakeReply{State: next.state(now, r.Limit), Allowed: true}
}

// Check changes nothing.
func (c *Counter) Check(l backend.Limit, now int64) backend.State {
	if !c.Open(now) {
		return backend.State{Remaining: l.Tokens}
	}
	return c.state(now, l)
}

// Refund returns the total that the client has given back.
func (c *Counter) Refund(r backend.RefundRequest, now int64) int64 {
	if !c.Open(now) || c.stop != int64(r.Window) {
		return 0
	}
	acc := c.own[r.Client]
	if r.Total <= acc.refunded {
		return acc.refunded
	}
	if c.own == nil { // nobody but direct callers was charged, or the ledger was lost
		c.unattributed = c.used
		c.open()
	}
	back := min(r.Total-acc.refunded, c.used)
	c.used -= back
	c.unattributed = max(c.unattributed-back, 0) // which of them was given back is not known
	acc.refunded = r.Total
	c.own[r.Client] = acc
	return r.Total
}

// Reset changes nothing if no window is open. The end of the new one is its name, which
// differs from the old one's. So does it from those that earlier Resets have closed, as
// long as ends do not go back by more than the slack: that is why ends that lie close
// together go down by milliseconds.
func (c *Counter) Reset(r backend.ResetRequest, now int64) backend.State {
	if !c.Open(now) || c.conflicts(r.Limit) {
		return c.Check(r.Limit, now)
	}
	length := r.Limit.Window.Milliseconds()
	stop := opening(now, length, r.End)
	if max(stop-c.stop, c.stop-stop) < max(slack(length), 1) {
		stop = min(stop, c.stop-1)
	}
	if stop*1000 < now { // in the last millisecond: the calendar's next
		length = after(&r.Limit, r.End, r.Next)
		stop += length
	}
	*c = Counter{stop: stop, length: length, ledger: ledger{reset: true}}
	c.open()
	return c.state(now, r.Limit)
}

// Contents changes nothing.
func (c *Counter) Contents(now int64) backend.Contents {
	if !c.Open(now) {
		return backend.Contents{}
	}
	out := backend.Contents{Window: backend.Window(c.stop), Used: c.used, Left: c.Left(now)}
	for name, a := range c.own {
		out.Clients = append(out.Clients, backend.Account{Client: name, Granted: a.granted, Returned: a.returned})
	}
	slices.SortFunc(out.Clients, func(a, b backend.Account) int { return strings.Compare(a.Client, b.Client) })
	return out
}

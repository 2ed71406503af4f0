// Package denial says until when a key refuses requests from memory, and until when its callers in line wait for tokens that others
// give back. It is pure: times, in nanoseconds of the caller's clock, and readings come in.
package denial

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/invariant"
)

// State is what a caller whom the stock does not serve can expect.
//
//	        Await: others were called          Deny
//	Open ------------------------> Recalled ----------> Denied
//	 ^ <--------------------------- |                     |
//	 |   Await: served, Reset       |                     |
//	 +----------------------------------------------------+
//	                           Open, Await, Reset
//
// A reply may also lead from Denied to Recalled, and anything from Open to Denied. Hold leads from each to Held, which only Expire and Reset
// end: whatever comes back, it is not granted.
type State uint8

// The states.
const (
	Open     State = iota // the store may have more: it is asked
	Recalled              // the store has called tokens that lie idle elsewhere: callers in line wait for them until Ask
	Denied                // until Until the store surely has too little for some caller: it is refused from memory
	Held                  // until Until the store grants nothing to anybody, and nothing at hand is spent
)

// Denial is the state of one key. The zero Denial is open. Its methods, and nothing else, write its fields; the owner reads them, under its
// lock, too. It is not safe for concurrent use.
type Denial struct {
	State   State
	Until   int64 // how long it is Denied or Held; 0 otherwise. After that a Denied one still refuses, and a caller whom it refuses causes a probe
	Look    int64 // when to look whether it is still Held: the message of a Reset may be lost
	Ask     int64 // when those who were called should have answered; 0 = nobody was. It outlasts a denial, because a probe asks for their tokens, too
	Recheck int64 // when a refused key asks for its limit again; a Reset leaves it as it is

	// The recall, for which callers in line wait.
	asks int8  // statements in vain since it began
	from int64 // the first reply in vain: the wait for it begins
	ends int64 // the wait for it ends
}

// Times is how often in a window all refused processes together ask the store, and each asks for its limit.
const Times = 20

// to changes the state.
func (d *Denial) to(s State, until int64) {
	d.State, d.Until = s, until
	invariant.That((s >= Denied) == (until != 0), "state %d until %d", s, until)
	invariant.That(s != Recalled || d.Ask != 0, "nobody was called, and callers wait")
}

// Open ends a denial: the store may have more. Callers in line go on waiting for those who were called.
func (d *Denial) Open() {
	if d.State == Denied {
		d.to(Open, 0)
	}
}

// Reset forgets all, because nothing is known of the window any more.
func (d *Denial) Reset() { *d = Denial{Recheck: d.Recheck} }

// Hold holds until an instant, and looks after a window whether that is still true.
func (d *Denial) Hold(now, until int64, window time.Duration) {
	if d.State != Held {
		d.Ask, d.asks, d.Look = 0, 0, now+int64(window)
		d.Recheck = max(d.Recheck, now+int64(window)/Times)
	}
	d.to(Held, until)
}

// Expire ends a hold that is over, and reports whether it does.
func (d *Denial) Expire(now int64) bool {
	over := d.State == Held && now >= d.Until
	if over {
		d.to(Open, 0)
	}
	return over
}

// Deny denies until ends at the latest, or until it is this process' turn to probe, if that is before. These times are random, with the mean
// between two of them.
func (d *Denial) Deny(now, ends int64, mean, window time.Duration) {
	if d.State == Held {
		return
	}
	until := ends
	if at := chance.Interval(mean); at < time.Duration(ends-now) {
		until = now + int64(at)
	}
	if now < d.Ask { // tokens may come back from others
		until = min(until, d.Ask)
	}
	d.to(Denied, until)
	if d.Recheck <= now {
		d.Recheck = now + int64(window)/Times
	}
}

// Probe reports whether a caller that is refused now shall cause a probe, because the denial is over, and puts off the next one.
func (d *Denial) Probe(now int64, window time.Duration) bool {
	invariant.That(d.State >= Denied, "a probe in state %d", d.State)
	if d.State == Held {
		due := now >= d.Look
		if due {
			d.Look = now + int64(window)
		}
		return due
	}
	if now < d.Until {
		return false
	}
	d.Until = now + int64(window)/Times
	return true
}

// AskLimit reports whether a refused key shall ask for its limit before it decides, because another limit may hold by now.
func (d *Denial) AskLimit(now int64, window time.Duration) bool {
	if d.State < Denied || now < d.Recheck {
		return false
	}
	d.Recheck = now + int64(window)/Times
	return true
}

// Waited reports whether a statement at now has given those who were called time to answer, and gaveUp whether it waits for them no
// longer. A statement that comes as long after the end as the wait was has other callers, who have not begun to wait.
func (d *Denial) Waited(now int64) (waited, gaveUp bool) {
	waited = d.Ask > 0 && now >= d.Ask
	return waited, waited && d.asks > 0 && now >= d.ends && now <= d.ends+(d.ends-d.from)
}

// Reply is what a reply says of tokens that lie idle elsewhere.
type Reply struct {
	Trip     time.Duration // from its statement's sending
	Some     bool          // it brought tokens, or is about another window: there may be more
	Served   bool          // nobody lies idle, or callers have what they need
	Called   bool          // some were called and may still answer
	InVain   bool          // it brings less than callers need
	GaveUp   bool          // its statement waited no longer
	Patience time.Duration // how long callers wait at most: those who have died must not keep the others from being refused
}

// mostAsks is how many statements in vain there are at most while callers wait.
const mostAsks = 4

// apart is by which factor each of them comes later than the one before, at least.
const apart = 3

// answerTime is what a process on a busy machine needs to hear a call and to answer it, however near the store is.
const answerTime = 2 * time.Millisecond

// Await reports whether callers in line that a reply at now does not serve may get tokens that the store calls back from others, and sets
// the time to ask for them.
//
// The asks of one wait are, for a patience of 100 ms, so many ms after the first reply in vain, and their number:
//
//	near (trips of 0.5 ms)    1   7   27   100
//	far  (trips of 30 ms)     19  100
//
// The first comes when a called process can have answered. The others divide the rest of the patience so that each comes by the same
// factor later than the one before, but three times as late at least, and the last one at the end: it says that this process gives up. So
// a slow answer is found soon, a lost message is repeated early, and a thousand processes that all want tokens ask four times each.
func (d *Denial) Await(r Reply, now int64) bool {
	if d.State == Held {
		return false
	}
	if r.Served {
		*d = Denial{Recheck: d.Recheck}
		return false
	}
	// Half of a round trip of ours and up to a quarter more, at random, so that not all who want them ask at one instant. The next
	// statement takes half of one to the store, as the reply did from there, so a holder has one and a half.
	trip, patience := max(r.Trip, answerTime), int64(r.Patience)
	wait := min(int64(trip*3/4-chance.Part(trip/4)), patience)
	if r.Some || now > d.ends+patience { // what has come may not be all; or the last wait was for other callers
		d.asks = 0
	}
	if !r.InVain && !r.Called { // the next statement calls them
		d.Ask = 0
		d.to(Open, 0)
		return true
	}
	if d.Ask = now + wait; !r.InVain {
		d.to(Recalled, 0)
		return true
	}
	if d.asks == 0 {
		d.from, d.ends = now, now+patience
	}
	if d.asks = min(d.asks+1, mostAsks+5); r.GaveUp || d.asks > mostAsks { // probes of a key that refuses come ever more rarely
		d.Ask = now + wait<<max(d.asks-mostAsks, 0)
		d.to(Recalled, 0)
		return false
	}
	if d.asks > 1 {
		passed, left := float64(max(now-d.from, wait)), float64(mostAsks-d.asks+1) // asks that are left
		factor := max(math.Pow(float64(patience)/passed, 1/left), apart)
		d.Ask = max(d.from+int64(min(factor*passed, float64(patience))), now+1)
	}
	d.to(Recalled, 0)
	return true
}

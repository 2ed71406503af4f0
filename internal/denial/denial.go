// Package denial says until when a key refuses requests from memory, and until when its callers in line wait for tokens that others
// give back. It is pure: times, in nanoseconds of the caller's clock, and readings come in.
package denial

import (
	"time"

	"github.com/go-reservoir/reservoir/internal/chance"
)

// Denial is in one of three states. Open: the store may have more, so a caller asks it. Denied: until an instant the store surely has
// too little for some caller. Recalled: the store has called tokens that lie idle elsewhere, and callers in line wait for them until the next
// statement. The zero Denial is open. It is not safe for concurrent use.
type Denial struct {
	until int64 // denied until then, and 0 if not

	again int64 // recalled: when to ask again; 0 = not
	asked int8  // statements for the line since the store called others, which did not serve it
	ends  int64 // how long callers in line wait for those who were called

	recheck int64 // when a refused key asks for its limit again
}

// Times is how often in a window all refused processes together ask the store, and each asks for its limit.
const Times = 20

// told is how much more rarely a key probes that has been told that the limit is used up: it
// is told of tokens that come back, too, unless the message is lost or many wait for it.
const told = 4

// Until is until when the store surely has too little for some caller; 0 = ask the store.
func (d *Denial) Until() int64 { return d.until }

// Recheck is when a refused key asks for its limit again.
func (d *Denial) Recheck() int64 { return d.recheck }

// Again is until when callers in line wait for tokens that the store has called; 0 = they do not.
func (d *Denial) Again() int64 { return d.again }

// Open ends a denial: the store may have more.
func (d *Denial) Open() { d.until = 0 }

// Reset forgets all, because nothing is known of the window any more.
func (d *Denial) Reset() { *d = Denial{recheck: d.recheck} }

// Deny denies until ends at the latest, or until it is this process' turn to probe, if that is before. Turns are random, with turn as the
// mean between two of them.
func (d *Denial) Deny(now, ends int64, turn, window time.Duration) {
	d.until = ends
	if at := chance.Interval(turn); at < time.Duration(ends-now) {
		d.until = now + int64(at)
	}
	if now < d.again { // tokens may come back from others
		d.until = min(d.until, d.again)
	}
	if d.recheck <= now {
		d.recheck = now + int64(window)/Times
	}
}

// Told is Deny because a message has said that the limit is used up.
func (d *Denial) Told(now, ends int64) { d.until = min(now+told*(d.until-now), ends) }

// Probe reports whether a caller that is refused now shall cause a probe, because the denial is over, and puts off the next one.
func (d *Denial) Probe(now int64, window time.Duration) bool {
	if now < d.until {
		return false
	}
	d.until = now + int64(window)/Times
	return true
}

// AskLimit reports whether a refused key shall ask for its limit before it decides, because another limit may hold by now.
func (d *Denial) AskLimit(now int64, window time.Duration) bool {
	if d.until == 0 || now < d.recheck {
		return false
	}
	d.recheck = now + int64(window)/Times
	return true
}

// Waited reports whether a statement at now has given those who were called time to answer, and gaveUp whether it waits for them no
// longer, if callers wait for longest at most.
func (d *Denial) Waited(now int64, longest time.Duration) (waited, gaveUp bool) {
	waited = d.again > 0 && now >= d.again
	return waited, waited && d.asked > 0 && now >= d.ends && now <= d.ends+int64(longest) // else it has not begun to wait
}

// Reply is what a reply says of tokens that lie idle elsewhere.
type Reply struct {
	Trip    time.Duration // from its statement's sending
	Some    bool          // it brought tokens, or is about another window: there may be more
	Served  bool          // nobody lies idle, or callers have what they need
	Called  bool          // some were called and may still answer
	InVain  bool          // it brings less than callers need
	GaveUp  bool          // its statement waited no longer
	Longest time.Duration // how long callers wait at most: those who have died must not keep the others from being refused
}

// mostAsks is how many statements at most ask for tokens that the store has called from others, until the last one.
const mostAsks = 4

// LeastPatience is what a process on a busy machine needs to hear a call and to answer it,
// however near the store is.
const LeastPatience = 2 * time.Millisecond

// Await reports whether callers in line that a reply at now does not serve may get tokens that the store calls back from others, and sets
// the time to ask for them.
func (d *Denial) Await(r Reply, now int64) bool {
	if r.Served {
		d.asked, d.again, d.ends = 0, 0, 0
		return false
	}
	// Half of a round trip of ours and up to a quarter more, at random, so that not all who want them ask at one instant. The next
	// statement takes half of one to the store, as the reply did from there, so a holder has one and a half.
	trip, longest := max(r.Trip, LeastPatience), int64(r.Longest)
	wait := min(int64(trip*3/4-chance.Part(trip/4)), longest)
	if r.Some || now > d.ends+longest {
		d.asked = 0
	}
	if !r.InVain {
		if d.again = now + wait; !r.Called {
			d.again = 0 // the next statement calls them
		}
		return true
	}
	if d.asked == 0 {
		d.ends = now + longest
	}
	d.asked = min(d.asked+1, mostAsks+5)
	switch {
	case r.GaveUp || d.asked > mostAsks: // probes of a key that refuses come ever more rarely
		d.again = now + wait<<max(d.asked-mostAsks, 0)
		return false
	case d.asked == mostAsks:
		wait = d.ends - now
	case d.asked > 2:
		wait *= 3
	case d.asked == 2: // as the reply was sent, those who did not answer were called again
		wait = max(int64(r.Trip/4), int64(LeastPatience-r.Trip))
	}
	d.again = min(now+wait, max(d.ends, now+1))
	return true
}

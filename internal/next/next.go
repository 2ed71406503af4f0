// Package next makes the one decision of a key: what to do now, and when to look again.
//
// It is pure. Facts about a key come in; a cause for a store call, or a time, comes
// out. Nothing else in the library decides on a fetch or on a key's timer.
package next

import "math"

// Cause is why a store call is made. Hooks receive its text.
type Cause string

// The causes, by priority.
const (
	None     Cause = ""          // nothing to do now
	Waiters  Cause = "wait"      // callers wait for tokens
	Hold     Cause = "hold"      // the key is held, and the store has not heard of it
	Charge   Cause = "charge"    // tokens were used that the store has not charged yet
	Return   Cause = "give back" // tokens will not be used, or their return is not confirmed
	Probe    Cause = "probe"     // has anything come back to an exhausted key?
	Reset    Cause = "reset"     // the window is over and the key was in use
	Renew    Cause = "renew"     // the last bucket of a rolling limit is about to end: ask for later ones
	Prefetch Cause = "prefetch"  // the stock has fallen to the re-order point
	Reopen   Cause = "reopen"    // does a shard answer again? Made by the shard, not by a key
)

// Class says how urgent a call is. A key stands in the line of one class of its shard at most.
type Class uint8

const (
	_       Class = iota // of a key: it stands in no line
	Rest                 // the time has caused it, so many keys may want such a call at once
	Callers              // callers stay in line for it, or will soon need it, here or elsewhere
	AtOnce               // a request waits for it, or has just caused it: it is made at once
)

// Never is later than any time.
const Never = math.MaxInt64 / 2

// Facts describes a key at one instant. Times are nanoseconds of the key's clock. The zero
// Facts is a key that nobody uses.
type Facts struct {
	Now int64

	// What forbids a call.
	Closed   bool  // its limiter is closed
	InFlight bool  // a fetch is in flight; there is one at a time
	Open     bool  // the circuit of its shard is open
	Ask      int64 // when to look whether the circuit is still open, for callers who stay
	InLine   Class // the line in which the key stands
	Backoff  int64 // after a failed fetch, the earliest time of the next
	Rejected bool  // the last fetch was rejected: callers in line do not wait for Backoff

	// What callers want.
	Active  int   // callers in line whom a fetch may serve
	Passing int   // the active callers that do not stay until a reset
	Parked  int   // callers in line that stay until the reset
	Recall  int64 // until when callers in line wait for tokens that others give back
	Ending  bool  // a fetch has just found the old window, though it is over by our clock
	Denied  int64 // until when the store surely has too little; 0 = it may have more
	Held    bool  // it grants nothing until then, whatever window is open
	Unsaid  bool  // and it does not know that yet
	Probe   bool  // a caller was refused after Denied

	// The account.
	Charge      int64 // when to state debt at the latest; 0 = the store has confirmed all
	Unconfirmed bool  // the store has not confirmed all returned tokens

	// The window. Over is when it is surely over; 0 = no window is known.
	Alive   bool  // its tokens may be spent
	Over    int64 // when a request opens the next window
	Spread  int64 // delay after Over, so that processes do not all call at once
	Used    bool  // the key was used in the window; a rolling limit has no reset, so neither it nor Regular is set
	Regular bool  // it is used often enough to look ahead
	Renew   int64 // of a rolling limit, when to ask for the next buckets; 0 = no need

	// The stock.
	Low      bool  // the stock is at the re-order point and the store has more
	Surplus  int64 // tokens that are worth giving back now
	Recalled bool  // callers elsewhere wait for the surplus, or to learn that there is none
	Look     int64 // when to look for a surplus again; 0 = no need
}

// Step returns why the key should call the store now, and how urgent that is. If it returns None, it also returns when to look again, unless an
// event comes before. While the key stands in line, it returns only a cause that is more urgent.
//
//	callers wait > hold > debt that is due > returns > probe > window over and used > last bucket > surplus > re-order point
//
// Every call states the whole account, so the order decides how urgent the call is, and what it asks for. Callers come first, because they
// wait. What only states comes before what asks for tokens: a prefetch in place of a return would bring back here what others have called.
func Step(f Facts) (why Cause, class Class, again int64) {
	if f.Closed || f.InFlight { // the fetch's end is an event
		return None, 0, Never
	}
	waits := f.Active > 0 || f.Parked > 0 && !f.Held
	if f.Open { // the key lines up, whatever the time is, and decides anew at its turn, when the circuit has closed
		switch { // only callers go before the rest: many keys may run low, or be called, in an outage
		case waits && f.InLine < Callers:
			return Waiters, Callers, Never
		case waits: // the failure policy may admit those who stay when another window begins
			return None, 0, f.Ask
		case f.InLine != 0:
		case f.Unsaid:
			return Hold, Rest, Never
		case f.Charge != 0:
			return Charge, Rest, Never
		case f.Unconfirmed:
			return Return, Rest, Never
		case f.Low && f.Alive:
			return Prefetch, Rest, Never
		}
		if f.Held {
			return None, 0, f.Denied
		}
		return None, 0, Never
	}

	// due reports whether to make a call now that is wanted from when on; not if the key stands in line for one that is as urgent.
	again = Never
	due := func(class Class, when int64) bool {
		if f.Now < when {
			again = min(again, when)
			return false
		}
		return class > f.InLine
	}

	// Callers in line. Those that do not stay need a fetch at once, even after a failure. The others can wait for the store to recover, unless
	// an operator must act, about which they hear now. All can wait for the old window's end, and for tokens that others give back.
	if f.Active > 0 {
		class, when := Callers, f.Backoff
		if f.Rejected {
			when = 0
		}
		if f.Passing > 0 {
			class, when = AtOnce, 0
		}
		switch {
		case f.Ending && f.Now <= f.Over:
			when = f.Over + resolution
		case f.Now < f.Recall:
			when = f.Recall
		}
		if due(class, when) {
			return Waiters, class, Never
		}
	}
	if f.Parked > 0 { // they become active when the denial is over
		when := min(f.Denied, f.Over+1+f.Spread/4) // before processes that only restock
		if f.Held {
			when = f.Denied
		}
		again = min(again, max(f.Now+1, when, f.Backoff))
	}

	// A hold. All others may send until the store knows.
	if f.Unsaid {
		if due(AtOnce, f.Backoff) {
			return Hold, AtOnce, Never
		}
		again = min(again, f.Denied) // nobody waits longer until the store has heard
	}

	// The account, while its window is open.
	back := Rest
	if f.Recalled {
		back = Callers // who wait elsewhere
	}
	if f.Charge != 0 && due(Rest, max(f.Charge, f.Backoff)) {
		return Charge, Rest, Never
	}
	if f.Unconfirmed && due(back, f.Backoff) {
		return Return, back, Never
	}
	if f.Probe && due(AtOnce, f.Backoff) {
		return Probe, AtOnce, Never
	}

	// What a key in use does before its callers need it. Nothing is spent or returned of a window that is over.
	if f.Over == 0 {
		return None, 0, again
	}
	if f.Now > f.Over {
		if f.Regular && f.Used && due(Rest, max(f.Backoff, f.Over+f.Spread)) {
			return Reset, Rest, Never
		}
		return None, 0, again
	}
	if f.Regular {
		again = min(again, f.Over+1+f.Spread)
	}
	if f.Renew != 0 && f.Alive && due(Rest, max(f.Renew, f.Backoff)) {
		return Renew, Rest, Never
	}
	if (f.Surplus > 0 || f.Recalled && f.Alive) && due(back, f.Backoff) { // also if there is nothing, or callers elsewhere would wait for it
		return Return, back, Never
	}
	if f.Look != 0 {
		again = min(again, max(f.Look, f.Now+1))
	}
	if f.Low && f.Alive && due(Callers, f.Backoff) {
		return Prefetch, Callers, Never
	}
	return None, 0, again
}

// resolution is the unit of the store's window ends. A window that is over here may be
// open there for that much longer.
const resolution = int64(1e6)

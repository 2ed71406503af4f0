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
	Low     bool  // the stock is at the re-order point and the store has more
	Surplus int64 // tokens that are worth giving back now
	Called  bool  // callers elsewhere wait for the surplus, or to learn that there is none
	Look    int64 // when to look for a surplus again; 0 = no need
}

// Step returns why the key should call the store now or, while the circuit is open, when the
// shard is back. If it returns None, it also returns when to look again, unless an event
// comes before. While the key stands in line, it returns only a cause that is more urgent.
//
//	callers wait > debt that is due > returns > probe > window over and used > last bucket > surplus > re-order point
func Step(f Facts) (Cause, int64) {
	if f.Closed || f.InFlight {
		return None, Never
	}
	at := int64(Never)
	decisions := [...]func(Facts) (Cause, int64){forCallers, forAccount, ahead}
	if f.Open {
		decisions = [...]func(Facts) (Cause, int64){callersAgain, accountAgain, aheadAgain}
	}
	for _, decide := range decisions {
		why, again := decide(f)
		if why != None && f.Class(why) > f.InLine {
			return why, Never
		}
		at = min(at, again)
	}
	return None, at
}

// Class returns the class of a call for that cause. While the circuit is open, only callers who
// wait go before the rest: many keys may run low, or be called, in an outage.
func (f Facts) Class(why Cause) Class {
	switch {
	case why == Waiters && f.Passing > 0 && !f.Open, why == Probe:
		return AtOnce
	case why == Waiters, (why == Prefetch || why == Return && f.Called) && !f.Open:
		return Callers
	}
	return Rest
}

// callersAgain is forCallers while the circuit is open. The failure policy may admit callers
// who stay when another window begins, so their key looks now and then.
func callersAgain(f Facts) (Cause, int64) {
	if f.Active > 0 || f.Parked > 0 {
		return Waiters, f.Ask
	}
	return None, Never
}

// accountAgain is forAccount while the circuit is open.
func accountAgain(f Facts) (Cause, int64) {
	switch {
	case f.Charge != 0:
		return Charge, Never
	case f.Unconfirmed:
		return Return, Never
	}
	return None, Never
}

// aheadAgain is ahead while the circuit is open.
func aheadAgain(f Facts) (Cause, int64) {
	if f.Low && f.Alive {
		return Prefetch, Never
	}
	return None, Never
}

// forCallers decides for callers in line. Those that do not stay need a fetch at once, even
// after a failure. The others can wait for the store to recover, for tokens that come
// back to it, or for the reset.
func forCallers(f Facts) (Cause, int64) {
	at := int64(Never)
	if f.Active > 0 {
		switch {
		case f.Ending && f.Now <= f.Over:
			at = f.Over + resolution
		case f.Now < f.Recall:
			at = f.Recall
		case f.Passing > 0 || f.Rejected || f.Now >= f.Backoff:
			return Waiters, at
		default:
			at = f.Backoff
		}
	}
	if f.Parked > 0 { // they become active when the denial is over
		at = min(at, max(f.Now+1, min(f.Denied, f.Over+1+f.Spread/4), f.Backoff)) // before processes that only restock
	}
	return None, at
}

// resolution is the unit of the store's window ends. A window that is over here may be
// open there for that much longer.
const resolution = int64(1e6)

// forAccount decides on debt, returned tokens and probes, while their window is open.
func forAccount(f Facts) (Cause, int64) {
	due := f.Charge != 0 && f.Now >= f.Charge
	switch {
	case !due && !f.Unconfirmed && !f.Probe:
		if f.Charge != 0 {
			return None, f.Charge
		}
		return None, Never
	case f.Now < f.Backoff:
		return None, f.Backoff
	case due:
		return Charge, Never
	case f.Unconfirmed:
		return Return, Never
	}
	return Probe, Never
}

// ahead decides what a key in use does before its callers need it.
func ahead(f Facts) (Cause, int64) {
	if f.Over == 0 {
		return None, Never
	}
	if f.Now > f.Over {
		switch {
		case !f.Regular || !f.Used:
			return None, Never
		case f.Now < max(f.Backoff, f.Over+f.Spread):
			return None, max(f.Backoff, f.Over+f.Spread)
		}
		return Reset, Never
	}
	at := int64(Never)
	if f.Regular {
		at = f.Over + 1 + f.Spread
	}
	if f.Renew != 0 && f.Alive {
		if f.Now >= max(f.Renew, f.Backoff) {
			return Renew, Never
		}
		at = min(at, max(f.Renew, f.Backoff))
	}
	if f.Surplus > 0 || f.Called && f.Alive { // or callers elsewhere would wait for what is not there
		if f.Now >= f.Backoff {
			return Return, Never
		}
		at = min(at, f.Backoff)
	}
	if f.Look != 0 {
		at = min(at, max(f.Look, f.Now+1))
	}
	if f.Low && f.Alive {
		if f.Now >= f.Backoff {
			return Prefetch, Never
		}
		at = min(at, f.Backoff)
	}
	return None, at
}

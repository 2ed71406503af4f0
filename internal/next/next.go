// Package next is the one decision of a key: what to do now, and when to look again.
//
// It is pure. Facts about a key come in; a cause for a store call, or a time, comes
// out. Nothing else in the library starts a fetch or sets a key's timer.
package next

import "math"

// Cause is why a store call is made. Its text is what hooks are told.
type Cause string

// The causes, by priority.
const (
	None     Cause = ""          // nothing to do now
	Waiters  Cause = "wait"      // callers wait for tokens
	Charge   Cause = "charge"    // tokens were used without the store, which is to charge them
	Return   Cause = "give back" // tokens that will not be used, or whose return is not confirmed
	Probe    Cause = "probe"     // has anything come back to an exhausted key?
	Reset    Cause = "reset"     // the window is over and the key was in use
	Refresh  Cause = "refresh"   // of the deadline, as the window's end is near
	Prefetch Cause = "prefetch"  // the stock has fallen to the re-order point
	Reopen   Cause = "reopen"    // does a shard answer again? Made by the shard, not by a key
)

// Never is later than any time.
const Never = math.MaxInt64 / 2

// Facts is a key at one instant. Times are those of the key's clock; zero values are
// those of a key that nobody uses.
type Facts struct {
	Now int64

	// What forbids a call.
	Retired  bool  // evicted, or its limiter closed
	InFlight bool  // a fetch is: there is one at a time
	Open     bool  // the circuit of its shard
	Ask      int64 // when to look whether it still is
	Backoff  int64 // after a failed fetch, no other before this
	Rejected bool  // that fetch was rejected: callers in line are told so at once

	// What callers want.
	Active  int   // callers in line whom a fetch may serve
	Passing int   // of these, who do not stay until the window is reset
	Parked  int   // callers in line who do
	Ending  bool  // a fetch has just found the old window, though it is over by our clock
	Denied  int64 // until when the store is known to have too little; 0 = it may have more
	Probe   bool  // a caller was refused after Denied

	// The account.
	Charge      int64 // when the store is to hear of debt at the latest; 0 = it has confirmed all
	Unconfirmed bool  // it has not confirmed all that was returned to it

	// The window. Over is when it is surely over; 0 = none is known.
	Alive   bool  // its tokens may be spent
	Over    int64 // when a request opens the next window
	Spread  int64 // after Over, for processes not to come at once
	Used    bool  // the key was used in the window
	Regular bool  // it is used often enough to look ahead
	Refresh int64 // when to look at the window's end once more; 0 = no need

	// The stock.
	Low     bool  // it is at the re-order point and the store has more
	Surplus int64 // tokens that are worth giving back now
	Look    int64 // when to look for a surplus again; 0 = no need
}

// Step says what the key should do now, or when to look again: at Never, or when
// something happens.
//
//	callers wait > debt that is due > returns > probe > window over and used > end near > surplus > re-order point
func Step(f Facts) (Cause, int64) {
	switch {
	case f.Retired, f.InFlight:
		return None, Never
	case f.Open:
		if f.Active > 0 || f.Parked > 0 || f.Charge != 0 || f.Unconfirmed {
			return None, f.Ask
		}
		return None, Never
	}
	if why, at := forCallers(f); why != None {
		return why, Never
	} else if why, later := forAccount(f); why != None {
		return why, Never
	} else if why, ahead := ahead(f); why != None {
		return why, Never
	} else {
		return None, min(at, later, ahead)
	}
}

// forCallers: those that do not stay are fetched for at once, whatever has failed
// before; the others can wait for the store to recover, for what comes back to it, or
// for the reset.
func forCallers(f Facts) (Cause, int64) {
	at := int64(Never)
	if f.Active > 0 {
		switch {
		case f.Ending && f.Now <= f.Over:
			at = f.Over + resolution
		case f.Passing > 0 || f.Rejected || f.Now >= f.Backoff:
			return Waiters, at
		default:
			at = f.Backoff
		}
	}
	if f.Parked > 0 { // until the denial is over they are not active
		at = min(at, max(f.Now+1, min(f.Denied, f.Over+1+f.Spread/4), f.Backoff)) // before those who restock
	}
	return None, at
}

// resolution is that of the store's ends of windows: until so much later a window may be
// open there that is over here.
const resolution = int64(1e6)

// forAccount: what the store must hear of, while its window is open.
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

// ahead: what a key in use does before its callers need it.
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
	if f.Refresh != 0 && f.Alive {
		if f.Now >= max(f.Refresh, f.Backoff) {
			return Refresh, Never
		}
		at = min(at, max(f.Refresh, f.Backoff))
	}
	if f.Surplus > 0 {
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

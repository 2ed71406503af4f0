package demand

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Policy decides how many tokens a key fetches at a time.
type Policy struct {
	Kind     Kind
	Min, Max int64 // tokens of one batch; a Max of 0 is no bound
}

// Kind is how a [Policy] decides.
type Kind uint8

// The kinds of policies.
const (
	Adaptive Kind = iota // by demand
	Fixed                // Min tokens, or as many as callers wait for
	Ladder               // more when a batch was used up, fewer when most of one was wasted
	Direct               // no stock: exactly what callers in line need
)

// Terms are what sizes depend on besides the demand. They are made anew for each question, because a limit may change and a
// window passes.
type Terms struct {
	Policy
	Limit   backend.Limit
	Clients int64         // that share the key, this one included
	Lead    time.Duration // from ordering a batch to having it
	Open    bool          // a window is open
	Left    time.Duration // until its tokens may be spent no more; the whole length if none is open
	Passed  time.Duration // since it began
}

// How much may be held, and how far a batch may go.
const (
	idlePart  = 20 // of the limit, that all clients together may hold for the next large request
	mostAhead = 4  // batches held for a request that is larger than a batch: more would cost more calls than that request's own

	// Visits that each process' part of the limit must serve at least, so that batches are worth their calls. What callers
	// need exactly costs about two calls a visit.
	smallPart = 5

	// The largest batch in the first window of a key, in multiples of the tokens seen: its callers may soon be elsewhere.
	trust = 3
)

// Ahead reports whether batches are ordered before the stock is gone: always, except where a batch is one token, because then
// nothing may be held.
func (t *Terms) Ahead() bool { return t.Kind != Direct && (t.Kind != Fixed || t.Min > 1) }

// tapers reports whether the store tapers the grants as the limit runs out: those of a fixed window.
func (t *Terms) tapers() bool { return t.Kind == Adaptive && !t.Limit.Rolls }

// idle is how many tokens may lie idle here at rest: a tenth of the limit, or three usual requests, so that a crash costs little.
func (d *Demand) idle(t *Terms) int64 { return max(t.Limit.Tokens/10, int64(3*d.size)) }

// small reports whether the limit is so small that a batch would be most of a process' part.
// Then the store grants what callers wait for, and nothing is ordered ahead.
func (d *Demand) small(t *Terms) bool {
	visit := d.usual * d.size // tokens
	return t.tapers() && (float64(d.idle(t)) < visit || float64(t.Limit.Tokens) < smallPart*visit*float64(t.Clients))
}

// Regular reports whether the key is used often enough to look ahead to the next window: by at least two tokens in each.
func (d *Demand) Regular(t *Terms) bool {
	return d != nil && t.Ahead() && d.rate*t.Limit.Window.Seconds() >= 2 && !d.small(t)
}

// Floor is the smallest batch that is worth a call, for one of so many processes that share
// the limit: a twentieth of its part, or five tokens, but no more than a third of that part;
// one token of a limit that has no three such batches. lua/sync.lua repeats the rule.
func Floor(limit, processes int64) int64 {
	part := limit / processes
	if limit < 15 {
		return min(part, 1)
	}
	return min(part/3, max(5, part/20))
}

// ReorderPoint is the stock at which to order the next batch, so that the stock lasts until the batch comes, and -1 if none is to be
// ordered ahead. At low rates of single tokens it is zero, so the last token orders the batch.
func (d *Demand) ReorderPoint(t *Terms) int64 {
	// None for the last token of a window: the batch would mostly cost a call for nothing.
	last := d != nil && t.tapers() && d.rate*t.Left.Seconds() < 1
	if d == nil {
		d = New(0, 0)
	}
	if last || !t.Ahead() || d.small(t) {
		return -1
	}
	// What is used in the lead time and three deviations of that, and a large request less one token, because a stock that
	// cannot serve the next request is useless.
	expected := max(d.rate, d.recent) * t.Lead.Seconds()
	spare := min(d.size-1, float64(t.Limit.Tokens/idlePart/t.Clients))
	at := int64(expected + 3*math.Sqrt(expected*(1+spare)) + spare + 0.5)

	// No more than a few batches that the user allows, and half of what may lie idle, or there would be no room for the batch.
	if t.Max > 0 {
		at = min(at, mostAhead*min(t.Max, t.Limit.Tokens))
	}
	if t.tapers() {
		at = min(at, max(d.idle(t), t.Min)/2)
	}
	return at
}

// Need is what callers need when a batch is ordered.
type Need struct {
	Now     int64
	Callers int64 // who have come since the last order
	Tokens  int64 // that callers in line lack
	Waiting int64 // that they ask for
	Stock   int64 // that is held beyond that
	Free    int64 // that nobody in line waits for
	Spent   int64 // in all
	Runs    bool  // callers in an open window wait for it, and messages can call back what it brings
}

// Order is a batch: how much to ask for, whether the store shall grant it as it is, and why in a word or two.
type Order struct {
	Want   int64
	Exact  bool
	Run    int64 // how many tokens of the window this process got in a row, in visits before this one
	Reason string
}

// Order sizes a batch, which may go beyond the bounds of a policy if callers need more. It also records who has come and what
// was ordered, so call it once for each batch. Of a nil Demand nothing is kept.
func (d *Demand) Order(t *Terms, n Need) (o Order) {
	first := d == nil
	if first {
		d = New(0, 0)
	}

	// Who comes? A visit that was smaller than the usual one weighs little, because a stock may have served a part of it.
	if n.Now-d.visited > 2*int64(t.Lead) {
		if d.callers > 0 {
			d.usual += min(float64(d.callers)-d.usual, 0) / visitWeight
		}
		d.visited, d.callers, d.before = n.Now, 0, d.run
	}
	d.callers += n.Callers
	d.usual = max(d.usual, (d.usual+float64(d.callers))/2)

	// How much by the policy? Where nothing is held, or a batch would be most of a small limit, what callers need decides.
	most := t.Limit.Tokens
	if t.Max > 0 {
		most = min(t.Max, most)
	}
	floor, small := Floor(t.Limit.Tokens, t.Clients), d.small(t)
	o.Exact = d.rate == 0 && t.Max > 0 && t.Max < floor // the store tops up what a newcomer wants, perhaps beyond the user's bound
	switch {
	case t.Kind == Direct:
		o.Exact, o.Reason = true, "direct"
	case t.Kind == Fixed:
		o.Want, o.Exact, o.Reason = min(max(t.Min, n.Waiting), t.Limit.Tokens), true, "fixed"
	case t.Kind == Ladder:
		// Half as much again when the last batch was used up, and half of it when less than half was used.
		o.Exact = true
		switch used := n.Spent - d.batchSpent; {
		case first:
			o.Want, o.Reason = t.Min, "first"
		case t.Open || used >= d.batch: // in an open window a batch is ordered when the last one is used up
			o.Want, o.Reason = d.batch+max(d.batch/2, 1), "used up"
		case used < d.batch/2:
			o.Want, o.Reason = d.batch/2, "wasted"
		default:
			o.Want, o.Reason = d.batch, "kept"
		}
		o.Want = min(max(o.Want, t.Min), most)
	case t.Limit.Rolls: // the store knows best for how many buckets
		o.Want, o.Reason = most, "pace"
	case small:
		o.Exact, o.Reason = true, "small"
	case d.rate == 0: // the store grants a newcomer the floor
		o.Want, o.Reason = min(max(n.Waiting, t.Min), most), "first"
	default:
		// As long as the limit is expected to last, but a sixth of the window at least, because a forecast may be wrong and
		// idle tokens can be called back; and not beyond the window.
		ahead := min(max(d.Lasts(t), t.Limit.Window/horizonPart), t.Left, horizonMax)
		// In the first window there is no forecast yet: a few times of what was seen, at most.
		expected, seen := d.rate*ahead.Seconds(), trust*max(n.Spent-d.batchSpent+n.Waiting, 1)
		if o.Want, o.Reason = int64(math.Ceil(expected))-n.Stock+n.Waiting, "demand"; d.lasted == 0 && expected > float64(seen) {
			o.Want, o.Reason = seen, "growing"
		}
		o.Want = min(max(o.Want, floor, t.Min), most)
	}
	o.Want = max(o.Want, n.Tokens) // a policy never makes callers wait for a second call

	// Does this process run alone? A small limit has batches only while that lasts.
	if n.Runs && t.tapers() {
		if o.Run = min(d.before, most); small && float64(o.Run) > d.size {
			o.Want, o.Exact, o.Reason = max(o.Want, min(n.Tokens+o.Run, most)), false, "run"
		}
	}

	// What is idle here already counts. A batch that the user wants is not cut.
	if t.Kind == Adaptive {
		o.Want = min(o.Want, n.Tokens+max(max(d.idle(t), t.Min)-n.Free, 0))
	}
	d.batch, d.batchSpent = o.Want, n.Spent
	return o
}

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
)

// Terms are what sizes depend on besides the demand.
type Terms struct {
	Policy
	Direct  bool // no stock: a statement asks for exactly what callers in line need
	Limit   backend.Limit
	Clients int64         // that share the key, this one included
	Lead    time.Duration // from ordering a batch to having it
	Open    bool          // a window is open
	Left    time.Duration // until its tokens may be spent no more; the whole length if none is open
	Passed  time.Duration // since it began
}

// The parts of the limit, and numbers of batches, that may be held.
const (
	idlePart  = 20 // that all clients together may hold for the next large request
	mostAhead = 4  // batches held for a request that is larger than a batch: more would cost more calls than that request's own
	smallPart = 5  // visits that each process' part of the limit must serve at least, so that batches are worth their calls. What callers need exactly costs about two calls a visit
)

// guided reports whether the store tapers the grants of a fixed window as its limit runs out.
func (t *Terms) guided() bool { return !t.Direct && t.Kind == Adaptive && !t.Limit.Rolls }

// Ahead reports whether batches are ordered before the stock is gone: always, except where a batch is one token, because then
// nothing may be held.
func (t *Terms) Ahead() bool { return !t.Direct && (t.Kind != Fixed || t.Min > 1) }

// Small reports whether the limit is so small that a batch would be most of a process' part.
// Then the store grants what callers wait for, and nothing is ordered ahead.
func (d *Demand) Small(t *Terms) bool {
	visit := d.Visit()
	return t.guided() && (float64(d.idle(t)) < visit || float64(t.Limit.Tokens) < smallPart*visit*float64(t.Clients))
}

// idle is how many tokens may lie idle here at rest: a tenth of the limit, or three usual requests, so that a crash costs little.
func (d *Demand) idle(t *Terms) int64 { return max(t.Limit.Tokens/10, int64(3*d.Size())) }

// Largest is the largest batch that the user and the limit allow.
func (t *Terms) Largest() int64 {
	if t.Max > 0 {
		return min(t.Max, t.Limit.Tokens)
	}
	return t.Limit.Tokens
}

// ReorderAt is the stock at which to order the next batch, and -1 if none is to be ordered ahead.
func (d *Demand) ReorderAt(t *Terms) int64 {
	if !t.Ahead() || d != nil && t.guided() && d.Within(t.Left) < 1 { // a batch would mostly cost a call for nothing
		return -1
	}
	at := d.Reorder(t.Limit, t.Lead, t.Limit.Tokens/idlePart/t.Clients)
	if t.Max > 0 {
		at = min(at, mostAhead*min(t.Max, t.Limit.Tokens))
	}
	if t.guided() { // or there would be no room for the batch
		at = min(at, max(d.idle(t), t.Min)/2)
	}
	return at
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

// Need is what callers need when a batch is ordered.
type Need struct {
	Tokens  int64 // that they lack
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
	Run    int64 // how long the run of this process is
	Reason string
}

// Order sizes a batch.
func (d *Demand) Order(t *Terms, n Need) (o Order) {
	small, guided, paced := d.Small(t), t.guided(), !t.Direct && t.Kind == Adaptive && t.Limit.Rolls
	// It tops up what a key without demand wants, perhaps beyond the bound of a batch.
	o.Exact = !guided && !paced || small || t.Max > 0 && t.Max < Floor(t.Limit.Tokens, t.Clients) && !d.Known()
	switch {
	case t.Direct:
		o.Want, o.Reason = n.Tokens, "direct"
	case small:
		o.Want, o.Reason = n.Tokens, "small"
	case paced: // the store knows best for how many buckets
		o.Want, o.Reason = max(t.Largest(), n.Tokens), "pace"
	default:
		o.Want, o.Reason = d.batchSize(t, n)
		o.Want = max(o.Want, n.Tokens)
	}
	if n.Runs && guided {
		if o.Run = min(d.Run(), t.Largest()); small && float64(o.Run) > d.Size() { // a small limit has batches only while one lasts
			o.Want, o.Exact, o.Reason = max(o.Want, min(n.Tokens+o.Run, t.Largest())), false, "run"
		}
	}
	if guided || paced { // what is idle here already counts. A batch that the user wants is not cut
		o.Want = min(o.Want, n.Tokens+max(max(d.idle(t), t.Min)-n.Free, 0))
	}
	if d != nil {
		d.batch, d.batchSpent = o.Want, n.Spent
	}
	return o
}

// batchSize returns how many tokens to ask for by the policy, including those that callers wait for, and the reason.
func (d *Demand) batchSize(t *Terms, n Need) (size int64, reason string) {
	switch t.Kind {
	case Fixed:
		return min(max(t.Min, n.Waiting), t.Limit.Tokens), "fixed"
	case Ladder:
		size, reason = d.climb(t, n)
	default:
		size, reason = d.follow(t, n)
	}
	return min(max(size, t.Min), t.Largest()), reason
}

// climb is one step on the ladder. In an open window a batch is ordered when the last
// one is used up.
func (d *Demand) climb(t *Terms, n Need) (int64, string) {
	if d == nil {
		return t.Min, "first"
	}
	switch spent := n.Spent - d.batchSpent; {
	case t.Open || spent >= d.batch:
		return d.batch + max(d.batch/2, 1), "used up"
	case spent < d.batch/2:
		return d.batch / 2, "wasted"
	}
	return d.batch, "kept"
}

// follow sizes a batch by demand.
func (d *Demand) follow(t *Terms, n Need) (int64, string) {
	if !d.Known() { // the store grants a newcomer the floor
		return n.Waiting, "first"
	}
	floor := Floor(t.Limit.Tokens, t.Clients)
	expected := d.rate * horizon(t.Limit.Window, t.Left, d.Lasts(t.Limit.Window, t.Passed, t.Open)).Seconds()
	if most := trust * max(n.Spent-d.batchSpent+n.Waiting, 1); d.lasted == 0 && expected > float64(most) {
		return max(most, floor), "growing"
	}
	return max(int64(math.Ceil(expected))-n.Stock+n.Waiting, floor), "demand"
}

// SmallestWorth is the smallest grant that is worth a call ahead, after a statement that needed so many tokens.
func (t *Terms) SmallestWorth(need int64, hears bool) int64 {
	if hears {
		return max(need+1, Floor(t.Limit.Tokens, t.Clients)/2)
	}
	return need + 1
}

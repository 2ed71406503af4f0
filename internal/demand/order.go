package demand

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
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

// Guided reports whether the store tapers the grants as the limit runs out.
func (t *Terms) Guided() bool { return !t.Direct && t.Policy.Kind == Adaptive }

// Ahead reports whether batches are ordered before the stock is gone: always, except where a batch is one token, because then
// nothing may be held.
func (t *Terms) Ahead() bool { return !t.Direct && (t.Policy.Kind != Fixed || t.Min > 1) }

// Small reports whether the limit is so small that a batch would be most of a process' part.
// Then the store grants what callers wait for, and nothing is ordered ahead.
func (d *Demand) Small(t *Terms) bool {
	visit := d.Visit()
	return t.Guided() && !t.Limit.Rolls &&
		(float64(d.idle(t)) < visit || float64(t.Limit.Tokens) < smallPart*visit*float64(t.Clients))
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
	guided := t.Guided() && !t.Limit.Rolls
	switch {
	case !t.Ahead():
		return -1
	case d != nil && guided && d.Within(t.Left) < 1: // a batch would mostly cost a call for nothing
		return -1
	}
	at := d.Reorder(t.Limit, t.Lead, t.Limit.Tokens/idlePart/t.Clients)
	if t.Max > 0 {
		at = min(at, mostAhead*min(t.Max, t.Limit.Tokens))
	}
	if guided { // or there would be no room for the batch
		at = min(at, max(d.idle(t), t.Min)/2)
	}
	return at
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
	small, floor := d.Small(t), Floor(t.Limit.Tokens, t.Clients)
	// It tops up what a key without demand wants, perhaps beyond the bound of a batch.
	o.Exact = !t.Guided() || small || t.Max > 0 && t.Max < floor && !d.Known()
	switch {
	case t.Direct:
		o.Want, o.Reason = n.Tokens, "direct"
	case small:
		o.Want, o.Reason = n.Tokens, "small"
	case t.Guided() && t.Limit.Rolls: // the store knows best for how many buckets
		o.Want, o.Reason = max(t.Largest(), n.Tokens), "pace"
	default:
		lasts := t.Limit.Window
		if !t.Limit.Rolls {
			lasts = d.Lasts(t.Limit.Window, t.Passed, t.Open)
		}
		o.Want, o.Reason = d.Batch(t.Policy, Situation{
			Limit: t.Limit, Open: t.Open, Left: t.Left, Lasts: lasts, Spent: n.Spent, Stock: n.Stock, Waiting: n.Waiting, Floor: floor,
		})
		o.Want = max(o.Want, n.Tokens)
	}
	if n.Runs && t.Guided() && !t.Limit.Rolls {
		if o.Run = min(d.Run(), t.Largest()); small && float64(o.Run) > d.Size() { // a small limit has batches only while one lasts
			o.Want, o.Exact, o.Reason = max(o.Want, min(n.Tokens+o.Run, t.Largest())), false, "run"
		}
	}
	if t.Guided() && !t.Limit.Rolls { // what is idle here already counts. A batch that the user wants is not cut
		o.Want = min(o.Want, n.Tokens+max(max(d.idle(t), t.Min)-n.Free, 0))
	}
	d.Asked(o.Want, n.Spent)
	return o
}

// SmallestWorth is the smallest grant that is worth a call ahead, after a statement that needed so many tokens.
func (t *Terms) SmallestWorth(need int64, hears bool) int64 {
	if hears {
		return max(need+1, Floor(t.Limit.Tokens, t.Clients)/2)
	}
	return need + 1
}

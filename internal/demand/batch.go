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

// Guided reports whether the store tapers the grants as the limit runs out.
func (p Policy) Guided() bool { return p.Kind == Adaptive }

// Ahead reports whether batches are ordered before the stock is gone: always, except
// where a batch is one token, because then nothing may be held.
func (p Policy) Ahead() bool { return p.Kind != Fixed || p.Min > 1 }

// Situation is the state of a key when a batch is sized.
type Situation struct {
	Limit   backend.Limit
	Open    bool          // a window is open
	Left    time.Duration // until the window ends; its whole length if none is open
	Lasts   time.Duration // how long the limit will last from now, as far as is known
	Spent   int64         // tokens used in all
	Stock   int64         // unspent now
	Waiting int64         // tokens that callers wait for now
	Floor   int64         // tokens of the smallest batch that is worth a call
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

// Batch returns how many tokens to ask for, including those that callers wait for, and
// the reason in a word or two.
func (d *Demand) Batch(p Policy, s Situation) (int64, string) {
	s.Waiting = min(s.Waiting, s.Limit.Tokens) // the sum may be far above it
	var size int64
	var reason string
	switch p.Kind {
	case Fixed:
		return min(max(p.Min, s.Waiting), s.Limit.Tokens), "fixed"
	case Ladder:
		size, reason = d.climb(p, s)
	default:
		size, reason = d.follow(s)
	}
	size = max(size, p.Min)
	if p.Max > 0 {
		size = min(size, p.Max)
	}
	return min(size, s.Limit.Tokens), reason
}

// Asked records the batch that was asked for, and the tokens spent by then.
func (d *Demand) Asked(batch, spent int64) {
	if d != nil {
		d.batch, d.batchSpent = batch, spent
	}
}

// climb is one step on the ladder. In an open window a batch is ordered when the last
// one is used up.
func (d *Demand) climb(p Policy, s Situation) (int64, string) {
	if d == nil {
		return p.Min, "first"
	}
	switch spent := s.Spent - d.batchSpent; {
	case s.Open || spent >= d.batch:
		return d.batch + max(d.batch/2, 1), "used up"
	case spent < d.batch/2:
		return d.batch / 2, "wasted"
	}
	return d.batch, "kept"
}

// follow sizes a batch by demand.
func (d *Demand) follow(s Situation) (int64, string) {
	if !d.Known() { // the store grants a newcomer the floor
		return s.Waiting, "first"
	}
	expected := d.rate * horizon(s.Limit.Window, s.Left, s.Lasts).Seconds()
	if most := trust * max(s.Spent-d.batchSpent+s.Waiting, 1); d.lasted == 0 && expected > float64(most) {
		return max(most, s.Floor), "growing"
	}
	return max(int64(math.Ceil(expected))-s.Stock+s.Waiting, s.Floor), "demand"
}

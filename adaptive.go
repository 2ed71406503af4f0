package reservoir

import (
	"fmt"
	"math"
	"time"
)

// Sizing decides how many tokens a key fetches at a time: Fixed(n), Ladder(min,
// max) or Adaptive(min, max). The zero Sizing is an error of New. The policies are
// pure: numbers in, a size and its reason out; no clock, no lock.
type Sizing struct {
	policy   policy
	min, max int64
}

type policy uint8

const (
	adaptive policy = iota
	fixed
	ladder
)

// Fixed fetches n tokens at a time, and more only where that many callers wait:
// the limit's stranded share is up to n times the number of processes. Fixed(1)
// holds nothing. It is right where demand is known and even. n is at least 1.
func Fixed(n int64) Sizing { return Sizing{policy: fixed, min: n, max: n} }

// Ladder climbs from min towards max: half as much again when a batch was used
// up, half as much when most of one was wasted. It is Rockset's published rule
// ("How We Improved the Concurrency and Scalability of Our Redis Rate Limiting
// System", 2021), kept as a yardstick. min is at least 1, and max at least min.
func Ladder(min, max int64) Sizing { return Sizing{policy: ladder, min: min, max: max} }

// Adaptive, the default, fetches what the key's demand will use for as long as
// the limit is expected to last, before the stock runs out, and lets the store
// taper that as the limit runs out. min, at least 1, and max, at least min, bound
// one batch in tokens; a max of 0 is no bound.
func Adaptive(min, max int64) Sizing { return Sizing{policy: adaptive, min: min, max: max} }

func (s Sizing) validate() error {
	switch {
	case s.min < 1:
		return fmt.Errorf("%w: a batch of %d tokens, want at least 1", ErrOption, s.min)
	case s.max != 0 && s.max < s.min:
		return fmt.Errorf("%w: a largest batch of %d below the smallest of %d", ErrOption, s.max, s.min)
	case s.max == 0 && s.policy != adaptive:
		return fmt.Errorf("%w: a ladder needs a largest batch", ErrOption)
	}
	return nil
}

// pace is what a key's use looks like from here: how fast its tokens go.
type pace struct {
	rate   float64 // tokens per second, exponentially weighted
	seen   float64 // seconds that rate is taken from
	recent float64 // the same with a shorter memory
	peak   float64 // the fastest of late, slowly forgotten
}

// The constants of Adaptive.
const (
	coldPart    = 3               // of the window is the most that a batch should last while nothing is known,
	coldLeast   = 20              // and this the least
	horizonPart = 60              // of the window is what a batch should last when the limit lasts longer than foreseen
	horizonMax  = 5 * time.Minute // and this the most, however long the window
	memoryPart  = 6               // of the window is the least memory of the mean rate,
	memoryMost  = 5               // windows are the most,
	memoryCount = 100             // and tokens it should span
	recentPart  = 60              // of the window is the least memory of the recent rate; memoryPart is the most
	recentCount = 20              // tokens it should span
	doubt       = 1.5             // deviations that the recent rate may be too low by chance
	firstPart   = 1000            // of the limit is the most that may be stranded by newcomers
	trust       = 100             // times the tokens that were seen to go is the largest batch
)

// observe takes in that spent tokens went in elapsed. Each observation weighs as
// much as its time is of the memory; until that is full, as it is of all the time
// seen. A slow key needs a longer memory to tell demand from chance, but one that
// has surely become faster a short one. The peak is taken from what is surely more
// than chance, two deviations below the count.
func (p pace) observe(window, elapsed time.Duration, spent int64) pace {
	seconds := max(elapsed, time.Millisecond).Seconds()
	spent = max(spent, 0) // a refund may have come in between
	now := float64(spent) / seconds
	sure := max(float64(spent)-2*math.Sqrt(float64(spent)), 0) / seconds
	fade := math.Exp(-seconds / window.Seconds())
	p.peak = max(sure, p.peak*fade)
	p.seen += seconds
	fast := max(p.rate, sure)
	p.recent += forget(seconds, recentMemory(window, fast)) * (now - p.recent)
	most := memoryMost * window.Seconds()
	memory := max(window.Seconds()/memoryPart, min(memoryCount/fast, most))
	p.rate += max(forget(seconds, memory), seconds/p.seen) * (now - p.rate)
	return p
}

// forget is the part of a memory that is forgotten in so many seconds.
func forget(seconds, memory float64) float64 { return 1 - math.Exp(-seconds/memory) }

// recentMemory is the memory of the recent rate of a key with that mean rate.
func recentMemory(window time.Duration, rate float64) float64 {
	return max(window.Seconds()/recentPart, min(recentCount/rate, window.Seconds()/memoryPart))
}

// perWindow is how many tokens the key would use in a window at the pace of late.
func (p pace) perWindow(l Limit) int64 {
	return int64(min(max(p.rate, p.recent/2)*l.Window.Seconds(), float64(l.Tokens)))
}

// reorder is the stock at which to fetch so that it lasts until the reply comes:
// what goes in the lead time, and three deviations of that. At low rates it is
// zero: order when the last token leaves.
func (p pace) reorder(lead time.Duration) int64 {
	d := max(p.peak, p.rate) * lead.Seconds()
	return int64(d + 3*math.Sqrt(d) + 0.5)
}

// horizon is how far ahead a batch should reach: as long as the limit is expected
// to last, and not beyond the window.
func horizon(window, left, lasts time.Duration) time.Duration {
	if lasts <= 0 {
		lasts = window / horizonPart
	}
	return min(lasts, left, horizonMax)
}

// observation is how a key stands when a batch is to be sized.
type observation struct {
	limit   Limit
	left    time.Duration // of the window; the whole of it where none is known
	lasts   time.Duration // the limit, from now, as far as can be foreseen
	last    int64         // the last batch asked for; 0 before the first
	spent   int64         // since then
	stock   int64         // unspent now
	waiting int64         // tokens that callers wait for now
}

// size returns the batch to ask for (callers that wait are part of it) and the
// reason in a word.
func (s Sizing) size(p pace, o observation) (int64, string) {
	var size int64
	var reason string
	switch s.policy {
	case fixed:
		size, reason = s.min, "fixed"
	case ladder:
		size, reason = s.climb(o)
	default:
		size, reason = s.follow(p, o)
	}
	size = max(size, s.min)
	if s.max > 0 {
		size = min(size, s.max)
	}
	return min(size, o.limit.Tokens), reason
}

// climb is one step on the ladder.
func (s Sizing) climb(o observation) (int64, string) {
	switch {
	case o.last == 0:
		return s.min, "first"
	case o.spent >= o.last:
		return o.last + max(o.last/2, 1), "used up"
	case o.spent < o.last/2:
		return o.last / 2, "wasted"
	}
	return o.last, "kept"
}

// follow sizes a batch by demand.
func (s Sizing) follow(p pace, o observation) (int64, string) {
	if o.last == 0 { // the store grants a newcomer its part of what may be stranded
		return o.waiting, "first"
	}
	demand := p.rate * horizon(o.limit.Window, o.left, o.lasts).Seconds()
	if most := float64(trust * max(o.spent+o.waiting, 1)); demand > most {
		return int64(most), "growing"
	}
	return int64(math.Ceil(demand)) - o.stock + o.waiting, "demand"
}

// excess is how much of a stock is not going to be used within the horizon: what
// is worth giving back. Under half of the stock is not worth a call, nor is up to
// twice what may be stranded anyway.
func (p pace) excess(window, left, lasts time.Duration, stock, strandable int64) int64 {
	lately := p.recent + doubt*math.Sqrt(p.recent/recentMemory(window, p.rate))
	need := int64(math.Ceil(min(p.rate, lately) * horizon(window, left, lasts).Seconds()))
	if stock <= 2*max(need, strandable) {
		return 0
	}
	return stock - need
}

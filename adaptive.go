package reservoir

import (
	"fmt"
	"math"
	"time"
)

// Sizing decides how many tokens a key fetches at a time. The policies are pure:
// numbers in, a size and its reason out; no clock, no lock.
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
// holds nothing. It is right where demand is known and even.
func Fixed(n int64) Sizing { return Sizing{policy: fixed, min: n, max: n} }

// Ladder climbs from min towards max: half as much again when a batch was used
// up, half as much when most of one was wasted. It is Rockset's published rule
// ("How We Improved the Concurrency and Scalability of Our Redis Rate Limiting
// System", 2021), kept as a yardstick.
func Ladder(min, max int64) Sizing { return Sizing{policy: ladder, min: min, max: max} }

// Adaptive, the default, fetches what the key's demand will use in a third of
// the window, and lets the store taper that as the limit runs out. min and max
// bound one batch in tokens; a max of 0 is no bound.
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

// guided reports whether the store may taper the grant.
func (s Sizing) guided() bool { return s.policy == adaptive }

// pace is what a policy remembers of a key between fetches.
type pace struct {
	rate float64 // tokens per second, exponentially weighted
	size int64   // the last batch asked for; 0 before the first
}

// observation is what happened to a key since its last fetch, and how it stands.
type observation struct {
	limit   Limit
	left    time.Duration // of the window; the whole of it where none is known
	elapsed time.Duration // since the last fetch
	spent   int64         // since the last fetch
	stock   int64         // unspent now
	waiting int64         // tokens that callers wait for now
}

// The constants of Adaptive.
const (
	horizonPart = 3               // of the window is what a batch should last
	horizonMax  = 5 * time.Minute // and no longer, however long the window
	memoryPart  = 6               // of the window is the memory of the mean rate
	growth      = 4               // a batch is at most this many times the last
	firstPart   = 1000            // of the limit is the first batch
)

// next returns the key's new pace, the batch to ask for (callers that wait are
// part of it) and the reason in a word.
func (s Sizing) next(p pace, o observation) (pace, int64, string) {
	var size int64
	var reason string
	switch s.policy {
	case fixed:
		size, reason = s.min, "fixed"
	case ladder:
		size, reason = s.climb(p, o)
	default:
		p.rate = mean(p, o)
		size, reason = s.follow(p, o)
	}
	size = max(size, s.min)
	if s.max > 0 {
		size = min(size, s.max)
	}
	p.size = min(size, o.limit.Tokens)
	return p, p.size, reason
}

// climb is one step on the ladder.
func (s Sizing) climb(p pace, o observation) (int64, string) {
	switch {
	case p.size == 0:
		return s.min, "first"
	case o.spent >= p.size:
		return p.size + max(p.size/2, 1), "used up"
	case o.spent < p.size/2:
		return p.size / 2, "wasted"
	}
	return p.size, "kept"
}

// follow sizes a batch by demand.
func (s Sizing) follow(p pace, o observation) (int64, string) {
	first := max(o.limit.Tokens/firstPart, 1)
	if p.size == 0 {
		return first, "first"
	}
	horizon := min(o.limit.Window/horizonPart, o.left, horizonMax)
	demand := p.rate * horizon.Seconds()
	if most := float64(growth * max(p.size, first)); demand > most {
		return int64(most), "growing"
	}
	return int64(math.Ceil(demand)) - o.stock + o.waiting, "demand"
}

// mean is the key's rate with the time since the last fetch taken in, weighted
// by how much of the memory that time is. The first measure counts whole.
func mean(p pace, o observation) float64 {
	if p.size == 0 {
		return 0
	}
	elapsed := max(o.elapsed, time.Millisecond)
	now := float64(o.spent+o.waiting) / elapsed.Seconds()
	if p.rate == 0 {
		return now
	}
	weight := 1 - math.Exp(-elapsed.Seconds()/(o.limit.Window/memoryPart).Seconds())
	return p.rate + weight*(now-p.rate)
}

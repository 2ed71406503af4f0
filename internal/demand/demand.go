// Package demand estimates how fast a key is used, and from that when to order the
// next batch, and how large it should be.
//
// It is pure: times and counts come in, sizes go out. Times are nanoseconds of the
// caller's clock.
package demand

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Demand estimates how a key is used, from its second fetch on. A nil *Demand stands for
// a key with one fetch at most. A Demand is not safe for concurrent use.
type Demand struct {
	Exhausted int64 // since when the store has no more tokens; 0 = it has some. The owner writes it

	// The rate at which tokens are used.
	rate     float64 // tokens per second, exponentially weighted mean
	recent   float64 // the same mean with a shorter memory
	seen     float64 // seconds over which the mean is taken
	size     float64 // of large requests, in tokens: mean of the largest between observations
	observed int64   // time of the last observation
	spent    int64   // tokens spent in all at that time

	// The window.
	lasts   time.Duration // from the window's beginning until the limit runs out, as far as known
	guessed time.Duration // the same, by the rate of all clients since the window began
	lasted  time.Duration // the same for the window before; 0 = unknown
	opened  int64         // tokens spent in all when the window began
	denied  int64         // requests refused in all when the window began
	run     int64         // tokens of it that were got in a row
	before  int64         // the part of the run that was got before the present visit

	// Orders. The callers of orders within two lead times are one visit, because a burst gets its tokens by about two calls.
	batch      int64   // size of the last batch that was asked for
	batchSpent int64   // tokens spent in all when it was asked for
	visited    int64   // time of the first order of the present visit
	callers    int64   // in it
	usual      float64 // callers of a visit, at least 1
}

// The constants of the estimates. A Part divides the window.
const (
	coldPart    = 3               // the longest time for a batch while nothing is known
	horizonPart = 6               // the shortest time for a batch
	horizonMax  = 5 * time.Minute // the longest time for a batch in any window
	memoryPart  = 6               // the shortest memory of the mean rate
	memoryMost  = 5               // windows: the longest memory of the mean rate
	memoryCount = 100             // requests that the mean rate should span
	recentPart  = 60              // the shortest memory of the recent rate; memoryPart is the longest
	recentCount = 20              // requests that the recent rate should span
	visitWeight = 8               // visits: the memory of their size
	sizeWeight  = 4               // observations: the memory of the size of large requests
)

// New returns the demand of a key whose only fetch was at since, and granted that many
// tokens.
func New(granted, since int64) *Demand {
	return &Demand{batch: max(granted, 1), observed: since, size: 1, usual: 1}
}

// Observe brings the estimate up to date at now: spent is how many tokens requests have
// used in all, largest the largest request since the last observation. The time in which
// requests were refused says nothing of demand, so it is left out.
//
// The means are exponentially weighted; rate is a plain mean until one memory length has passed. A slow
// key needs a longer memory to tell demand from chance, but a key that has surely become faster needs a short one.
func (d *Demand) Observe(window time.Duration, now, spent, largest int64) {
	until, tokens := now, float64(max(spent-d.spent, 0)) // a refund may have come in between
	if d.Exhausted != 0 {
		until = d.Exhausted
	}
	elapsed := time.Duration(until - d.observed)
	d.observed, d.spent = now, spent
	if elapsed <= 0 {
		return
	}

	// How large are large requests?
	request := float64(max(largest, 1))
	if d.size += (request - d.size) / sizeWeight; d.seen == 0 {
		d.size = request
	}

	// How fast is the key surely? Two deviations below the count, so that chance does not shorten the memory. For requests of n
	// tokens the deviation is sqrt(n) times that of single tokens, so one large request is no burst.
	seconds, length := max(elapsed, time.Millisecond).Seconds(), window.Seconds()
	fast := max(d.rate, (tokens-2*math.Sqrt(tokens*request))/seconds)

	// The means. forgets is the part of a memory that is forgotten meanwhile.
	forgets := func(memory float64) float64 { return 1 - math.Exp(-seconds/memory) }
	d.seen += seconds
	d.recent += forgets(max(length/recentPart, min(recentCount*d.size/fast, length/memoryPart))) * (tokens/seconds - d.recent)
	memory := max(length/memoryPart, min(memoryCount*d.size/fast, memoryMost*length))
	d.rate += max(forgets(memory), seconds/d.seen) * (tokens/seconds - d.rate)
}

// PerWindow is how many tokens the key would use in a window at its rate, as of the last observation.
func (d *Demand) PerWindow(l backend.Limit) int64 {
	if d == nil {
		return 0
	}
	return int64(min(max(d.rate, d.recent/2)*l.Window.Seconds(), float64(l.Tokens)))
}

// Uses is how many tokens the key uses within so long, as of now, if so many were spent in all. It soon forgets a
// process that has fallen silent, because a burst that is over says little of what comes.
func (d *Demand) Uses(l backend.Limit, in time.Duration, now, spent int64) float64 {
	if d == nil {
		return 0
	}
	is := *d
	is.Exhausted = 0
	is.Observe(l.Window, now, spent, 1)
	perWindow := min(is.rate, 2*is.recent) * min(l.Window.Seconds(), float64(l.Tokens)/max(is.rate, 1e-9))
	return perWindow * in.Seconds() / l.Window.Seconds()
}

// UsedIn reports whether the key was used since the window began.
func (d *Demand) UsedIn(spent, denied int64) bool { return spent != d.opened || denied != d.denied }

// Opened records that a window has begun, and the tokens spent and requests refused by then.
func (d *Demand) Opened(window time.Duration, spent, denied int64) {
	d.lasted, d.lasts, d.Exhausted = d.lasts, window, 0
	d.opened, d.denied, d.run, d.before = spent, denied, 0, 0
}

// Reply is what a reply of the store says of demand.
type Reply struct {
	Limit   backend.Limit
	State   backend.State
	Lasted  time.Duration // how long the limit has lasted in this window; 0 = it is not used up
	Grant   int64
	Others  int64 // tokens of the window that others got since the last reply
	Charged int64 // debt: it was used while the store was away, and charged all at once, which is no burst of demand
}

// Reply records a reply. From the reading it derives how long the limit lasts.
func (d *Demand) Reply(r Reply) {
	if d == nil {
		return
	}
	d.spent, d.batchSpent = d.spent+r.Charged, d.batchSpent+r.Charged
	if !r.Limit.Rolls {
		d.run = max(d.run-max(r.Others, 0), 0)
		d.before = min(d.before, d.run)
		d.run += r.Grant
	}
	if r.Lasted > 0 {
		d.lasts = r.Lasted
	}
	if d.guessed = r.Limit.Window; Short(r.Limit, r.State) {
		d.guessed = time.Duration(float64(r.Limit.Window-r.State.Left) * float64(r.Limit.Tokens) / float64(r.Limit.Tokens-r.State.Remaining))
	}
}

// Short reports whether the limit will run out before the window ends, at the rate of
// all clients since the window began.
func Short(l backend.Limit, s backend.State) bool {
	return float64(s.Remaining)*float64(l.Window-s.Left) < float64(l.Tokens-s.Remaining)*float64(s.Left)
}

// EndRun ends the run, because others want the tokens.
func (d *Demand) EndRun() {
	if d != nil {
		d.run, d.before = 0, 0
	}
}

// Lasts is how long the limit will last after so much of the window has passed: as long
// as in this window or the one before, if it ran out there. In the first window, where
// grants look like use, it is a guess, within bounds, from the rate of all clients so far.
// When no window is open, Lasts counts from the beginning of the next.
func (d *Demand) Lasts(t *Terms) time.Duration {
	switch {
	case !t.Open:
		return d.lasts
	case d.lasted != 0:
		return min(d.lasts, d.lasted) - t.Passed
	case d.lasts < t.Limit.Window:
		return d.lasts - t.Passed
	}
	return min(d.guessed-t.Passed, t.Limit.Window/coldPart)
}

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

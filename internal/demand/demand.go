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
	rateEstimate
	batch      int64         // size of the last batch that was asked for
	batchSpent int64         // tokens spent in all when it was asked for
	observed   int64         // time of the last observation
	spent      int64         // tokens spent in all at that time
	exhausted  int64         // since when the store has no more tokens; 0 = it has some
	lasts      time.Duration // from the window's beginning until the limit runs out, as far as known
	guessed    time.Duration // the same, by the rate of all clients since the window began
	lasted     time.Duration // the same for the window before; 0 = unknown
	opened     int64         // tokens spent in all when the window began
	denied     int64         // requests refused in all when the window began
	run        int64         // tokens got in a row
	before     int64         // the part of it that was got before the present visit
	visit      visit
}

// visit is the callers of orders within two lead times: a burst makes one visit, whose callers get
// their tokens by about two calls.
type visit struct {
	at      int64   // of the first order
	callers int64   // in it
	mean    float64 // callers of a visit
}

// rateEstimate estimates the rate at which tokens are used.
type rateEstimate struct {
	rate   float64 // tokens per second, exponentially weighted mean
	seen   float64 // seconds over which the mean is taken
	recent float64 // the same mean with a shorter memory
	peak   float64 // the fastest recent rate, which decays slowly
	size   float64 // of large requests, in tokens: mean of the largest between observations
}

// The constants of the estimates. A Part divides the window or the limit.
const (
	coldPart    = 3               // of the window: the longest time for a batch while nothing is known
	coldLeast   = 20              // of the window: the shortest time for such a batch
	sparePart   = 60              // of the window: what is used in that time may be held for a large request
	horizonPart = 6               // of the window: the shortest time for a batch
	horizonMax  = 5 * time.Minute // the longest time for a batch in any window
	memoryPart  = 6               // of the window: the shortest memory of the mean rate
	memoryMost  = 5               // windows: the longest memory of the mean rate
	memoryCount = 100             // requests that the mean rate should span
	recentPart  = 60              // of the window: the shortest memory of the recent rate; memoryPart is the longest
	recentCount = 20              // requests that the recent rate should span
	trust       = 3               // the largest batch in the first window of a key, in multiples of the tokens seen: its callers may soon be elsewhere
	visitWeight = 8               // visits: the memory of their size
	sizeWeight  = 4               // observations: the memory of the size of large requests
)

// New returns the demand of a key whose only fetch was at since, and granted that many
// tokens.
func New(granted, since int64) *Demand {
	return &Demand{batch: max(granted, 1), observed: since, rateEstimate: rateEstimate{size: 1}}
}

// Observe brings the estimate up to date at now: spent is how many tokens requests have
// used in all, largest the largest request since the last observation. The time in which
// requests were refused says nothing of demand, so it is left out.
func (d *Demand) Observe(window time.Duration, now, spent, largest int64) {
	until := now
	if d.exhausted != 0 {
		until = d.exhausted
	}
	if until > d.observed {
		d.rateEstimate = d.rateEstimate.observe(window, time.Duration(until-d.observed), spent-d.spent, float64(max(largest, 1)))
	}
	d.observed, d.spent = now, spent
}

// observe adds an observation: spent tokens were used in elapsed. The means are
// exponentially weighted; rate is a plain mean until one memory length has passed. A slow
// key needs a longer memory to tell demand from chance, but a key that has surely become
// faster needs a short one. The peak is two deviations below the count, so that chance
// does not raise it. For requests of n tokens the deviation is sqrt(n) times that of
// single tokens, so one large request is no burst.
func (e rateEstimate) observe(window, elapsed time.Duration, spent int64, largest float64) rateEstimate {
	seconds := max(elapsed, time.Millisecond).Seconds()
	tokens := float64(max(spent, 0)) // a refund may have come in between
	e.size += (largest - e.size) / sizeWeight
	if e.seen == 0 {
		e.size = largest
	}
	current := tokens / seconds
	least := max(tokens-2*math.Sqrt(tokens*largest), 0) / seconds
	e.peak = max(least, e.peak*math.Exp(-seconds/window.Seconds()))
	e.seen += seconds
	fast := max(e.rate, least)
	e.recent += forgotten(seconds, recentMemory(window, fast/e.size)) * (current - e.recent)
	most := memoryMost * window.Seconds()
	memory := max(window.Seconds()/memoryPart, min(memoryCount*e.size/fast, most))
	e.rate += max(forgotten(seconds, memory), seconds/e.seen) * (current - e.rate)
	return e
}

// forgotten is the part of a memory that is forgotten in so many seconds.
func forgotten(seconds, memory float64) float64 { return 1 - math.Exp(-seconds/memory) }

// recentMemory is the memory of the recent rate, in seconds, of a key with so many
// requests a second.
func recentMemory(window time.Duration, requests float64) float64 {
	return max(window.Seconds()/recentPart, min(recentCount/requests, window.Seconds()/memoryPart))
}

// Known reports whether something is known of the demand.
func (d *Demand) Known() bool { return d != nil && d.rate > 0 }

// PerWindow is how many tokens the key would use in a window at its recent rate.
func (d *Demand) PerWindow(l backend.Limit) int64 {
	if d == nil {
		return 0
	}
	return int64(min(max(d.rate, d.recent/2)*l.Window.Seconds(), float64(l.Tokens)))
}

// Regular reports whether the key uses at least two tokens a window.
func (d *Demand) Regular(window time.Duration) bool {
	return d != nil && d.rate*window.Seconds() >= 2
}

// Within is how many tokens the key is expected to use within t.
func (d *Demand) Within(t time.Duration) float64 {
	if d == nil {
		return 0
	}
	return d.rate * t.Seconds()
}

// Soon is Within as of now, if so many tokens were spent in all: a burst that is over says
// little of what comes.
func (d *Demand) Soon(window, t time.Duration, now, spent int64) float64 {
	if d == nil {
		return 0
	}
	is := *d
	is.exhausted = 0
	is.Observe(window, now, spent, 1)
	return is.Within(t)
}

// Pace is PerWindow as of now, if so many tokens were spent in all, with a short memory: it soon
// forgets a process that has fallen silent.
func (d *Demand) Pace(l backend.Limit, now, spent int64) int64 {
	if d == nil {
		return 0
	}
	is := *d
	is.exhausted = 0
	is.Observe(l.Window, now, spent, 1)
	return int64(min(is.rate, 2*is.recent) * min(l.Window.Seconds(), float64(l.Tokens)/max(is.rate, 1e-9)))
}

// Uses is how many tokens the key uses in so long at its Pace.
func (d *Demand) Uses(l backend.Limit, in time.Duration, now, spent int64) float64 {
	return float64(d.Pace(l, now, spent)) * in.Seconds() / l.Window.Seconds()
}

// Keeps is Uses and three deviations more: what is surely used.
func (d *Demand) Keeps(l backend.Limit, in time.Duration, now, spent int64) int64 {
	use := d.Uses(l, in, now, spent)
	return int64(math.Ceil(use + 3*math.Sqrt(use)))
}

// Reorder is the stock at which to order, so that the stock lasts until the batch comes:
// the tokens used in the lead time, three deviations of that, and a large request less one
// token, because a stock that cannot serve the next request is useless. At low rates of
// single tokens it is zero, so the last token orders the batch. idle bounds what may be
// held for a large request that is not regular.
func (d *Demand) Reorder(l backend.Limit, lead time.Duration, idle int64) int64 {
	if d == nil {
		return 0
	}
	expected := max(d.peak, d.rate) * lead.Seconds()
	most := max(float64(idle), d.rate*l.Window.Seconds()/sparePart)
	spare := min(d.size-1, most)
	return int64(expected + 3*math.Sqrt(expected*(1+spare)) + spare + 0.5)
}

// Skip leaves n tokens out of the estimate. They were used while the store was away, and
// are charged all at once, which is no burst.
func (d *Demand) Skip(n int64) {
	if d != nil {
		d.spent, d.batchSpent = d.spent+n, d.batchSpent+n
	}
}

// Opened records that a window has begun, and the tokens spent and requests refused by then.
func (d *Demand) Opened(window time.Duration, spent, denied int64) {
	d.lasted, d.lasts, d.exhausted = d.lasts, window, 0
	d.opened, d.denied, d.run, d.before = spent, denied, 0, 0
}

// Got records a grant, and how many tokens of the window others got since the last one.
func (d *Demand) Got(grant, others int64) {
	if d != nil {
		d.run = max(d.run-max(others, 0), 0)
		d.before = min(d.before, d.run)
		d.run += grant
	}
}

// Visit is how many tokens callers ask for in one visit, about.
func (d *Demand) Visit() float64 {
	if d == nil {
		return 1
	}
	return max(d.visit.mean, 1) * d.size
}

// Ordered records an order at now, for so many callers who were in no order before.
func (d *Demand) Ordered(now int64, lead time.Duration, callers int64) {
	if d == nil {
		return
	}
	v := &d.visit
	if now-v.at > 2*int64(lead) {
		v.end()
		v.at, d.before = now, d.run
	}
	v.callers += callers
	v.mean = max(v.mean, (v.mean+float64(v.callers))/2)
}

// end ends a visit. A small one weighs little, because a stock may have served a part of it.
func (v *visit) end() {
	if v.callers > 0 {
		v.mean += min(float64(v.callers)-v.mean, 0) / visitWeight
	}
	v.callers = 0
}

// Run is how many tokens of the window were got in a row, in visits before this one: what others got meanwhile counts
// against it, and EndRun ends it.
func (d *Demand) Run() int64 {
	if d == nil {
		return 0
	}
	return d.before
}

// EndRun ends the run, because others want the tokens.
func (d *Demand) EndRun() {
	if d != nil {
		d.run, d.before = 0, 0
	}
}

// Size is how many tokens a large request takes, about: the mean of the largest between
// observations.
func (d *Demand) Size() float64 {
	if d == nil {
		return 1
	}
	return d.size
}

// UsedIn reports whether the key was used since the window began.
func (d *Demand) UsedIn(spent, denied int64) bool {
	return d != nil && (spent != d.opened || denied != d.denied)
}

// Exhausted records since when the store has no more tokens; 0 means that it has some.
func (d *Demand) Exhausted(at int64) {
	if d != nil {
		d.exhausted = at
	}
}

// IsExhausted reports whether the store has no more tokens.
func (d *Demand) IsExhausted() bool { return d != nil && d.exhausted != 0 }

// Short reports whether the limit will run out before the window ends, at the rate of
// all clients since the window began.
func Short(l backend.Limit, s backend.State) bool {
	return float64(s.Remaining)*float64(l.Window-s.Left) < float64(l.Tokens-s.Remaining)*float64(s.Left)
}

// Forecast derives from a reading how long the limit lasts. lasted is the store's own
// figure, which it has once the limit is used up; 0 = not yet.
func (d *Demand) Forecast(l backend.Limit, s backend.State, lasted time.Duration) {
	if d == nil {
		return
	}
	if lasted > 0 {
		d.lasts = lasted
	}
	d.guessed = l.Window
	if Short(l, s) {
		d.guessed = time.Duration(float64(l.Window-s.Left) * float64(l.Tokens) / float64(l.Tokens-s.Remaining))
	}
}

// Lasts is how long the limit will last after so much of the window has passed: as long
// as in this window or the one before, if it ran out there. In the first window, where
// grants look like use, it is a guess, within bounds, from the rate of all clients so far.
// When no window is open, Lasts counts from the beginning of the next.
func (d *Demand) Lasts(window, passed time.Duration, open bool) time.Duration {
	switch {
	case d == nil:
		return window / coldPart
	case !open:
		return d.lasts
	case d.lasted != 0:
		return min(d.lasts, d.lasted) - passed
	case d.lasts < window:
		return d.lasts - passed
	}
	return min(max(d.guessed-passed, window/coldLeast), window/coldPart)
}

// horizon is how far ahead a batch should reach: as long as the limit is expected to
// last, but a sixth of the window at least, because a forecast may be wrong and idle tokens
// can be called back; and not beyond the window.
func horizon(window, left, lasts time.Duration) time.Duration {
	return min(max(lasts, window/horizonPart), left, horizonMax)
}

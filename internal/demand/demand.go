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

package key

import (
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Plan says whether a limit needs the store or is special. The limiter answers special ones; no key has one.
type Plan uint8

const (
	Counted   Plan = iota // the store counts
	Blocked               // no request passes
	Unlimited             // every request passes
)

// The tokens of special limits: of one that lets every request pass, and of one that lets none.
const (
	UnlimitedTokens = math.MaxInt64
	BlockTokens     = math.MinInt64
)

// PlanOf returns the plan of a limit.
func PlanOf(l backend.Limit) Plan {
	switch l.Tokens {
	case BlockTokens:
		return Blocked
	case UnlimitedTokens:
		return Unlimited
	}
	return Counted
}

// AnswerSpecial answers a request if the limit is special. A blocked request has no Reset and no
// RetryAfter, because no waiting helps.
func AnswerSpecial(limit backend.Limit) (a Answer, special bool) {
	switch PlanOf(limit) {
	case Unlimited:
		return Answer{Allowed: true, Limit: limit.Tokens, Remaining: limit.Tokens}, true
	case Blocked:
		return Answer{Shadowed: limit.Shadow}, true
	}
	return a, false
}

// Period returns the calendar's period at t, in Unix milliseconds; 0 if the limit has no calendar.
func Period(limit backend.Limit, t time.Time) (begin, end int64) {
	if limit.Calendar.Period == 0 {
		return 0, 0
	}
	from, to := limit.Calendar.Around(t)
	return from.UnixMilli(), to.UnixMilli()
}

// SameCounter reports whether the two limits count in one counter of a key; see backend.Limit.Counter. A program may load
// its time zone anew each time.
func SameCounter(a, b *backend.Limit) bool {
	switch {
	case a.Rolls != b.Rolls || a.Calendar.Period != b.Calendar.Period:
		return false
	case a.Calendar.Period == 0:
		return a.Window == b.Window
	}
	return a.Calendar.Zone == b.Calendar.Zone || a.Counter() == b.Counter()
}

// TooMuch answers a request for more tokens than the limit has. Waiting would not help, so
// it is an error; in shadow the request passes.
func (e *Env) TooMuch(limit backend.Limit) Verdict {
	if limit.Shadow {
		e.Counts.Denied.Add(1)
		return Verdict{Answer: Answer{Shadowed: true, Limit: limit.Tokens, Window: limit.Window, Reset: limit.Ends(time.Now())}}
	}
	return Verdict{Err: ErrExceedsLimit}
}

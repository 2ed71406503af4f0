package reservoir

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Result is the answer to one request. All of its fields come from the same
// reading of the same window. What comes with an error is no answer, and should
// not be looked at.
type Result struct {
	// Allowed says that the tokens were charged, and the request may go on.
	Allowed bool

	// Limit is the number of tokens per window.
	Limit int64

	// Remaining is what this process could still be given in the window: what
	// the store had left when it was last heard, and the stock at hand. Other
	// processes spend from it too. It is exact for Direct results.
	Remaining int64

	// Reset is the stored end of the window, to the millisecond: the same
	// instant for every process that reports it. It is zero where Check found no
	// open window, and this process' own guess where a Fallback knows of none.
	Reset time.Time

	// RetryAfter is the time until Reset when the request was refused, counted
	// from the decision, and 0 when it was allowed.
	RetryAfter time.Duration

	// Source says how the decision was made, and so what it cost.
	Source Source

	epoch   uint32 // of the entry that notes a direct call in window.direct; 0 = none does
	charged int64  // tokens; of the window that ends at Reset
}

// window is the window that r was charged to.
func (r Result) window() backend.Window { return backend.Window(r.Reset.UnixMilli()) }

// Source is where a decision came from.
type Source uint8

const (
	// Local: from stock in memory. No call, no wait.
	Local Source = iota
	// Fetched: the caller waited for a fetch that it shared with others.
	Fetched
	// Direct: by a call to the store for this request alone.
	Direct
	// Denied: refused from memory, the window being known to be exhausted.
	Denied
	// Fallback: by the failure policy, the store being away.
	Fallback
)

// String returns the name of s in lower case.
func (s Source) String() string {
	names := [...]string{"local", "fetched", "direct", "denied", "fallback"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// OnNetwork reports whether the caller waited for the store.
func (s Source) OnNetwork() bool { return s == Fetched || s == Direct }

package sim

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Outcome is what a policy made of a traffic. Requests == Admitted + Refused +
// Errors. Times are in nanoseconds, shares are of 1.
type Outcome struct {
	Policy string `json:"policy"`
	Kind   Kind   `json:"kind"`

	Requests   int64 `json:"requests"`
	Admitted   int64 `json:"admitted"`
	Refused    int64 `json:"refused"`
	Errors     int64 `json:"errors"`
	Remembered int64 `json:"refused_from_memory"` // of Refused, those that cost no call

	// Needless is refused requests that the limit had tokens for: in each window
	// no more than were still unspent at its end, or at the traffic's.
	Needless int64 `json:"refused_with_tokens_left"`
	Over     int64 `json:"over_the_limit"` // tokens, over all windows; 0, or the library is broken

	StoreCalls      int64   `json:"store_calls"` // until the last answer; those of Close not counted
	Sent            int64   `json:"-"`           // of them and those under way, when Setting.Windows had ended
	CallsPerRequest float64 `json:"store_calls_per_request"`
	MeanBatch       float64 `json:"mean_batch"` // tokens, of the calls that brought any; 0 = none did

	Waited      int64   `json:"waited"` // on the network
	WaitedShare float64 `json:"waited_share"`
	P50         int64   `json:"p50_ns"` // of answers; see Setting
	P99         int64   `json:"p99_ns"`
	Late        int64   `json:"late_p99_ns"` // after their times requests were made, of the traffic's time

	// Stranded is the share of the limit that lay unspent in processes when the
	// first request of a window was refused, on average over the windows with a
	// refusal: but for each key's first, which is cold, if there are others.
	Stranded        float64 `json:"stranded_share"`
	StrandedWindows int64   `json:"stranded_windows"`
	Cold            bool    `json:"stranded_cold"` // there were only first ones

	Timeline []Bucket  `json:"timeline"` // parts of the traffic's time, of equal lengths
	Windows  []*Window `json:"-"`        // by key, then by time
}

// Bucket is a part of the traffic's time. A request counts to the part in which it was
// made, a call to that in which it was sent.
type Bucket struct {
	Requests int64 `json:"requests"`
	Calls    int64 `json:"store_calls"`
}

// Window is what happened in one window of a key.
type Window struct {
	ID       backend.Window
	Calls    int64 // by all processes until a caller first heard of the window
	Requests int64
	Waited   int64 // of them, on the network
	Spent    int64
	Refused  int64
	Stranded int64 // tokens held and unspent in all processes, at the first refusal

	key   int32
	held  int64         // charged by batches and not spent
	short time.Duration // when the first refusal was answered
}

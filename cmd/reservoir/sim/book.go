package sim

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/go-reservoir/reservoir"
)

// book counts the results of requests, by the window in the result, and the calls that
// reached the store. It does not rely on the limiters' counts.
type book struct {
	Traffic
	limit int64

	mu      sync.Mutex
	windows map[Window]*Window // the keys have nothing but a key and an ID
	sum     Outcome            // only its counts
	calls   int64              // to the store so far
	latency Latency
	failure error // the first
}

func newBook(t Traffic, limit int64) *book {
	return &book{Traffic: t, limit: limit, windows: make(map[Window]*Window), latency: NewLatency()}
}

// call counts a call to the store that is about to be made.
func (b *book) call() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
}

// window returns the window of a key with that id, which is 0 if the reply had no window.
func (b *book) window(key string, id int64) *Window {
	name := Window{ID: id, key: key}
	if b.windows[name] == nil {
		b.windows[name] = &Window{ID: id, key: key}
	}
	return b.windows[name]
}

func (b *book) answer(q Request, r reservoir.Result, err error, took, late time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sum.Requests++
	b.latency.Note(took)
	if err != nil {
		b.sum.Errors++
		b.failure = cmp.Or(b.failure, err)
		return
	}
	p := b.window(b.Keys[q.Key], r.Reset.UnixMilli())
	if p.Requests++; p.Requests == 1 {
		p.Calls = b.calls
	}
	if r.Source == reservoir.Fetched || r.Source == reservoir.Direct {
		p.Waited++
	}
	if r.Allowed {
		p.admit(b.Tokens, q.At+late+took)
		return
	}
	if p.Refused++; p.Refused == 1 {
		p.Stranded, p.short = max(b.limit-p.Spent, 0), q.At+late+took
	}
}

// admit counts n spent tokens. If one reply serves some callers and refuses others at the same
// instant, their order is random, so tokens that are spent at the instant of the first refusal
// do not count as stranded.
func (p *Window) admit(n int64, at time.Duration) {
	p.Spent += n
	if p.Refused > 0 && p.short == at {
		p.Stranded = max(p.Stranded-n, 0)
	}
}

func (b *book) outcome() Outcome {
	b.mu.Lock()
	defer b.mu.Unlock()
	o := b.sum
	for _, w := range b.windows {
		o.Admitted, o.Refused, o.Waited = o.Admitted+w.Spent/b.Tokens, o.Refused+w.Refused, o.Waited+w.Waited
		if w.ID != 0 {
			o.Windows = append(o.Windows, w)
		}
	}
	slices.SortFunc(o.Windows, func(v, w *Window) int { return cmp.Or(cmp.Compare(v.key, w.key), cmp.Compare(v.ID, w.ID)) })
	var cold, steady []*Window
	for i, w := range o.Windows {
		o.Over += max(w.Spent-b.limit, 0)
		o.Needless += min(w.Refused, max(b.limit-w.Spent, 0)/b.Tokens)
		if i == 0 || o.Windows[i-1].key != w.key {
			cold = append(cold, w)
		} else {
			steady = append(steady, w)
		}
	}
	o.Stranded, o.StrandedWindows = Stranded(steady, b.limit)
	if o.StrandedWindows == 0 {
		o.Stranded, o.StrandedWindows = Stranded(cold, b.limit)
		o.Cold = o.StrandedWindows > 0
	}
	o.StoreCalls, o.CallsPerRequest = b.calls, Ratio(b.calls, o.Requests)
	o.WaitedShare = Ratio(o.Waited, o.Requests)
	o.P50, o.P99 = b.latency.Quantile(0.50), b.latency.Quantile(0.99)
	return o
}

// Stranded returns the share of a limit that was stranded at the first refusal of a window,
// on average over the windows with a refusal, and the number of these.
func Stranded(windows []*Window, limit int64) (share float64, short int64) {
	stranded := int64(0)
	for _, w := range windows {
		if w.Refused > 0 {
			short, stranded = short+1, stranded+w.Stranded
		}
	}
	return Ratio(stranded, short*limit), short
}

// Ratio returns a/b, and 0 for 0/0.
func Ratio(a, b int64) float64 { return float64(a) / float64(max(b, 1)) }

// Outcome is the result of a [Replay]. Requests == Admitted + Refused + Errors. Times are
// in nanoseconds, shares between 0 and 1.
type Outcome struct {
	Policy   string `json:"policy"`
	Requests int64  `json:"requests"`
	Admitted int64  `json:"admitted"`
	Refused  int64  `json:"refused"`
	Errors   int64  `json:"errors"`

	// Needless counts refused requests for which the limit had tokens: in each window at
	// most as many as its unspent tokens would have served.
	Needless int64 `json:"refused_with_tokens_left"`
	Over     int64 `json:"over_the_limit"` // tokens, over all windows; 0 unless the library has a bug

	StoreCalls      int64   `json:"store_calls"` // until the last answer, without those of Close
	CallsPerRequest float64 `json:"store_calls_per_request"`

	Waited      int64         `json:"waited"` // for the store
	WaitedShare float64       `json:"waited_share"`
	P50         time.Duration `json:"p50_ns"` // latency of answers; see Setting
	P99         time.Duration `json:"p99_ns"`

	// Stranded is the share of the limit that was not spent at the first
	// refusal of a window, on average over the windows with a refusal. The first window
	// of each key is cold and counts only if no other window has a refusal.
	Stranded        float64 `json:"stranded_share"`
	StrandedWindows int64   `json:"stranded_windows"`
	Cold            bool    `json:"stranded_cold"` // only first windows had refusals

	Windows []*Window `json:"-"` // by key, then by time
}

// Window is what happened in one window of a key.
type Window struct {
	ID       int64 // its end, Unix ms
	Calls    int64 // by all processes before the first answer of the window
	Requests int64
	Waited   int64 // requests that waited for the store
	Spent    int64
	Refused  int64
	Stranded int64 // tokens that were not spent yet, at the first refusal

	key   string
	short time.Duration // when the first refusal was answered
}

// Latency is a histogram of durations up to ten minutes, exact to 1 %, in 25 KB. It is not
// safe for concurrent use. Use [NewLatency], because the zero value is not ready.
type Latency struct{ *hdrhistogram.Histogram }

const slowest = int64(10 * time.Minute)

// NewLatency returns an empty histogram.
func NewLatency() Latency { return Latency{hdrhistogram.New(1, slowest, 2)} }

// Note adds a duration, or ten minutes if it is longer. It does not allocate.
func (l Latency) Note(d time.Duration) {
	_ = l.RecordValue(min(max(int64(d), 0), slowest)) // within its bounds
}

// Quantile returns the quantile q, such as 0.99 for the 99th percentile.
func (l Latency) Quantile(q float64) time.Duration {
	return time.Duration(l.ValueAtQuantile(100 * q))
}

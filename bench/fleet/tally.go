package fleet

import (
	"slices"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
)

// tally counts what requests were told, by the window that they were told. It
// does not ask the limiters what they admitted.
type tally struct {
	limit   reservoir.Limit
	windows int          // to be seen from beginning to end
	calls   func() int64 // to the store so far
	held    func() int64 // by all limiters now
	course  course

	mu     sync.Mutex
	seen   []*window // in order of their ends
	over   bool      // the last window has ended
	made   int64     // calls until then
	late   int64     // requests that were not made at their time
	failed error
}

// window is what happened in one window of the store.
type window struct {
	reset    time.Time
	before   int64 // calls, when the window was first heard of
	requests int64
	waited   int64 // of them
	spent    int64
	refused  int64
	stranded int64 // tokens, at the first refusal
}

// begin counts a request that was to be made at one instant and is made at
// another. It returns false when all windows have ended.
func (t *tally) begin(at, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.seen); n > t.windows || n == t.windows && now.After(t.seen[n-1].reset) {
		t.over, t.made = true, t.calls()
		return false
	}
	if !now.Equal(at) {
		t.late++
	}
	t.course.at(at, t.calls()).requests++
	return true
}

// end counts the answer to the request of an instant. Those that come when all
// windows have ended count only as spent: they may be over the limit.
func (t *tally) end(at time.Time, r reservoir.Result, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.failed = err
		return
	}
	w := t.window(r.Reset)
	w.requests++
	if r.Source.OnNetwork() {
		w.waited++
		t.course.at(at, t.calls()).waited++
	}
	if r.Allowed {
		w.spent++
		return
	}
	if w.refused++; w.refused == 1 {
		w.stranded = t.held()
	}
}

// window finds the window that ends at reset. It is nearly always the last;
// answers of the one before may come late.
func (t *tally) window(reset time.Time) *window {
	i := len(t.seen)
	for ; i > 0 && !t.seen[i-1].reset.Before(reset); i-- {
		if t.seen[i-1].reset.Equal(reset) {
			return t.seen[i-1]
		}
	}
	w := &window{reset: reset, before: t.calls()}
	t.seen = slices.Insert(t.seen, i, w)
	return w
}

// outcome is a row of the table: the windows in steady state, and the first, when
// nothing is known yet of anybody's demand.
type outcome struct {
	means
	cold     means
	admitted float64 // share of the limit, in the worst window
	over     int64   // tokens above the limit, in the worst window
	refused  int64
	requests int64
	course   []moment
}

// means are of some windows together. Shares are of 1.
type means struct {
	calls    float64 // per admitted request
	stranded float64 // of the limit, at a window's first refusal: on average
	waited   float64 // of all requests
}

func (t *tally) outcome() outcome {
	o := outcome{admitted: 1}
	for _, w := range t.seen[:t.windows] {
		o.refused += w.refused
		o.requests += w.requests
		o.over = max(o.over, w.spent-t.limit.Tokens)
		o.admitted = min(o.admitted, float64(w.spent)/float64(t.limit.Tokens))
	}
	o.means = t.measure(min(1, t.windows-1), t.windows)
	o.cold = t.measure(0, 1)
	o.course = t.course.moments(t.made)
	return o
}

// measure takes the windows from and up to, but not including, to.
func (t *tally) measure(from, to int) means {
	made := t.made
	if to < len(t.seen) {
		made = min(made, t.seen[to].before)
	}
	var begun, spent, requests, waited, stranded, short int64
	if from > 0 {
		begun = t.seen[from].before
	}
	for _, w := range t.seen[from:to] {
		spent += w.spent
		requests += w.requests
		waited += w.waited
		if w.refused > 0 {
			short++
			stranded += w.stranded
		}
	}
	return means{
		calls:    ratio(made-begun, spent),
		stranded: ratio(stranded, short*t.limit.Tokens),
		waited:   ratio(waited, requests),
	}
}

func ratio(a, b int64) float64 { return float64(a) / float64(max(b, 1)) }

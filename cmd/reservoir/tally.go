package main

import (
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/go-reservoir/reservoir"
)

// tally is what one worker saw, and after merging what all did. It belongs to
// one goroutine, so that counting costs no more than it must: about 30 ns a call
// and two readings of the clock.
type tally struct {
	requests, allowed, denied, errors, waited int64

	// late is the tokens of allowed requests whose window had ended before they
	// were even made, by this machine's clock: 0 unless that is ahead of the
	// store's, or a limit was broken.
	late int64

	latency *hdrhistogram.Histogram // ns
	slowest time.Duration
	windows [][]windowSum // by key, for the first of them
	failure error         // the first
	elapsed time.Duration
}

// windowSum is what was spent in one window of a key.
type windowSum struct{ reset, spent int64 } // Unix ms, tokens

// Bounds of the record.
const (
	windowKeys = 100 // keys whose windows are kept
	slowest    = int64(time.Minute)
	digits     = 2 // of a latency are exact, that is to 1 %: 30 KB a worker
)

func newTally(keys int) *tally {
	return &tally{
		latency: hdrhistogram.New(1, slowest, digits),
		windows: make([][]windowSum, min(keys, windowKeys)),
	}
}

// record counts one call.
func (t *tally) record(key int, n int64, r reservoir.Result, err error, begin time.Time, took time.Duration) {
	t.requests++
	t.slowest = max(t.slowest, took)
	_ = t.latency.RecordValue(min(max(int64(took), 1), slowest)) // within its bounds
	switch {
	case err != nil:
		t.fault(err)
	case r.Allowed:
		t.allowed++
		reset := r.Reset.UnixMilli()
		if begin.UnixMilli() > reset {
			t.late += n
		}
		if key < len(t.windows) {
			t.add(key, windowSum{reset, n})
		}
	default:
		t.denied++
	}
	if err == nil && r.Source.OnNetwork() { // an error may have come at once: nobody asks a store that is away
		t.waited++
	}
}

func (t *tally) fault(err error) {
	t.errors++
	if t.failure == nil {
		t.failure = err
	}
}

// add adds to a key's window, which nearly always is the last one that was.
func (t *tally) add(key int, s windowSum) {
	sums := t.windows[key]
	i := len(sums)
	for i > 0 && sums[i-1].reset > s.reset {
		i--
	}
	if i > 0 && sums[i-1].reset == s.reset {
		sums[i-1].spent += s.spent
		return
	}
	t.windows[key] = slices.Insert(sums, i, s)
}

// merge adds what another worker saw.
func (t *tally) merge(o *tally) {
	t.requests += o.requests
	t.allowed += o.allowed
	t.denied += o.denied
	t.errors += o.errors
	t.waited += o.waited
	t.late += o.late
	t.slowest = max(t.slowest, o.slowest)
	t.latency.Merge(o.latency)
	if t.failure == nil {
		t.failure = o.failure
	}
	for key, sums := range o.windows {
		for _, s := range sums {
			t.add(key, s)
		}
	}
}

package main

import (
	"cmp"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/go-reservoir/reservoir"
)

// tally is what one worker saw, and after merging what all did. It belongs to
// one goroutine, so that counting costs no more than it must: about 60 ns a call
// and two readings of the clock.
type tally struct {
	requests, allowed, denied, errors, waited int64

	// late is the tokens of allowed requests whose window had ended before they
	// were even made, by this machine's clock: 0 unless that is ahead of the
	// store's, or a limit was broken.
	late int64

	latency *hdrhistogram.Histogram // ns
	slowest time.Duration
	windows map[windowOf]int64 // spent, of the first keys
	failure error              // the first
	elapsed time.Duration
}

// windowOf is a window of a key, by its number and in Unix ms.
type windowOf struct {
	key   int
	reset int64
}

// Bounds of the record.
const (
	windowKeys = 100 // keys whose windows are kept
	slowest    = int64(time.Minute)
	digits     = 2 // of a latency are exact, that is to 1 %: 30 KB a worker
)

func newTally() *tally {
	return &tally{latency: hdrhistogram.New(1, slowest, digits), windows: make(map[windowOf]int64)}
}

// record counts one call.
func (t *tally) record(key int, n int64, r reservoir.Result, err error, begin time.Time, took time.Duration) {
	t.requests++
	t.slowest = max(t.slowest, took)
	_ = t.latency.RecordValue(min(max(int64(took), 1), slowest)) // within its bounds
	switch {
	case err != nil:
		t.errors++
		t.failure = cmp.Or(t.failure, err)
	case r.Allowed:
		t.allowed++
		reset := r.Reset.UnixMilli()
		if begin.UnixMilli() > reset {
			t.late += n
		}
		if key < windowKeys {
			t.windows[windowOf{key, reset}] += n
		}
	default:
		t.denied++
	}
	if err == nil && r.Source.OnNetwork() { // an error may have come at once: nobody asks a store that is away
		t.waited++
	}
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
	t.failure = cmp.Or(t.failure, o.failure)
	for w, n := range o.windows {
		t.windows[w] += n
	}
}

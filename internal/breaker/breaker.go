// Package breaker keeps callers from waiting for a shard of the store that does not
// answer: a circuit breaker (Nygard, "Release It!", 2007), with an estimate of how
// long the shard takes to answer.
//
// The libraries that we know probe with a real request, which would wait and charge.
// Here a try asks for nothing and nobody waits for it.
package breaker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/internal/chance"
)

// Breaker is the state of one shard. The zero Breaker is closed: calls go to the shard.
// It is safe for concurrent use. Times are nanoseconds of the owner's clock.
type Breaker struct {
	Open atomic.Bool  // calls are withheld; written by Record
	Lead atomic.Int64 // ns: the mean time from ordering a batch to having it, four deviations, and Slop; written by ObserveLead

	mu        sync.Mutex
	failures  int // in a row
	trying    bool
	changed   int64 // when it last opened or closed
	until     int64 // time of the next try
	pause     time.Duration
	cause     error // why it is open
	rejecting bool
	rejected  int64         // when the last call was rejected
	changes   []Change      // not reported yet, in order
	reporting bool          // a Report is under way
	mean, dev time.Duration // of the time from ordering a batch to having it
}

// Change is a change of state, as the hook receives it.
type Change struct {
	Open      bool
	Rejecting bool
	Err       error // why; nil when all is well again
}

// Outcome is how a call to the shard ended.
type Outcome uint8

const (
	// Answered: the shard serves.
	Answered Outcome = iota
	// Failed: no answer, or the shard turned the call away for now.
	Failed
	// Rejected: the shard answers, and refuses to serve until an operator acts.
	Rejected
	// Neutral says nothing of the shard: the answer is about one key, or the caller
	// gave up.
	Neutral
)

const (
	failuresToOpen = 5
	shortestPause  = 100 * time.Millisecond // before the first try, at least half of it; it doubles
	longestPause   = time.Second
	calm           = time.Second // after so long without a rejection, a served call ends the rejecting state
)

// Cause is the error that keeps the breaker open; nil if it is closed.
func (b *Breaker) Cause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause
}

// Watched reports whether the shard has to be tried, because calls are withheld or rejected.
func (b *Breaker) Watched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Open.Load() || b.rejecting
}

// Due reports whether it is time for a try. If so, the caller must make a call and
// Record its outcome.
func (b *Breaker) Due(now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.Open.Load() && !b.rejecting || b.trying || now < b.until {
		return false
	}
	b.trying = true
	return true
}

// NextTry is when the next try is due, while the shard is watched.
func (b *Breaker) NextTry() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until
}

// Record records the outcome of a call that was sent at sent. Many calls are in flight
// when the breaker opens, so a failed or neutral call that was sent before the last
// change is no news, and delays no try. Served calls do not end the rejecting state until calm has
// passed. Record reports whether the shard has to be tried from now on, and whether calls were withheld until now.
func (b *Breaker) Record(sent, now int64, o Outcome, err error) (watch, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := Change{Open: b.Open.Load(), Rejecting: b.rejecting}
	is := Change{Rejecting: was.Rejecting, Err: err}
	switch {
	case o == Neutral:
		if b.trying && sent >= b.changed { // try again, perhaps with another key
			b.trying, b.until = false, now+int64(shortestPause)
		}
		return false, false
	case o == Failed && sent < b.changed:
		return false, false
	case o == Failed:
		b.trying = false
		if b.failures++; b.failures < failuresToOpen {
			return false, false
		}
		b.pause = min(max(2*b.pause, shortestPause), longestPause)
		b.until = now + int64(b.pause/2+chance.Part(b.pause/2))
		is.Open, is.Rejecting, b.cause = true, false, err
	default: // it answers, so the failures were not in a row, and the next outage begins anew
		b.trying, b.failures, b.pause, b.cause = false, 0, 0, nil
		if o == Rejected {
			is.Rejecting, b.rejected, b.until = true, now, now+int64(calm)
		} else if is.Err = nil; now-b.rejected >= int64(calm) {
			is.Rejecting = false
		}
	}
	// A change of the state is reported later, in order, because no hook is called under the lock. Only opening and closing
	// make calls in flight stale.
	if is.Open != was.Open {
		b.Open.Store(is.Open)
		b.changed = now
	}
	if b.rejecting = is.Rejecting; is.Open != was.Open || is.Rejecting != was.Rejecting {
		b.changes = append(b.changes, is)
	}
	return is.Open && !was.Open || is.Rejecting && !was.Rejecting, was.Open && !is.Open
}

// Reset closes the breaker of a shard that has no keys any more, as an answer after a calm does.
func (b *Breaker) Reset(now int64) {
	b.mu.Lock()
	b.rejected = now - int64(calm)
	b.mu.Unlock()
	b.Record(now, now, Answered, nil)
}

// Report calls the hook for each pending change, in order and with no lock held. If
// another Report is under way, that one reports these changes too. After a panic of the
// hook the next Report goes on with the next change.
func (b *Breaker) Report(hook func(Change)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reporting {
		return
	}
	b.reporting = true
	defer func() { b.reporting = false }()
	for len(b.changes) > 0 {
		c := b.changes[0]
		b.changes = b.changes[1:]
		func() {
			b.mu.Unlock()
			defer b.mu.Lock() // even if the hook panics
			hook(c)
		}()
	}
	b.changes = nil
}

// Slop is added to the lead time for the scheduling of goroutines. It is all of it before the first call.
const Slop = time.Millisecond

// ObserveLead records how long it took from ordering a batch to having it. The estimate is that of TCP for round trips (RFC
// 6298: smoothed mean and mean deviation).
func (b *Breaker) ObserveLead(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mean == 0 {
		b.mean, b.dev = d, d/2
	} else {
		b.dev += (max(b.mean-d, d-b.mean) - b.dev) / 4
		b.mean += (d - b.mean) / 8
	}
	b.Lead.Store(int64(b.mean + 4*b.dev + Slop))
}

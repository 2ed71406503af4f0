// Package breaker keeps callers from waiting for a shard of the store that does not
// answer: a circuit breaker (Nygard, "Release It!", 2007), with an estimate of how
// long the shard takes to answer.
//
// The libraries that we know probe with a real request, which would wait and charge.
// Here a probe asks for nothing and nobody waits for it.
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
	open atomic.Bool

	mu        sync.Mutex
	failures  int // in a row
	probing   bool
	changed   int64 // when it last opened or closed
	until     int64 // time of the next probe
	pause     time.Duration
	cause     error // why it is open
	rejecting bool
	rejected  int64    // when the last call was rejected
	changes   []Change // not reported yet, in order
	reporting bool     // a Report is under way
	roundTrip lead
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
	shortestPause  = 100 * time.Millisecond // before the first probe, at least half of it; it doubles
	longestPause   = time.Second
	calm           = time.Second // after so long without a rejection, a served call ends the rejecting state
)

// Open reports whether calls are withheld.
func (b *Breaker) Open() bool { return b.open.Load() }

// Cause is the error that keeps the breaker open; nil if it is closed.
func (b *Breaker) Cause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.cause
}

// Watched reports whether the shard needs probes, because calls are withheld or rejected.
func (b *Breaker) Watched() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open.Load() || b.rejecting
}

// Due reports whether it is time for a probe. If so, the caller must make a call and
// Record its outcome.
func (b *Breaker) Due(now int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.open.Load() && !b.rejecting || b.probing || now < b.until {
		return false
	}
	b.probing = true
	return true
}

// NextProbe is when the next probe is due, while the shard is watched.
func (b *Breaker) NextProbe() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.until
}

// Record records the outcome of a call that was sent at sent. Many calls are in flight
// when the breaker opens, so a failed or neutral call that was sent before the last
// change is no news, and delays no probe. Record reports whether the shard needs probes
// from now on.
func (b *Breaker) Record(sent, now int64, o Outcome, err error) (watch bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch o {
	case Answered, Rejected:
		return b.answered(now, o == Rejected, err)
	case Neutral:
		if b.probing && sent >= b.changed { // probe again, perhaps with another key
			b.probing, b.until = false, now+int64(shortestPause)
		}
		return false
	}
	if sent < b.changed {
		return false
	}
	b.probing = false
	if b.failures++; b.failures < failuresToOpen {
		return false
	}
	b.pause = min(max(2*b.pause, shortestPause), longestPause)
	b.until = now + int64(b.pause/2+chance.Part(b.pause/2))
	watch = !b.open.Load()
	b.set(true, false, err, now)
	b.cause = err
	return watch
}

// answered records that the shard answers, and reports whether this is the first
// rejection. Served calls do not end the rejecting state until calm has passed.
func (b *Breaker) answered(now int64, rejects bool, err error) (first bool) {
	b.probing, b.failures, b.pause, b.cause = false, 0, 0, nil
	switch {
	case rejects:
		first = !b.rejecting
		b.rejected, b.until = now, now+int64(calm)
		b.set(false, true, err, now)
	case !b.rejecting || now-b.rejected >= int64(calm):
		b.set(false, false, nil, now)
	}
	return first
}

// set changes the state of the shard to well, away or rejecting.
func (b *Breaker) set(open, rejecting bool, err error, now int64) {
	if b.open.Load() == open && b.rejecting == rejecting {
		return
	}
	if b.open.Swap(open) != open {
		b.changed = now
	}
	b.rejecting = rejecting
	b.changes = append(b.changes, Change{Open: open, Rejecting: rejecting, Err: err})
}

// Reset closes the breaker of a shard that has no keys any more.
func (b *Breaker) Reset(now int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing, b.failures, b.pause, b.cause = false, 0, 0, nil
	b.set(false, false, nil, now)
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
		b.call(hook, c)
	}
	b.changes = nil
}

// call calls the hook without the lock, which it takes again even if the hook panics.
func (b *Breaker) call(hook func(Change), c Change) {
	b.mu.Unlock()
	defer b.mu.Lock()
	hook(c)
}

// lead estimates how long it takes from ordering a batch to having it: the round trip
// as TCP estimates it (RFC 6298: smoothed mean and mean deviation).
type lead struct{ mean, dev time.Duration }

// slop is added to the lead time for the scheduling of goroutines.
const slop = time.Millisecond

// ObserveLead records how long a fetch took.
func (b *Breaker) ObserveLead(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := &b.roundTrip
	if t.mean == 0 {
		t.mean, t.dev = d, d/2
		return
	}
	t.dev += (max(t.mean-d, d-t.mean) - t.dev) / 4
	t.mean += (d - t.mean) / 8
}

// Lead is the mean time from ordering a batch to having it, plus four deviations and slop.
func (b *Breaker) Lead() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.roundTrip.mean + 4*b.roundTrip.dev + slop
}

package reservoir

import (
	"sync/atomic"
	"time"
)

// clock is the limiter's time: nanoseconds since it was made, by the monotonic
// clock, plus all the time that the machine was suspended, during which
// CLOCK_MONOTONIC stands still on Linux and tokens grow old all the same.
//
// A suspension shows as a leap of the wall clock over the monotonic one. The
// wall clock is looked at once in lookEvery of monotonic time, so that the usual
// reading costs one clock and two loads. A wall clock that is set forward looks
// the same; stock is then thought older than it is, which is safe, and the next
// reply of the store puts the deadline right.
type clock struct {
	base    time.Time
	wall    func() int64 // Unix ns; time.Now but in tests
	slept   atomic.Int64 // ns added for suspensions
	next    atomic.Int64 // monotonic ns since base of the next look
	lastGap atomic.Int64 // wall minus monotonic at the last look, ns
}

const (
	lookEvery = int64(10 * time.Millisecond)
	leap      = int64(50 * time.Millisecond) // a smaller step is the clock's slewing
)

func (c *clock) init() {
	c.base = time.Now()
	c.wall = func() int64 { return time.Now().UnixNano() }
	c.lastGap.Store(c.wall())
}

// now costs one reading of the monotonic clock.
func (c *clock) now() int64 {
	t := int64(time.Since(c.base))
	if t >= c.next.Load() {
		c.look(t)
	}
	return t + c.slept.Load()
}

// look compares the two clocks. Between looks the wall clock may drift by
// 1/1000 for slewing; what it gains beyond that and leap counts as slept.
func (c *clock) look(t int64) {
	due := c.next.Load()
	if t < due || !c.next.CompareAndSwap(due, t+lookEvery) {
		return // another goroutine looks
	}
	since := t - (due - lookEvery)
	gap := c.wall() - t
	if gained := gap - c.lastGap.Swap(gap); gained > leap+since/1000 {
		c.slept.Add(gained)
	}
}

// Package monotime is a monotonic clock that counts suspensions of the machine.
//
// On Linux CLOCK_MONOTONIC stands still while the machine is suspended, but windows of
// the store end all the same. A suspension shows as a jump of the wall clock relative to
// the monotonic one. A wall clock that is set forward looks the same. That jump is
// treated as elapsed time too, which is safe for leases, and the next reply of the store
// corrects the deadline.
package monotime

import (
	"sync/atomic"
	"time"
)

// Clock counts nanoseconds since Init: monotonic time plus the time for which the machine
// was suspended. Call Init before use; then the Clock is safe for concurrent use.
//
// The wall clock is read once per lookEvery, so that Now usually costs one reading of
// the monotonic clock and two loads.
type Clock struct {
	base    time.Time
	read    func() (wall, mono int64) // both in one reading; replaced in tests
	slept   atomic.Int64              // ns added for suspensions
	next    atomic.Int64              // monotonic ns of the next look at the wall clock
	lastGap atomic.Int64              // wall minus monotonic at the last look, ns
}

const (
	lookEvery = int64(10 * time.Millisecond)
	jump      = int64(50 * time.Millisecond) // a smaller step is the wall clock's slewing
)

// Init starts the clock at zero. Call it once, before anything else.
func (c *Clock) Init() {
	c.base = time.Now()
	c.read = func() (wall, mono int64) {
		now := time.Now() // has both readings
		return now.UnixNano(), int64(now.Sub(c.base))
	}
	wall, mono := c.read()
	c.lastGap.Store(wall - mono)
}

// Now returns the nanoseconds since Init.
func (c *Clock) Now() int64 {
	t := int64(time.Since(c.base))
	if t >= c.next.Load() {
		c.look(t)
	}
	return t + c.slept.Load()
}

// Pass lets d pass at once, or takes it back if d is negative. It is for tests on a virtual clock, in which nothing else passes.
func (c *Clock) Pass(d time.Duration) { c.slept.Add(int64(d)) }

// look compares the two clocks. Between looks the wall clock may gain 1/1000 by
// slewing; a gain above that and jump counts as slept. A jump, in either
// direction, is believed only when a second reading confirms it, because a goroutine may
// have been held up between the two halves of the first. If two goroutines see the same
// jump, because one was held up, only one counts it.
func (c *Clock) look(t int64) {
	due := c.next.Load()
	if t < due || !c.next.CompareAndSwap(due, t+lookEvery) {
		return // another goroutine looks
	}
	most := jump + (t-(due-lookEvery))/1000
	last := c.lastGap.Load()
	gained := c.gap() - last
	if gained > most || gained < -most {
		if again := c.gap() - last; max(again, -again) < max(gained, -gained) {
			gained = again
		}
	}
	if c.lastGap.CompareAndSwap(last, last+gained) && gained > most {
		c.slept.Add(gained)
	}
}

func (c *Clock) gap() int64 {
	wall, mono := c.read()
	return wall - mono
}

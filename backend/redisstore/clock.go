package redisstore

import (
	"context"
	"sync"
	"time"
)

// serverClock estimates the server's clock from its replies, so that a command can
// carry the latest instant at which it still makes sense. A call that sat out an
// outage in a socket or a proxy then does nothing when it is delivered.
//
// A reply read at local time r that was written at server time s shows that the
// server is ahead of us by at least s-r. The largest such bound of the last minute is
// off by no more than the fastest reply was slow; it errs early, which margin makes up
// for. With a cluster it follows the node whose clock is furthest ahead: later than
// need be for the others, never too early.
type serverClock struct {
	mu       sync.Mutex
	base     time.Time     // zero = nothing was heard yet
	cur, old time.Duration // lower bounds of server time (Unix) minus local time since base
	turned   time.Duration // local time at which cur became old
}

const (
	turn   = 30 * time.Second
	margin = 20 * time.Millisecond
)

// heard notes that the server said now (Unix us) in a reply that was just read.
func (c *serverClock) heard(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.base.IsZero()
	if first {
		c.base = time.Now()
	}
	at := time.Since(c.base)
	bound := time.Duration(now)*time.Microsecond - at
	switch {
	case first:
		c.cur, c.old = bound, bound
	case at-c.turned > turn:
		c.old, c.cur, c.turned = c.cur, bound, at
	default:
		c.cur = max(c.cur, bound)
	}
}

// reading is what a serverClock knew at one instant. A pipeline takes one for all
// of its calls.
type reading struct {
	base  time.Time
	ahead time.Duration // of the server, to local time since base
}

func (c *serverClock) read() reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	return reading{c.base, max(c.cur, c.old)}
}

// limit returns the server time, Unix us, after which a call made under ctx must not
// run any more, or 0 where that is not known.
func (r reading) limit(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok || r.base.IsZero() {
		return 0
	}
	return (r.ahead + deadline.Sub(r.base) + margin).Microseconds()
}

package redisstore

import (
	"context"
	"sync"
	"time"
)

// serverClock estimates the server's clock from its replies, so that a command can
// carry the latest instant at which it still makes sense. A call that an outage has held
// up in a socket or a proxy does nothing if it is delivered after that instant.
//
// A reply read at local time r that was written at server time s shows that the server
// is ahead of us by at least s-r. The largest such bound of the last minute is too early
// by no more than the latency of the fastest reply, and margin makes up for that. In a
// cluster it follows the node whose clock is furthest ahead: for the others it is later
// than necessary, never too early.
type serverClock struct {
	mu       sync.Mutex
	base     time.Time     // zero = no reply yet
	cur, old time.Duration // lower bounds of server time (Unix) minus local time since base
	turned   time.Duration // local time at which cur became old
}

const (
	turn   = 30 * time.Second
	margin = 20 * time.Millisecond
)

// observe records the server's time now (Unix us) from a reply that was just read.
func (c *serverClock) observe(now int64) {
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

// reading is the estimate of a serverClock at one instant. A pipeline uses one reading
// for all of its calls.
type reading struct {
	base  time.Time
	ahead time.Duration // server time (Unix) minus local time since base
}

func (c *serverClock) read() reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	return reading{c.base, max(c.cur, c.old)}
}

// limit returns the server time, Unix us, after which a call made under ctx must no
// longer run, or 0 if that is unknown.
func (r reading) limit(ctx context.Context) int64 {
	deadline, ok := ctx.Deadline()
	if !ok || r.base.IsZero() {
		return 0
	}
	return (r.ahead + deadline.Sub(r.base) + margin).Microseconds()
}

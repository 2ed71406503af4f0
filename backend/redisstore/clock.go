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
	cur, old time.Duration // lower bounds of server time (Unix) minus local time; 0 = no reply yet
	turned   time.Duration // local time at which cur became old
}

const (
	turn   = 30 * time.Second
	margin = 20 * time.Millisecond
)

// started is where local time begins. Unlike the wall clock, local time does not jump.
var started = time.Now()

// observe records the server's time now (Unix us) from a reply that was just read.
func (c *serverClock) observe(now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Since(started)
	if at-c.turned > turn {
		c.old, c.cur, c.turned = c.cur, 0, at
	}
	c.cur = max(c.cur, time.Duration(now)*time.Microsecond-at)
}

// ahead returns the estimate, server time (Unix) minus local time, or 0 before the first
// reply.
func (c *serverClock) ahead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.cur, c.old)
}

// notAfter returns the server time, Unix us, after which a call made under ctx must no
// longer run, or 0 if that is unknown.
func notAfter(ctx context.Context, ahead time.Duration) int64 {
	deadline, ok := ctx.Deadline()
	if !ok || ahead == 0 {
		return 0
	}
	return (ahead + deadline.Sub(started) + margin).Microseconds()
}

// Package inflight counts calls, so that whoever closes can wait for their end. A
// sync.WaitGroup cannot do it: calls may begin while somebody waits.
package inflight

import "sync"

// Counter counts calls in flight. The zero Counter is open. It is safe for concurrent
// use.
type Counter struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed when n is 0, once the counter is
}

// Begin counts a call, and reports false if the counter is closed.
func (c *Counter) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.n++
	return true
}

// End ends a call that has begun.
func (c *Counter) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.closed && c.n == 0 {
		close(c.idle)
	}
}

// Close lets no more calls begin. The channel is closed when none is in flight.
func (c *Counter) Close() (idle <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed, c.idle = true, make(chan struct{})
		if c.n == 0 {
			close(c.idle)
		}
	}
	return c.idle
}

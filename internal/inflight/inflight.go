// Package inflight counts calls in flight, so that a Close can wait for their end. A
// sync.WaitGroup does not suit, because calls may begin while a Close waits.
package inflight

import "sync"

// Counter counts calls in flight. The zero Counter is open. It is safe for concurrent
// use.
type Counter struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // made by Close; closed when n is 0 after that
}

// Begin counts a call. If the counter is closed it returns false and counts nothing.
func (c *Counter) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.n++
	return true
}

// Add counts a call that another call in flight makes, even if the counter is closed.
func (c *Counter) Add() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
}

// End ends a call that has begun.
func (c *Counter) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n--; c.closed && c.n == 0 {
		close(c.idle)
	}
}

// Close lets no more calls begin. The channel is closed when no call is in flight.
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

// Package deadline provides a context whose timer starts only when Done is called.
//
// context.WithTimeout starts a timer and makes a channel at once. Most store calls are
// over long before their deadline, and nobody waits for it. Timer and channel were a
// sixth of the cost of a key's first request.
package deadline

import (
	"context"
	"sync"
	"time"
)

// Context ends at an instant, or when it is released. It costs one allocation until Done
// is called; a store may obey Deadline alone. Its owner does not rely on the store to
// return in time, so a store that must know the outcome of a call may return late. It is
// safe for concurrent use.
type Context struct {
	at     time.Time
	values context.Context

	mu    sync.Mutex
	done  chan struct{} // made on demand, with its timer
	timer *time.Timer
	err   error
}

var _ context.Context = (*Context)(nil)

// After returns a context that ends d from now. It has the values of the given context,
// but does not end with it. Call Release when the work is done.
func After(values context.Context, d time.Duration) *Context {
	return &Context{at: time.Now().Add(d), values: values}
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) { return c.at, true }

// Value implements context.Context.
func (c *Context) Value(key any) any { return c.values.Value(key) }

// Done implements context.Context. Its first call starts a timer.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.look() != nil {
			close(c.done)
		} else {
			c.timer = time.AfterFunc(time.Until(c.at), func() { c.end(context.DeadlineExceeded) })
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.look()
}

// look returns the error, which it sets at the end unless a timer does.
func (c *Context) look() error {
	if c.err == nil && c.timer == nil && !time.Now().Before(c.at) {
		c.err = context.DeadlineExceeded
	}
	return c.err
}

// Release ends the context, as a CancelFunc does.
func (c *Context) Release() { c.end(context.Canceled) }

func (c *Context) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	if c.timer != nil {
		c.timer.Stop()
		close(c.done)
	}
}

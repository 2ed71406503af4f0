package memcachestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
)

const (
	// attempts is how often a call reads and writes before it gives up. 64 callers
	// that write one key without pause need about ten.
	attempts = 64

	// The longest mean pause after a conflict: in attempts' time, and at all.
	maxSpread = 16
	maxPause  = 50 * time.Millisecond

	// maxCuts is how many connections may break under a call that goes on.
	maxCuts = 2
)

// call is one operation on one key.
type call[T any] struct {
	store   *Store
	op, key string                                // memcached's key
	step    func(c *counter.Counter, now int64) T // pure: it may be made again
	repeat  bool                                  // also when it may have been carried out
	undo    func(ctx context.Context, reply T)    // when nobody waits for the reply any more; nil = nothing to undo

	// mu is held for a moment, by the caller who leaves and the goroutine that works
	// for it, so that they agree on what was sent and on who deals with the reply.
	mu   sync.Mutex
	sent bool // a write was sent that may have been carried out
	left bool // the caller has left: write nothing more
	done bool // there is a reply, and the caller gets it
}

// run makes the call and returns when it is done or ctx ends, whichever is first.
func run[T any](ctx context.Context, c *call[T]) (reply T, err error) {
	if c.store.err != nil {
		return reply, c.fail(backend.Rejected, c.store.err)
	}
	if err := ctx.Err(); err != nil {
		return reply, c.fail(backend.Unavailable, err)
	}
	if ctx.Done() == nil { // nobody can leave
		return c.try(ctx)
	}
	type outcome struct {
		reply T
		err   error
	}
	back := make(chan outcome, 1)
	go func() {
		reply, err := c.try(ctx)
		if !c.finish() && err == nil && c.undo != nil {
			c.undo(context.WithoutCancel(ctx), reply)
		}
		back <- outcome{reply, err}
	}()
	select {
	case <-ctx.Done():
		if class, done := c.leave(); !done {
			return reply, c.fail(class, ctx.Err())
		}
	case o := <-back:
		return o.reply, o.err
	}
	o := <-back
	return o.reply, o.err
}

func (c *call[T]) fail(class backend.Class, err error) *backend.Error {
	return &backend.Error{Op: c.op, Class: class, Err: err}
}

// try makes attempts until one succeeds or none will.
func (c *call[T]) try(ctx context.Context) (reply T, err error) {
	var why *backend.Error
	unsure, cuts := false, 0 // an earlier attempt may have been carried out; connections that broke
	for i := range attempts {
		began := time.Now()
		if reply, why = c.attempt(ctx); why == nil {
			return reply, nil
		}
		unsure = unsure || why.Class == backend.Unknown
		c.settle(unsure)
		if broken(why.Err) {
			_ = c.store.client.Close() // the idle ones, which have died with it
			cuts++
		}
		if unsure && !c.repeat || cuts > maxCuts || !broken(why.Err) && !errors.Is(why.Err, ErrContended) {
			break
		}
		if !pause(ctx, i, time.Since(began)) {
			why.Err = fmt.Errorf("%w: %w", ctx.Err(), why.Err)
			break
		}
	}
	if unsure {
		why.Class = backend.Unknown
	}
	var none T // not what an attempt that failed would have said
	return none, why
}

// attempt reads the item, makes the step, and writes what has changed, unless
// somebody else was quicker.
func (c *call[T]) attempt(ctx context.Context) (reply T, why *backend.Error) {
	client := c.store.client
	old, err := client.Get(c.key)
	if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		return reply, c.fail(backend.Unavailable, err)
	}
	var k counter.Counter
	item, write := &memcache.Item{Key: c.key}, client.Add
	if old != nil {
		if old.CasID == 0 {
			return reply, c.fail(backend.Rejected, errNoCAS)
		}
		if err := k.UnmarshalText(old.Value); err != nil {
			return reply, c.fail(backend.Rejected, err)
		}
		item, write = old, client.CompareAndSwap
	}
	now := c.store.keyTime(ctx, &k, item.Flags)
	reply = c.step(&k, now)
	if !k.Opened() {
		return reply, nil
	}
	before := item.Value
	item.Value, _ = k.AppendText(nil)
	switch {
	case bytes.Equal(item.Value, before):
		return reply, nil
	case len(item.Value) > max(maxValue, len(before)):
		return reply, c.fail(backend.Rejected, ErrLedgerFull)
	case !c.send():
		return reply, c.fail(backend.Unavailable, ctx.Err())
	}
	item.Flags, item.Expiration = leftAt(k.Left(now)), expiration(k.Left(now), c.store.now())
	if err := write(item); err != nil {
		return reply, c.fail(judge(err))
	}
	return reply, nil
}

// judge says what a write's error means, and what to call it.
func judge(err error) (backend.Class, error) {
	switch {
	case errors.Is(err, memcache.ErrCASConflict), errors.Is(err, memcache.ErrNotStored), errors.Is(err, memcache.ErrCacheMiss):
		return backend.Unavailable, ErrContended
	case unsent(err):
		return backend.Unavailable, err
	case refused(err):
		return backend.Rejected, err
	default:
		return backend.Unknown, err
	}
}

// unsent reports whether there was no connection to write to.
func unsent(err error) bool {
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return true
	}
	_, late := errors.AsType[*memcache.ConnectTimeoutError](err)
	return late || errors.Is(err, memcache.ErrNoServers)
}

// refused reports whether the server has answered SERVER_ERROR, as when there is no
// memory, CLIENT_ERROR or ERROR. gomemcache has the reply only in its text.
func refused(err error) bool {
	_, reply, ok := strings.Cut(err.Error(), "unexpected response line from ")
	return ok && strings.Contains(reply, "ERROR")
}

// broken reports whether the connection has ended. A pool is full of such ones when
// the server was restarted, and a new one may be whole.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// pause waits after attempt i, which took so long, and reports whether to make
// another one. Its mean doubles from attempt to attempt: of n writers one succeeds
// in the time of an attempt, so that they had best be n attempts apart.
func pause(ctx context.Context, i int, took time.Duration) bool {
	mean := min(took*time.Duration(min(1<<min(i, 30), maxSpread)), maxPause)
	t := time.NewTimer(rand.N(2*mean + 1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send notes that a write is about to be sent, unless the caller has left.
func (c *call[T]) send() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = c.sent || !c.left
	return !c.left
}

// settle notes whether anything that was sent may have been carried out.
func (c *call[T]) settle(unsure bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = unsure
}

// leave notes that the caller has left, and says what it has to assume, or that the
// call is done after all.
func (c *call[T]) leave() (class backend.Class, done bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	if !c.sent {
		class = backend.Unavailable
	}
	return class, c.done
}

// finish notes that there is a reply, and reports whether the caller waits for it.
func (c *call[T]) finish() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = !c.left
	return c.done
}

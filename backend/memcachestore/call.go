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
	"sync/atomic"
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
	store  *Store
	op     string
	key    string                                // memcached's
	step   func(c *counter.Counter, now int64) T // pure: it may be made again
	repeat bool                                  // also when it may have been carried out
	undo   func(ctx context.Context, reply T)    // when nobody waits for the reply any more; nil = nothing to undo

	// progress is what the caller who leaves and the goroutine that works for it agree on:
	// what was sent, and who deals with the reply.
	progress atomic.Int32
}

const (
	unsent   int32 = iota // nothing was sent that may have been carried out
	sent                  // a write that may have been
	answered              // there is a reply, and the caller gets it
	left                  // the caller has left: nothing more is written
)

// enter notes progress of the goroutine, unless the caller has left.
func (c *call[T]) enter(next int32) bool {
	now := c.progress.Load()
	return now != left && c.progress.CompareAndSwap(now, next)
}

// run makes the call of a request that is not faulty, and returns when it is done or ctx
// ends, whichever is first.
func run[T any](ctx context.Context, faulty error, c *call[T]) (reply T, err error) {
	switch {
	case faulty != nil:
		return reply, faulty
	case c.store.err != nil:
		return reply, c.fail(backend.Rejected, c.store.err)
	case ctx.Err() != nil:
		return reply, c.fail(backend.Unavailable, ctx.Err())
	case ctx.Done() == nil: // nobody can leave
		return c.try(ctx)
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		answer, why := c.try(ctx)
		if c.enter(answered) {
			reply, err = answer, why
		} else if why == nil && c.undo != nil {
			c.undo(context.WithoutCancel(ctx), answer)
		}
	}()
	select {
	case <-back:
	case <-ctx.Done():
		switch c.progress.Swap(left) {
		case unsent:
			return reply, c.fail(backend.Unavailable, ctx.Err())
		case sent:
			return reply, c.fail(backend.Unknown, ctx.Err())
		}
		<-back
	}
	return reply, err
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
		if !unsure {
			c.enter(unsent)
		}
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
	case !c.enter(sent):
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
	case notSent(err):
		return backend.Unavailable, err
	case refused(err):
		return backend.Rejected, err
	default:
		return backend.Unknown, err
	}
}

// notSent reports whether there was no connection to write to.
func notSent(err error) bool {
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

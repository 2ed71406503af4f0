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
	"github.com/go-reservoir/reservoir/internal/guard"
)

const (
	// attempts is how often a call reads and writes before it gives up. If 64 callers
	// write one key without pause, each call needs about ten.
	attempts = 64

	// The longest mean pause after a conflict: as a multiple of an attempt's time, and in all.
	maxSpread = 16
	maxPause  = 50 * time.Millisecond

	// tooMany is the answer of a server to a connection beyond its option -c.
	tooMany = "ERROR Too many open connections"

	// maxCuts is the number of broken connections after which a call still goes on.
	maxCuts = 2
)

// call is one operation on one key.
type call[T any] struct {
	store  *Store
	op     string
	key    string                                // memcached's
	step   func(c *counter.Counter, now int64) T // pure: it may be made again
	repeat bool                                  // even if it may have been carried out
	undo   func(ctx context.Context, reply T)    // if the caller has left before the reply; nil = nothing to undo

	// progress is shared by the caller and the goroutine that works for it: what was
	// sent, and which of them deals with the reply.
	progress atomic.Int32
}

const (
	unsent   int32 = iota // nothing was sent that may have been carried out
	sent                  // a write was sent that may have been carried out
	answered              // the reply has come, and the caller gets it
	left                  // the caller has left: nothing more is written
)

// enter sets the goroutine's progress, and reports false if the caller has left.
func (c *call[T]) enter(next int32) bool {
	now := c.progress.Load()
	return now != left && c.progress.CompareAndSwap(now, next)
}

// run makes the call, unless the request is faulty. It returns when the call is done or
// ctx ends.
func run[T any](ctx context.Context, faulty error, c *call[T]) (reply T, err error) {
	switch {
	case faulty != nil:
		return reply, faulty
	case c.store.err != nil:
		return reply, c.fail(backend.Rejected, c.store.err)
	case ctx.Err() != nil:
		return reply, c.fail(backend.Unavailable, ctx.Err())
	}
	back := make(chan struct{})
	go func() {
		defer close(back)
		var answer T
		guard.Call(func() (err error) { // the client has functions of the user
			answer, err = c.try(ctx)
			return err
		}, func(why error) {
			if c.enter(answered) {
				reply, err = answer, why
			} else if why == nil && c.undo != nil {
				guard.Log(func() { c.undo(context.WithoutCancel(ctx), answer) })
			}
		})
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
	return reply, guard.Raise(err)
}

func (c *call[T]) fail(class backend.Class, err error) *backend.Error {
	return &backend.Error{Op: c.op, Class: class, Err: err, KeyOnly: keyOnly(err)}
}

// keyOnly reports whether err concerns only one item, so that other keys are served.
func keyOnly(err error) bool {
	return errors.Is(err, ErrContended) || errors.Is(err, ErrLedgerFull) || errors.Is(err, counter.ErrText) ||
		strings.Contains(refusal(err), "object too large")
}

// try makes attempts until one succeeds or another would be useless.
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
			_ = c.store.client.Close() // the idle connections, which are most likely broken too
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
	var none T // not the reply of an attempt that failed
	return none, why
}

// attempt reads the item, makes the step, and writes the changed item, unless another
// call has written it in between.
func (c *call[T]) attempt(ctx context.Context) (reply T, why *backend.Error) {
	client := c.store.client
	old, err := client.Get(c.key)
	if err != nil && !errors.Is(err, memcache.ErrCacheMiss) {
		class := backend.Unavailable // a read changes nothing
		if answer := refusal(err); answer != "" && !strings.HasPrefix(answer, "SERVER_ERROR") {
			class = backend.Rejected
		}
		return reply, c.fail(class, err)
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

// judge returns the class of a write's error, and the error to report.
func judge(err error) (backend.Class, error) {
	switch {
	case errors.Is(err, memcache.ErrCASConflict), errors.Is(err, memcache.ErrNotStored), errors.Is(err, memcache.ErrCacheMiss):
		return backend.Unavailable, ErrContended
	case notSent(err):
		return backend.Unavailable, err
	case refusal(err) != "":
		return backend.Rejected, err
	default:
		return backend.Unknown, err
	}
}

// notSent reports whether there was no connection to write to, or the server had too many.
func notSent(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	_, late := errors.AsType[*memcache.ConnectTimeoutError](err)
	return ok && dial.Op == "dial" || late || errors.Is(err, memcache.ErrNoServers) || strings.Contains(err.Error(), tooMany)
}

// refusal returns the server's answer if it is an error that an operator must mend:
// SERVER_ERROR, for example if it is out of memory, CLIENT_ERROR, for example without a
// login, or ERROR. Otherwise it returns "". gomemcache quotes the answer in its text.
func refusal(err error) string {
	_, text, _ := strings.Cut(err.Error(), "memcache: unexpected ")
	_, answer, _ := strings.Cut(text, `: "`)
	if kind, _, _ := strings.Cut(answer, " "); !strings.Contains(kind, "ERROR") || strings.Contains(answer, tooMany) {
		return ""
	}
	return answer
}

// broken reports whether the connection has ended. After a restart of the server all
// pooled connections are broken, but a new one may work.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// pause waits after attempt i, whose time was took, and reports whether to make another
// one. The mean pause doubles with each attempt. Of n writers only one succeeds in the
// time of an attempt, so the best distance between attempts is n times as long.
func pause(ctx context.Context, i int, took time.Duration) bool {
	mean := min(took*time.Duration(min(1<<min(i, 30), maxSpread)), maxPause)
	select {
	case <-time.After(rand.N(2*mean + 1)):
		return true
	case <-ctx.Done():
		return false
	}
}

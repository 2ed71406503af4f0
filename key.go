package reservoir

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/go-reservoir/reservoir/internal/key"
)

// Key is a handle on one key of a [Limiter], which need not be looked up for each request. Its
// methods do what those of the Limiter do for that key; to settle its results, and to Check or Reset
// the key, call the Limiter. It is meant for hot keys that are known ahead, such as a global limit. Make it once, with [Limiter.Key]; the zero Key is
// not usable. It is safe for concurrent use and needs no closing.
type Key struct {
	l    *Limiter
	key  string
	held atomic.Pointer[key.Key]
}

// Key returns a handle on key. It does no I/O. If key is invalid, calls of the handle
// return [ErrKey].
func (l *Limiter) Key(key string) *Key { return &Key{l: l, key: strings.Clone(key)} }

// Allow is [Limiter.Allow] with k's key.
func (k *Key) Allow(ctx context.Context) (r Result, err error) {
	err = k.allow(&r, ctx, 1)
	return r, err
}

// AllowN is [Limiter.AllowN] with k's key.
func (k *Key) AllowN(ctx context.Context, n int64) (r Result, err error) {
	err = k.allow(&r, ctx, n)
	return r, err
}

func (k *Key) allow(r *Result, ctx context.Context, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s := k.held.Load(); s != nil && n > 0 && k.l.try(r, s, n) {
		if r.Shadowed {
			k.l.pass(r)
		}
		return nil
	}
	slow, err := k.acquire(ctx, n, false)
	*r = slow
	return err
}

// Wait is [Limiter.Wait] with k's key.
func (k *Key) Wait(ctx context.Context) (Result, error) { return k.WaitN(ctx, 1) }

// WaitN is [Limiter.WaitN] with k's key.
func (k *Key) WaitN(ctx context.Context, n int64) (Result, error) { return k.acquire(ctx, n, true) }

// acquire is Limiter.acquire, and keeps the state that it found.
func (k *Key) acquire(ctx context.Context, n int64, wait bool) (Result, error) {
	r, s, err := k.l.acquire(ctx, k.key, n, wait)
	if s != nil && k.held.Load() != s {
		k.held.Store(s)
	}
	return r, err
}

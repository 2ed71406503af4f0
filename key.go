package reservoir

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/go-reservoir/reservoir/internal/key"
)

// Key is for hot keys that are known ahead, such as a global limit: a handle on one key of a
// [Limiter], which need not be looked up for each request. All else, such as to wait, or to settle a
// Result of the handle, is done with the Limiter. Make a Key once, with [Limiter.Key]; requests to
// the zero Key return [ErrKey]. It is safe for concurrent use and needs no closing.
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
	slow, err := k.acquire(ctx, n)
	*r = slow
	return err
}

// acquire is Limiter.acquire, and keeps the state that it found.
func (k *Key) acquire(ctx context.Context, n int64) (Result, error) {
	if k.l == nil {
		return Result{}, fmt.Errorf("%w: a Key that Limiter.Key has not made", ErrKey)
	}
	r, s, err := k.l.acquire(ctx, k.key, ask{N: n})
	if s != nil && k.held.Load() != s {
		k.held.Store(s)
	}
	return r, err
}

// Package storeclock lets a test pass its own now to a store.
//
// A store has a clock of its own: Redis' TIME, or the process' clock for memstore. A
// test of windows that open and close would have to wait for that clock. The instant
// travels in the context, so that it reaches the store through any decorator,
// and no store has a clock in its public surface.
package storeclock

import (
	"context"
	"time"
)

type key struct{}

// With returns a context under which stores use now instead of their clock.
func With(ctx context.Context, now time.Time) context.Context {
	return context.WithValue(ctx, key{}, now)
}

// From returns the instant that With put into ctx, if any.
func From(ctx context.Context) (time.Time, bool) {
	now, ok := ctx.Value(key{}).(time.Time)
	return now, ok
}

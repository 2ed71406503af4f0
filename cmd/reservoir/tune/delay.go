package tune

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// WithDelay puts a network before a store: a call takes delay longer, half of it
// on the way there and half on the way back. A call whose context ends on the way
// ends with it: one that was not there yet was surely not carried out.
func WithDelay(store backend.Store, delay time.Duration) *Delayed {
	d := &Delayed{store: store, wait: pause}
	d.Set(delay)
	return d
}

// Delayed implements backend.Store. See WithDelay.
type Delayed struct {
	store  backend.Store
	oneWay atomic.Int64 // ns
	wait   func(ctx context.Context, d time.Duration) error
}

// Set changes the delay of what is sent from now on.
func (d *Delayed) Set(delay time.Duration) { d.oneWay.Store(int64(delay / 2)) }

func (d *Delayed) travel(ctx context.Context) error {
	return d.wait(ctx, time.Duration(d.oneWay.Load()))
}

func call[R, T any](ctx context.Context, d *Delayed, op string, f func(context.Context, R) (T, error), r R) (T, error) {
	if err := d.travel(ctx); err != nil {
		var none T
		return none, &backend.Error{Op: op, Class: backend.Unavailable, Err: err}
	}
	answer, err := f(ctx, r)
	if err != nil {
		return answer, err
	}
	if err := d.travel(ctx); err != nil {
		var none T
		return none, &backend.Error{Op: op, Class: backend.Unknown, Err: err}
	}
	return answer, nil
}

// Sync implements backend.Store.
func (d *Delayed) Sync(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return call(ctx, d, "sync", d.store.Sync, r)
}

// Take implements backend.Store.
func (d *Delayed) Take(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return call(ctx, d, "take", d.store.Take, r)
}

// Check implements backend.Store.
func (d *Delayed) Check(ctx context.Context, key string, l backend.Limit) (backend.State, error) {
	check := func(ctx context.Context, key string) (backend.State, error) { return d.store.Check(ctx, key, l) }
	return call(ctx, d, "check", check, key)
}

// Refund implements backend.Store.
func (d *Delayed) Refund(ctx context.Context, r backend.RefundRequest) (int64, error) {
	return call(ctx, d, "refund", d.store.Refund, r)
}

// coarse is how late a timer may fire on a machine that does nothing else: Go
// waits for network and timers together, by the millisecond.
const coarse = 1500 * time.Microsecond

// pause waits for d, to some microseconds, or until ctx ends. Its last part is
// spent yielding, for a timer would make 1 ms there and back more than 2 ms.
func pause(ctx context.Context, d time.Duration) error {
	end := time.Now().Add(d)
	if d > coarse && sleep(ctx, d-coarse) != nil {
		return ctx.Err()
	}
	for time.Now().Before(end) {
		if err := ctx.Err(); err != nil {
			return err
		}
		runtime.Gosched()
	}
	return ctx.Err()
}

// sleep waits for d, as exactly as timers are, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

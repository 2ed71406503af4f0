package proof

import (
	"context"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// elsewhere carries calls out of a bubble of virtual time to a store that lives in
// real time, and tells it the time of the bubble, moved to an hour after the real
// one: no server deletes what is over by that. Time in the bubble stands still
// while a call is away, for nothing that it waits for is of the bubble.
type elsewhere struct {
	store both
	ahead time.Duration
	idle  chan *worker
}

// worker carries out calls outside the bubble.
type worker struct {
	calls chan func()
	done  chan struct{}
}

// bubbleStart is when time begins in every bubble.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func newElsewhere(t *testing.T, store both) *elsewhere {
	const workers = 8
	e := &elsewhere{store: store, idle: make(chan *worker, workers)}
	e.ahead = time.Since(bubbleStart).Truncate(time.Second) + time.Hour
	for range workers {
		w := &worker{make(chan func()), make(chan struct{})}
		go w.work()
		t.Cleanup(func() { close(w.calls) })
		e.idle <- w
	}
	return e
}

func (w *worker) work() {
	for call := range w.calls {
		call()
		w.done <- struct{}{}
	}
}

// over makes one call outside.
func over[T any](e *elsewhere, call func(ctx context.Context) (T, error)) (reply T, err error) {
	ctx := storeclock.With(context.Background(), time.Now().Add(e.ahead))
	w := <-e.idle
	w.calls <- func() { reply, err = call(ctx) }
	<-w.done
	e.idle <- w
	return reply, err
}

func (e *elsewhere) Sync(_ context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
	return over(e, func(ctx context.Context) (backend.SyncReply, error) { return e.store.Sync(ctx, r) })
}

func (e *elsewhere) Take(_ context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
	return over(e, func(ctx context.Context) (backend.TakeReply, error) { return e.store.Take(ctx, r) })
}

func (e *elsewhere) Check(_ context.Context, key string, l backend.Limit) (backend.State, error) {
	return over(e, func(ctx context.Context) (backend.State, error) { return e.store.Check(ctx, key, l) })
}

func (e *elsewhere) Settle(_ context.Context, r backend.SettleRequest) (backend.SettleReply, error) {
	return over(e, func(ctx context.Context) (backend.SettleReply, error) { return e.store.Settle(ctx, r) })
}

func (e *elsewhere) Reset(_ context.Context, r backend.ResetRequest) (backend.State, error) {
	return over(e, func(ctx context.Context) (backend.State, error) { return e.store.Reset(ctx, r) })
}

// Shard names the shards of a store that has some.
func (e *elsewhere) Shard(key string) string {
	if s, ok := e.store.(interface{ Shard(string) string }); ok {
		return s.Shard(key)
	}
	return ""
}

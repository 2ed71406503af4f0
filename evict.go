package reservoir

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file hands tokens back: the stock of idle keys, and all stock at Close.

// needsLastLocked reports whether the key must make a last statement, which says that it
// leaves: because of tokens that it holds or may have been granted, or because others
// share the key and space their probes by the number of clients.
func (k *keyState) needsLastLocked(now int64) bool {
	w, closed := k.lease.Load(), k.l.closed.Load()
	if k.fallback.waiting() > 0 {
		return true
	}
	if !w.Alive(now) { // the store may have opened a window since, and granted
		recently := k.use != nil && now-k.use.failedAt < 2*int64(k.limit().Window+time.Second)
		return k.replyLost && (closed || recently)
	}
	return k.heldLocked() > 0 || k.account.Outstanding() || k.replyLost || k.clients > 1 || closed && k.account.Granted()
}

// leftLocked reports whether the key, which is leaving, is needed no more.
func (k *keyState) leftLocked(now int64) bool {
	holds := k.lease.Load().Alive(now) && (k.heldLocked() > 0 || k.account.Outstanding()) || k.fallback.waiting() > 0
	return k.leaving && k.busy == nil && !holds && !(k.lastDue && k.needsLastLocked(now))
}

// retire ends a key; with ifLeft, only if it has left. Stats must see all of its counts move
// at once. Otherwise a count would seem to go back, which a metrics system takes for a
// restart.
func (l *Limiter) retire(k *keyState, ifLeft bool) {
	l.counting.Lock()
	defer l.counting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !ifLeft || k.leftLocked(l.clock.Now()) {
		k.retireLocked()
	}
}

// retireLocked ends the key. Tokens that it still holds have expired, and its counts become
// the limiter's.
func (k *keyState) retireLocked() {
	if k.retired {
		return
	}
	if k.use != nil {
		k.use.timer.Stop()
	}
	k.leaveWindowLocked()
	k.l.overdraw(k.fallback.waiting())
	k.lease.Store(nil)
	k.l.count.spent.Add(k.account.Balance())
	k.l.count.denied.Add(k.denied.Load())
	k.retired = true
	k.l.keys.Delete(k.node)
}

// attempts is how many statements, at most, hand back what a key holds at Close. Repeating
// one does no harm.
const (
	attempts  = 5
	lastPause = 20 * time.Millisecond // after one that failed, or half of it
)

// handBack hands back what k holds at Close, and retires it. Tokens that it cannot hand
// back stay charged until the window ends.
func (l *Limiter) handBack(ctx context.Context, k *keyState) error {
	defer l.retire(k, false)
	for try := 1; ; try++ {
		f := l.lastFetch(k, try == 1)
		if f == nil {
			return nil
		}
		err := f.sendWithin(ctx)
		switch {
		case errors.Is(err, ErrConflict): // a window of another limit is open, so ours is over
			return nil
		case try == attempts || err != nil && (ctx.Err() != nil || f.shard.Open()):
			return err
		case err != nil && pause(ctx, lastPause/2+chance.Part(lastPause/2), nil) != nil:
			return err
		}
	}
}

// lastFetch returns a statement that hands back what k holds and says that it leaves, or nil
// if there is nothing to state.
func (l *Limiter) lastFetch(k *keyState, first bool) *fetch {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := l.clock.Now()
	if k.retired || k.busy.inFlight() { // in flight only if ctx ended before it
		return nil
	}
	if k.leaving, k.low = true, false; first {
		k.lastDue = k.needsLastLocked(now)
	}
	if k.leftLocked(now) {
		return nil
	}
	k.account.Return(k.drainLocked()) // at once, because handles still spend
	return k.orderLocked(next.Return, now, 0, 0)
}

// sendWithin is run for a fetch that ends with ctx, and calls no function of the user's but
// the store.
func (f *fetch) sendWithin(ctx context.Context) error {
	return f.send(func(c *storeCall) (backend.SyncReply, error) {
		switch {
		case ctx.Err() != nil:
			return backend.SyncReply{}, ctx.Err()
		case f.shard.Open():
			return backend.SyncReply{}, f.shard.openError()
		}
		bounded, cancel := context.WithTimeout(ctx, f.k.l.fetchTimeout)
		defer cancel()
		c.short = soonerThan(ctx, f.k.l.fetchTimeout)
		return c.sync(bounded, f.req)
	})
}

// soonerThan reports whether ctx ends before d has passed.
func soonerThan(ctx context.Context, d time.Duration) bool {
	t, ok := ctx.Deadline()
	return ok && time.Until(t) < d
}

// sweeper evicts idle keys by a timer that is armed only while keys are held, so a limiter
// without keys runs nothing.
type sweeper struct {
	l     *Limiter
	armed atomic.Bool // a sweep is due or under way; set under mu
	mu    sync.Mutex
	over  bool
	timer *time.Timer
}

// arm starts the timer unless it runs.
func (s *sweeper) arm() {
	if s.armed.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.armed.Load() || s.over {
		return
	}
	s.armed.Store(true)
	if s.timer == nil {
		s.timer = time.AfterFunc(s.l.idle, s.sweep)
	} else {
		s.timer.Reset(s.l.idle)
	}
}

// sweep looks for keys that were not used since the last sweep.
func (s *sweeper) sweep() {
	l := s.l
	if !l.calls.Begin() {
		return
	}
	defer l.calls.End()
	l.epoch.Add(1) // a forgotten key drops its account, so a later state of the key must not make statements in that name
	l.keys.All(func(n *keytable.Node[keyState]) bool {
		if s.visit(&n.State) {
			l.retire(&n.State, true)
		}
		return !l.closed.Load()
	})
	l.shards.Range(func(_, value any) bool {
		if s := value.(*shard); s.Open() {
			s.lineUp()
		}
		return true
	})
	s.armed.Store(false) // not before the end: a sweep may take longer than the idle time
	if l.keys.Len() > 0 {
		s.arm()
	}
}

// visit looks at a key once per idle time. A key that was not used since the last sweep
// leaves: it gives back what it holds, and is forgotten when the store has confirmed that
// or the window has ended. A fingerprint of the key's counts shows whether it was used, so
// that the hot path need not record the time. A key that is newer than the last sweep
// stays, because its next state would have the same epoch.
func (s *sweeper) visit(k *keyState) (leaving bool) {
	k.event(func(now int64) int64 {
		w := k.lease.Load()
		mark := uint64(k.denied.Load())*0x9e3779b97f4a7c15 + uint64(k.spentLocked())*0xbf58476d1ce4e5b9
		if w != nil {
			mark += uint64(w.Window) * 0x94d049bb133111eb
		}
		if k.fallback != nil {
			mark += uint64(k.fallback.admitted)
		}
		same := mark == k.mark
		k.mark = mark
		// Tokens that FailLocal has admitted count against its share; debt of any policy must be charged.
		f := k.fallback
		needed := f != nil && (k.l.failure.mode == failLocal && f.admitted > 0 && now <= f.end || f.declared > 0 && k.owedLocked() > 0 && w.Alive(now) || f.pending > 0)
		if !same || k.retired || k.busy != nil || k.node.Tag == k.l.epoch.Load() || needed {
			return unchanged
		}
		k.leaving, k.low, k.lastDue = true, false, k.needsLastLocked(now)
		leaving = true
		return 0
	})
	return leaving
}

// stop ends sweeping for good.
func (s *sweeper) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Close ends the limiter. Callers that wait get [ErrClosed]. While ctx lasts, Close waits
// for calls in flight and hands all stock back to the store, also what direct calls have
// charged whose callers have left. It returns the first failure; tokens that could not be
// handed back stay charged until their windows end. Close does not wait for a shard that is
// away, and does not close the store. A later call waits for the first one to end, while its
// own context lasts, and returns the same error.
func (l *Limiter) Close(ctx context.Context) error {
	over := ctx.Err() != nil
	if l.closed.CompareAndSwap(false, true) {
		go func() {
			l.closeErr = l.close(ctx)
			close(l.closeDone)
		}()
		if over { // close then calls no store
			<-l.closeDone
		}
	}
	select {
	case <-l.closeDone:
		return l.closeErr
	default:
	}
	select {
	case <-l.closeDone:
		return l.closeErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Limiter) close(ctx context.Context) error {
	l.end()
	l.sweeper.stop()
	l.keys.All(func(n *keytable.Node[keyState]) bool { // waiting callers get ErrClosed, as new ones do from now on
		k := &n.State
		k.event(func(int64) int64 {
			line := k.busy.callers()
			line.Since(0, func(c *waiter) { line.Notify(c, outcome{err: ErrClosed}) })
			return 0
		})
		return true
	})
	var err error
	select {
	case <-l.calls.Close():
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.stopReopening(ctx)
	return errors.Join(err, l.handBackAll(ctx))
}

// handBackAll hands back what all keys hold, and retires them.
func (l *Limiter) handBackAll(ctx context.Context) error {
	var keys errgroup.Group
	keys.SetLimit(callsAtOnce)
	var failure atomic.Pointer[error] // the group's error misses a store that ends its goroutine
	l.keys.All(func(n *keytable.Node[keyState]) bool {
		keys.Go(func() error {
			guard.Call(func() error { return l.handBack(ctx, &n.State) }, func(err error) {
				if err != nil {
					failure.CompareAndSwap(nil, &err)
				}
			})
			return nil
		})
		return true
	})
	_ = keys.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

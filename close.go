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
	"github.com/go-reservoir/reservoir/internal/key"
)

// This file hands tokens back: the stock of idle keys, and all stock at Close.

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
	if !l.env.Calls.Begin() {
		return
	}
	defer l.env.Calls.End()
	for k := range l.env.All {
		if k.Visit(); l.env.Closed.Load() {
			break
		}
	}
	for s := range l.env.Shards {
		if s.Open.Load() {
			s.LineUp()
		}
	}
	l.hearing.look()     // at shards whose first key has come since
	s.armed.Store(false) // not before the end: a sweep may take longer than the idle time
	if !l.env.Empty() {
		s.arm()
	}
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
	if l.env.Closed.CompareAndSwap(false, true) {
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
	<-l.making.Close() // no key and no subscription comes from now on
	l.env.End()
	l.sweeper.stop()
	for k := range l.env.All { // waiting callers get ErrClosed, as new ones do from now on
		k.CloseLine()
	}
	var err error
	select {
	case <-l.env.Calls.Close():
	case <-ctx.Done():
		err = ctx.Err()
	}
	if sub := l.hearing.sub.Load(); sub != nil {
		(*sub).Close()
	}
	l.env.StopTries(ctx)
	var keys errgroup.Group
	keys.SetLimit(key.CallsAtOnce)
	for k := range l.env.All {
		keys.Go(func() error { return l.handBack(ctx, k) })
	}
	return errors.Join(err, keys.Wait())
}

// attempts is how many statements, at most, hand back what a key holds at Close. Repeating
// one does no harm.
const (
	attempts  = 5
	lastPause = 20 * time.Millisecond // after one that failed, or half of it
)

// handBack hands back what k holds at Close, and retires it. Tokens that it cannot hand
// back stay charged until the window ends.
func (l *Limiter) handBack(ctx context.Context, k *key.Key) error {
	defer k.Retire(false)
	for try := 1; ; try++ {
		f := k.LastFetch(try == 1)
		if f == nil {
			return nil
		}
		err := ctx.Err()
		if err == nil && f.Shard.Open.Load() {
			err = f.Shard.OpenError()
		}
		if err == nil {
			err = caller{l}.Call(ctx, f)
		} else {
			err = f.End(key.Trip{}, backend.Reply{}, err)
		}
		switch {
		case try == attempts || err != nil && (ctx.Err() != nil || f.Shard.Open.Load()):
			return err
		case err != nil && pause(ctx, lastPause/2+chance.Part(lastPause/2), nil) != nil:
			return err
		}
	}
}

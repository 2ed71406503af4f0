package reservoir

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// idle reports whether the key was not used since it was last asked, and notes
// how it stands: what changes when a key is used, so that the hot path need not
// note the time. A key that came after accounts were last renamed is not: the next
// entry of it would speak in its name. Under entry.mu.
func (e *entry) idle() bool {
	mark := uint64(e.denied.Load())*0x9e3779b97f4a7c15 + uint64(e.flow)*0xbf58476d1ce4e5b9
	if w := e.win.Load(); w != nil {
		mark += uint64(w.id)*0x94d049bb133111eb + uint64(w.stock.Load())*0xd6e8feb86659fd93
	}
	same := mark == e.seen
	e.seen = mark
	return same && e.account != e.l.account.Load() && e.flight == nil && e.queue.empty() && !e.remembers(e.l.clock.now())
}

// retire makes e dead, takes what it holds and moves its counts to the limiter.
// It returns the statement that hands the stock back, if there is one to make,
// and how many tokens it returns. Under entry.mu.
func (e *entry) retire(now int64) (give *flight, n int64) {
	if e.timer != nil {
		e.timer.Stop()
	}
	w := e.win.Load()
	if w != nil {
		e.pot += w.stock.Swap(0)
	}
	if w.alive(now) {
		n = e.pot
		e.returned += n
		e.yield(n)
		if e.learned() {
			n += e.unheard
		}
	} else {
		e.expire(e.pot)
	}
	e.pot = 0
	f := e.report(now, forReturn)
	if n > 0 || e.unsure || f.owed > 0 {
		e.findShard()
		f.shard, give = e.shard, &f
	}
	if e.local != nil {
		e.local.stated = 0 // handBack counts it
	}
	e.win.Store(nil)
	e.l.count.spent.Add(e.flow)
	e.l.count.denied.Add(e.denied.Load())
	e.dead = true
	e.l.table.drop(e)
	return give, n
}

// handBack makes the final statement of an account, and again as long as the
// store answers with tokens whose grant had been lost. n is what the statement
// returns beyond what the store has heard; if it cannot be made, those tokens
// stay charged until their window ends, and what the store is owed never is.
func (l *Limiter) handBack(ctx context.Context, f *flight, n int64) error {
	for r := &f.req; ; {
		ctx, cancel := context.WithTimeout(ctx, l.fetchTimeout)
		reply, err := l.sync(ctx, f)
		cancel()
		if err != nil {
			l.count.returned.Add(-n)
			l.count.expired.Add(n)
			return err
		}
		if f.charged(reply) {
			l.count.taken.Add(f.owed)
			l.count.spent.Add(f.owed)
		}
		f.owed = 0
		if n = reply.Grant; n == 0 {
			return nil
		}
		l.count.taken.Add(n)
		l.count.returned.Add(n)
		r.Window, r.Granted, r.Returned = reply.Window, reply.Granted, reply.Returned+n
		r.Total, r.Used = 0, 0
	}
}

// sweeper evicts idle keys by a timer that is armed only while keys are held: an
// idle limiter runs no goroutine and holds none.
type sweeper struct {
	armed atomic.Bool // a sweep is to come or under way; set under mu
	mu    sync.Mutex
	over  bool
	timer *time.Timer
}

// arm starts the timer unless it runs.
func (l *Limiter) arm() {
	s := &l.sweeper
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
		s.timer = time.AfterFunc(l.idle, l.sweep)
	} else {
		s.timer.Reset(l.idle)
	}
}

// sweep evicts the keys that were not used since the last sweep.
func (l *Limiter) sweep() {
	s := &l.sweeper
	s.mu.Lock()
	if s.over {
		s.mu.Unlock()
		return
	}
	l.flights.Add(1) // Close waits for the give-backs
	s.mu.Unlock()
	defer l.flights.Done()

	l.rename()
	_ = l.evict(context.Background(), (*entry).idle)
	s.armed.Store(false) // one at a time, though it may take longer than keys may be idle
	if l.table.size.Load() > 0 {
		l.arm()
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

// givers is how many give-backs are under way at a time.
const givers = 32

// evict retires the keys that which picks and hands their stock back.
func (l *Limiter) evict(ctx context.Context, which func(*entry) bool) error {
	var wg sync.WaitGroup
	var failure atomic.Pointer[error]
	slots := make(chan struct{}, givers)
	l.table.each(func(e *entry) {
		give, n := l.retire(e, which)
		if give == nil {
			return
		}
		slots <- struct{}{}
		wg.Go(func() {
			if err := l.handBack(ctx, give, n); err != nil {
				failure.CompareAndSwap(nil, &err)
			}
			<-slots
		})
	})
	wg.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

// retire is that of e, if which picks it. Its counts move all at once, as Stats sees
// it: what it has spent would seem to go back, and be a restart to a metrics system.
func (l *Limiter) retire(e *entry, which func(*entry) bool) (give *flight, n int64) {
	l.counting.Lock()
	defer l.counting.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead || !which(e) {
		return nil, 0
	}
	return e.retire(l.clock.now())
}

// shut makes the key refuse new callers and sends away those that wait.
func (e *entry) shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for !e.queue.empty() {
		e.queue.settle(e.queue.head, Result{}, nil, ErrClosed)
	}
	e.release()
}

// Close ends the limiter: callers that wait get ErrClosed, fetches under way are
// awaited, and all stock is handed back to the store, each for as long as ctx
// lasts. It returns the first failure; tokens that could not be handed back stay
// charged until their windows end. Close does not close the store. Later calls
// do nothing and return the same.
func (l *Limiter) Close(ctx context.Context) error {
	l.closing.Do(func() {
		l.closed.Store(true)
		close(l.done)
		l.sweeper.stop()
		l.table.each((*entry).shut)
		landed := make(chan struct{})
		go func() {
			l.flights.Wait()
			close(landed)
		}()
		var err error
		select {
		case <-landed:
		case <-ctx.Done():
			err = ctx.Err()
		}
		l.closeErr = errors.Join(err, l.evict(ctx, func(*entry) bool { return true }))
	})
	return l.closeErr
}

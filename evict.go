package reservoir

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/account"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file is what goes back: the stock of idle keys, and all at Close.

// owesLocked reports whether the store must hear that the key leaves: because of what
// it holds or may have been granted, or because others share the key and probe as often
// as so many should.
func (k *keyState) owesLocked(now int64) bool {
	w, closed := k.lease.Load(), k.l.closed.Load()
	if !w.Alive(now) { // the store may have opened a window since, and granted
		recently := k.use != nil && now-k.use.failed < 2*int64(k.limit().Window+time.Second)
		return k.unheard && (closed || recently)
	}
	return k.heldLocked() > 0 || k.account.Outstanding() || k.unheard || k.clients > 1 || closed && k.account.Granted()
}

// retireIfDone ends a leaving key, unless it is still needed. Its counts move all at once, as
// Stats sees it: what it has spent would seem to go back, and be a restart to a metrics
// system.
func (l *Limiter) retireIfDone(k *keyState) {
	l.counting.Lock()
	defer l.counting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := l.clock.Now()
	holds := k.lease.Load().Alive(now) && (k.heldLocked() > 0 || k.account.Outstanding())
	if k.leaving && k.busy == nil && !holds && !(k.farewell && k.owesLocked(now)) {
		k.retireLocked()
	}
}

// retireLocked ends the key: what it still holds has expired, and its counts become the
// limiter's.
func (k *keyState) retireLocked() {
	if k.retired {
		return
	}
	if k.use != nil {
		k.use.timer.Stop()
	}
	k.l.count.move(k.account.Leave(k.drainLocked()))
	k.lease.Store(nil)
	k.l.count.spent.Add(k.account.Balance())
	k.l.count.denied.Add(k.denied.Load())
	k.retired = true
	k.l.keys.Delete(k.node)
}

// final is a key's account at Close, all of it returned, until the store has confirmed that.
type final struct {
	account account.Account
	req     backend.SyncRequest
	shard   *shard
	until   int64 // the window is over by then
}

// closeKey retires k. It returns the account that is to be handed back, if there is one.
func (l *Limiter) closeKey(k *keyState) (f *final) {
	l.counting.Lock()
	defer l.counting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := l.clock.Now()
	if w := k.lease.Load(); !k.retired && k.owesLocked(now) {
		k.leaving = true
		if w.Alive(now) {
			k.account.Return(k.drainLocked())
		} else {
			l.count.move(k.account.Expire(k.drainLocked()))
		}
		if k.local != nil { // there is no time to ask which window is open
			k.local.own = false
		}
		f = &final{req: k.statementLocked(now), shard: k.shard, until: now + int64(k.limit().Window)}
		f.account = k.account.HandOver()
	}
	k.retireLocked()
	return f
}

// attempts is how often a last statement is made, at most. It can be repeated without
// harm.
const (
	attempts  = 5
	lastPause = 20 * time.Millisecond // between them, or half of it
)

// sayGoodbye makes a key's last statement, and again as long as the store answers with
// tokens whose grant had been lost. What it cannot hand back stays charged until the
// window ends.
func (l *Limiter) sayGoodbye(ctx context.Context, f *final) error {
	defer func() { l.count.move(f.account.Leave(0)) }() // nothing, where all was handed back
	for try := 1; ; try++ {
		reply, err := l.lastCall(ctx, f)
		if err == nil {
			spent := f.account.Spent(0)
			m := f.account.Apply(f.req, reply, 0)
			l.count.move(m)
			l.unasked[0].Add(m.Taken - reply.Grant)
			f.account.Return(reply.Grant)
			l.count.spent.Add(f.account.Spent(0) - spent)
			f.account.State(&f.req, reply.Window)
			if f.account.Unconfirmed() == 0 {
				return nil
			}
			continue
		}
		again := ctx.Err() == nil && try < attempts && !f.shard.Open() && l.clock.Now() <= f.until
		if conflict := errors.Is(err, ErrConflict); conflict { // another's window is open: ours is over
			again, err = false, nil
		}
		if again && pause(ctx, lastPause/2+chance.Part(lastPause/2), nil) == nil {
			continue
		}
		return err
	}
}

func (l *Limiter) lastCall(ctx context.Context, f *final) (reply backend.SyncReply, err error) {
	if err := ctx.Err(); err != nil {
		return reply, err
	}
	if f.shard.Open() {
		return reply, f.shard.away()
	}
	bounded, cancel := context.WithTimeout(ctx, l.fetchTimeout)
	defer cancel()
	c := l.newCall(f.shard, f.req.Key, f.req.Limit, StoreCall{Op: "sync", Cause: string(next.Return)})
	defer c.report()
	return c.sync(bounded, !soonerThan(ctx, l.fetchTimeout), f.req)
}

// soonerThan reports whether ctx ends before d has passed.
func soonerThan(ctx context.Context, d time.Duration) bool {
	t, ok := ctx.Deadline()
	return ok && time.Until(t) < d
}

// sweeper evicts idle keys by a timer that is armed only while keys are held: an
// idle limiter runs no goroutine and holds none.
type sweeper struct {
	l     *Limiter
	armed atomic.Bool // a sweep is to come or under way; set under mu
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
	l.rename()
	l.keys.All(func(n *keytable.Node[keyState]) bool {
		if s.visit(&n.State) {
			l.retireIfDone(&n.State)
		}
		return !l.closed.Load()
	})
	s.armed.Store(false) // one at a time, though it may take longer than keys may be idle
	if l.keys.Len() > 0 {
		s.arm()
	}
}

// visit looks at a key once in an idle time. A key that was not used since the last
// sweep leaves: it gives back what it holds, and is forgotten when the store has heard
// of that or the window has ended. How a key stands tells whether it was used, so that
// the hot path need not note the time. A key that came after accounts were last renamed
// stays: the next state of it would speak in its name.
func (s *sweeper) visit(k *keyState) (leaving bool) {
	k.event(func(now int64) int64 {
		w := k.lease.Load()
		mark := uint64(k.denied.Load())*0x9e3779b97f4a7c15 + uint64(k.spentLocked())*0xbf58476d1ce4e5b9
		if w != nil {
			mark += uint64(w.Window) * 0x94d049bb133111eb
		}
		same := mark == k.mark
		k.mark = mark
		// What FailLocal has admitted is its share of the window; what any policy has, is to be charged.
		needed := k.local.in(w) && w.Alive(now) && k.local.admitted > 0 && (k.l.failure.mode == failLocal || k.account.Unpaid() > 0)
		if !same || k.retired || k.busy != nil || k.name == k.l.account.Load() || needed {
			return undecided
		}
		k.leaving, k.low, k.farewell = true, false, k.owesLocked(now)
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

// givers is how many keys are handed back at a time.
const givers = 32

// Close ends the limiter: callers that wait get ErrClosed, fetches in flight are
// awaited, and all stock is handed back to the store, each for as long as ctx
// lasts. It returns the first failure; tokens that could not be handed back stay
// charged until their windows end. A shard that is away is not waited for. Close does
// not close the store. A later call waits for the first one to end, for as long as its
// own context lasts, and returns the same.
func (l *Limiter) Close(ctx context.Context) error {
	if l.closed.CompareAndSwap(false, true) {
		go func() {
			l.closeErr = l.close(ctx)
			close(l.closeDone)
		}()
		if ctx.Err() != nil { // then it calls no store
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
	l.keys.All(func(n *keytable.Node[keyState]) bool { // who waits is sent away, who comes is refused
		k := &n.State
		k.event(func(int64) int64 {
			line := k.busy.callers()
			line.Each(func(c *waiter) { line.Tell(c, outcome{err: ErrClosed}) })
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
	return errors.Join(err, l.handBack(ctx))
}

// handBack retires all keys and hands their stock back.
func (l *Limiter) handBack(ctx context.Context) error {
	var wg sync.WaitGroup
	var failure atomic.Pointer[error]
	slots := make(chan struct{}, givers)
	l.keys.All(func(n *keytable.Node[keyState]) bool {
		f := l.closeKey(&n.State)
		if f == nil {
			return true
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }() // also if the store ends the goroutine
			if err := l.sayGoodbye(ctx, f); err != nil {
				failure.CompareAndSwap(nil, &err)
			}
		})
		return true
	})
	wg.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

package reservoir

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file is what goes back: refunds, the stock of idle keys, and all at Close.

// refund puts what r was charged back into the stock, if it came from there, and
// returns what the store is to be told, if anything is. No more goes back than
// requests have used, so that a Result which is refunded again and again makes no
// tokens out of nothing.
func (k *keyState) refund(r Result) (back int64, q *backend.RefundRequest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w, now := k.lease.Load(), k.l.clock.Now()
	current := !k.retired && w != nil && w.Window == r.window()
	switch {
	case r.Source == Fallback:
		k.forgiveLocked(r)
	case r.Source == Direct && current && r.epoch == k.name.epoch:
		back, total := k.account.RefundDirect(r.charged)
		if back > 0 {
			return back, &backend.RefundRequest{Client: k.name.client, Window: r.window(), Total: total}
		}
	case r.Source == Direct:
		return r.charged, k.l.refundOf(r)
	case current && w.Alive(now):
		if n := min(r.charged, k.account.InUse(k.heldLocked())); n > 0 {
			k.account.Refund(n)
			k.l.count.refunded.Add(n)
			w.Publish(n, 0)
			k.advanceLocked(now, 0)
		}
	}
	return 0, nil
}

// refundOf is the refund of a direct call whose key is not in memory any more. Its
// name is that of the forgotten account, so that it counts once.
func (l *Limiter) refundOf(r Result) *backend.RefundRequest {
	return &backend.RefundRequest{Client: l.clientOf(r.epoch), Window: r.window(), Total: r.charged}
}

// reopen notes that the store has n tokens more than at the last reading, which others
// may wait for.
func (k *keyState) reopen(id backend.Window, n int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.lease.Load(); w != nil && w.Window == id {
		w.Reopen(n)
		k.advanceLocked(k.l.clock.Now(), 0)
	}
}

// stockIn is the stock that can be spent in a window.
func (k *keyState) stockIn(id backend.Window) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.lease.Load(); w.Alive(k.l.clock.Now()) && w.Window == id {
		return k.heldLocked()
	}
	return 0
}

// sweep looks at the key once in an idle time. A key that was not used since the last
// sweep leaves: it gives back what it holds, and is forgotten when the store has heard
// of that or the window has ended. How a key stands tells whether it was used, so that
// the hot path need not note the time. A key that came after accounts were last renamed
// stays: the next state of it would speak in its name.
func (k *keyState) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.l.clock.Now()
	mark := uint64(k.denied.Load())*0x9e3779b97f4a7c15 + uint64(k.account.Spent(k.heldLocked()))*0xbf58476d1ce4e5b9
	if w := k.lease.Load(); w != nil {
		mark += uint64(w.Window) * 0x94d049bb133111eb
	}
	same := mark == k.mark
	k.mark = mark
	if !same || k.retired || k.busy != nil || k.name == k.l.account.Load() || k.remembersLocked(now) {
		return
	}
	k.leaving, k.low, k.farewell = true, false, k.owesFarewellLocked(now)
	k.advanceLocked(now, 0)
	if k.goneLocked(now) {
		k.retireLocked(now)
	}
}

// owesFarewellLocked reports whether the store must hear that the key leaves: because
// of what it holds or may have been granted, or because others share the key and probe
// as often as so many should.
func (k *keyState) owesFarewellLocked(now int64) bool {
	w := k.lease.Load()
	if k.unheard && !w.Alive(now) { // the store may have opened a window since, and granted
		return k.l.closed.Load() || k.use != nil && now-k.use.failed < 2*int64(k.limit().Window+time.Second)
	}
	return w.Alive(now) && (k.heldLocked() > 0 || k.unheard || k.account.Unpaid() > 0 || k.account.Unconfirmed() > 0 || k.clients > 1 || k.l.closed.Load() && k.account.Granted())
}

// goneLocked reports whether nothing is left that a leaving key is needed for.
func (k *keyState) goneLocked(now int64) bool {
	if !k.leaving || k.busy != nil {
		return false
	}
	if k.farewell && k.owesFarewellLocked(now) {
		return false
	}
	return !k.lease.Load().Alive(now) || k.heldLocked() == 0 && k.account.Unconfirmed() == 0 && k.account.Unpaid() == 0
}

// retireLocked ends the key: what it still holds has expired, and its counts become the
// limiter's.
func (k *keyState) retireLocked(now int64) {
	if k.retired {
		return
	}
	if k.use != nil && k.use.timer != nil {
		k.use.timer.Stop()
	}
	k.moveLocked(k.account.Leave(k.drainLocked(), false))
	k.lease.Store(nil)
	k.l.count.spent.Add(k.account.Balance())
	k.l.count.denied.Add(k.denied.Load())
	k.retired = true
	k.l.keys.Delete(k.node)
}

// retire ends a leaving key. Its counts move all at once, as Stats sees it: what it has
// spent would seem to go back, and be a restart to a metrics system.
func (l *Limiter) retire(k *keyState) {
	l.counting.Lock()
	defer l.counting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := l.clock.Now(); k.goneLocked(now) {
		k.retireLocked(now)
	}
}

// final is the last statement of a key at Close, and what it returns.
type final struct {
	shard    *shard
	req      backend.SyncRequest
	returned int64
	owed     int64
	until    int64 // the window's end
}

// closeKey retires the key. It returns the statement that hands the stock back, if there
// is one to make.
func (k *keyState) closeKey() *final {
	k.l.counting.Lock()
	defer k.l.counting.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.l.clock.Now()
	if k.retired {
		return nil
	}
	var f *final
	if w := k.lease.Load(); k.owesFarewellLocked(now) {
		k.leaving = true
		if w.Alive(now) {
			k.account.Return(k.drainLocked())
		}
		k.findShardLocked()
		if k.ownLocked() { // there is no time to ask
			k.local.own = false
		}
		f = &final{shard: k.shard, req: k.statementLocked(), returned: k.account.Unconfirmed(), owed: k.account.Unpaid(), until: now + int64(k.limit().Window)}
		k.moveLocked(k.account.Expire(k.drainLocked()))
		k.account.Leave(0, true) // sayGoodbye counts what becomes of it
	}
	k.retireLocked(now)
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
	for try := 1; ; try++ {
		reply, err := l.lastCall(ctx, f)
		switch {
		case err != nil && (ctx.Err() != nil || try == attempts || f.shard.Open() || l.clock.Now() > f.until):
			l.count.expired.Add(f.returned)
			return err
		case err != nil:
			if pause(ctx, lastPause/2+chance.Part(lastPause/2), nil) != nil {
				l.count.expired.Add(f.returned)
				return err
			}
			continue
		}
		if reply.Window == f.req.Window || reply.Carried {
			l.count.returned.Add(f.returned)
			l.count.taken.Add(f.owed)
			l.count.spent.Add(f.owed)
		} else { // the window is over: debt of it is charged to no later one
			l.count.expired.Add(f.returned)
		}
		l.count.taken.Add(reply.Grant)
		if f.owed, f.returned = 0, reply.Grant; f.returned == 0 {
			return nil
		}
		f.req.Window, f.req.Granted, f.req.Returned, f.req.Debt = reply.Window, reply.Granted, reply.Returned+f.returned, reply.Debt
		f.req.Total, f.req.Used = 0, 0
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
	own := !soonerThan(ctx, l.fetchTimeout)
	err = c.do(bounded, own, func(ctx context.Context) (err error) {
		l.count.syncs.Add(1)
		reply, err = l.store.Sync(ctx, f.req)
		c.Granted = reply.Grant
		return err
	})
	c.report()
	return reply, err
}

// soonerThan reports whether ctx ends before d has passed.
func soonerThan(ctx context.Context, d time.Duration) bool {
	t, ok := ctx.Deadline()
	return ok && time.Until(t) < d
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

// sweep looks for keys that were not used since the last sweep.
func (l *Limiter) sweep() {
	if !l.calls.Begin() {
		return
	}
	defer l.calls.End()
	l.rename()
	l.keys.All(func(n *keytable.Node[keyState]) bool {
		l.counting.Lock()
		defer l.counting.Unlock()
		n.State.sweep()
		return !l.closed.Load()
	})
	l.sweeper.armed.Store(false) // one at a time, though it may take longer than keys may be idle
	if l.keys.Len() > 0 {
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

// shut makes the key refuse new callers and sends away those that wait.
func (k *keyState) shut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if line := k.lineLocked(); line != nil {
		line.Each(func(c *waiter) { line.Tell(c, outcome{err: ErrClosed}) })
	}
	k.publishLocked()
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
	l.keys.All(func(n *keytable.Node[keyState]) bool { n.State.shut(); return true })
	var err error
	select {
	case <-l.calls.Close():
	case <-ctx.Done():
		err = ctx.Err()
	}
	l.stopProbes(ctx)
	return errors.Join(err, l.handBack(ctx))
}

// handBack retires all keys and hands their stock back.
func (l *Limiter) handBack(ctx context.Context) error {
	var wg sync.WaitGroup
	var failure atomic.Pointer[error]
	slots := make(chan struct{}, givers)
	l.keys.All(func(n *keytable.Node[keyState]) bool {
		f := n.State.closeKey()
		if f == nil {
			return true
		}
		slots <- struct{}{}
		wg.Go(func() {
			if err := l.sayGoodbye(ctx, f); err != nil {
				failure.CompareAndSwap(nil, &err)
			}
			<-slots
		})
		return true
	})
	wg.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

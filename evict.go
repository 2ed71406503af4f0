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
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// This file is what changes after the fact: charges that are settled or refunded, the stock
// of idle keys that goes back, and all at Close.

// refundPart takes back n of the tokens that r was charged; k is nil if the key is not in
// memory.
func (l *Limiter) refundPart(ctx context.Context, k *keyState, key string, r *Result, n int64) error {
	if r.Source == Direct && ctx.Err() != nil { // before it passes for refunded
		return ctx.Err()
	}
	back, q := n, (*backend.RefundRequest)(nil)
	if k != nil {
		back, q = k.refund(r, n)
	} else if r.Source == Direct {
		q = l.refundOf(r, n)
	}
	if q == nil {
		return nil
	}
	q.Key = l.storeKey(key)
	total, err := l.refund(ctx, l.shardOf(q.Key), *q)
	if err == nil && total >= q.Total {
		l.count.refunded.Add(back)
		l.count.returned.Add(back)
		if k != nil {
			k.event(func(int64) int64 { // others may wait for what the store has now
				if w := k.lease.Load(); w != nil && w.Window == q.Window {
					w.Reopen(back)
				}
				return 0
			})
		}
	}
	return err
}

// refund puts n of the tokens that r was charged back into the stock, if they came from
// there, and returns what the store is to be told, if anything is. They pay for debt
// first. No more goes back than requests have used, so that a Result which is refunded
// again and again makes no tokens out of nothing.
func (k *keyState) refund(r *Result, n int64) (back int64, q *backend.RefundRequest) {
	k.event(func(now int64) int64 {
		w := k.lease.Load()
		current := w != nil && w.Window == r.window()
		switch {
		case r.Source == Fallback:
			k.local.forgive(&k.account, r, n)
		case r.Source == Direct && current && r.epoch == k.name.epoch:
			var total int64
			if back, total = k.account.RefundDirect(n); back > 0 {
				q = &backend.RefundRequest{Client: k.name.client, Window: r.window(), Total: total}
			}
		case r.Source == Direct:
			back, q = n, k.l.refundOf(r, n)
		case current && w.Alive(now):
			back = min(n, k.account.InUse(k.heldLocked()))
			paid := k.account.Forgive(back)
			k.account.Refund(back)
			k.l.count.refunded.Add(back)
			k.l.unasked.add(k, paid) // spent again
			decide := k.busy != nil || w.Denying() || k.plan != counted
			w.Publish(back-paid, 0)
			if decide {
				return 0
			}
		}
		return undecided
	})
	return back, q
}

// refundOf is the refund of a direct call whose key is not in memory any more. Its
// name is that of the forgotten account, so that it counts once.
func (l *Limiter) refundOf(r *Result, n int64) *backend.RefundRequest {
	return &backend.RefundRequest{Client: l.clientOf(r.epoch), Window: r.window(), Total: n}
}

// chargePart of the window is for how long the store need not hear of what was settled.
const chargePart = 20

// overrun charges n tokens that the request of r has used above its charge.
func (l *Limiter) overrun(ctx context.Context, k *keyState, key string, r *Result, n int64) error {
	for {
		if k == nil {
			var err error
			if k, err = l.state(key); err != nil {
				return err
			} else if k == nil {
				return l.owe(ctx, key, r, n)
			}
		}
		if k.overrun(r, n) {
			return nil
		}
		k = nil // it was forgotten meanwhile
	}
}

// overrun is false if the key was forgotten.
func (k *keyState) overrun(r *Result, n int64) (noted bool) {
	if w := k.lease.Load(); w.Alive(k.l.clock.Now()) && w.Window == r.window() {
		if left, ok := w.Spend(n); ok {
			k.l.unasked.add(k, n)
			k.spent(w, left)
			return true
		}
	}
	k.event(func(now int64) int64 {
		if noted = !k.retired; !noted {
			return undecided
		}
		w := k.lease.Load()
		if left := time.Until(r.Reset); w == nil && left > 0 { // the key was forgotten: this is what is known of its window
			w = k.switchLocked(r.window(), now)
			w.Read(backend.State{Left: left}, now, now)
		}
		if !w.Alive(now) || w.Window != r.window() && !k.l.lateOverruns {
			return undecided
		}
		paid, left := w.SpendUpTo(n)
		k.l.unasked.add(k, paid)
		k.low = w.Low(left) || k.low
		if paid < n {
			k.declareLocked(n-paid, w, now)
		}
		return 0
	})
	return noted
}

// declareLocked adds n tokens to the debt of w, which the store is to hear of in time.
func (k *keyState) declareLocked(n int64, w *lease.Lease, now int64) {
	if k.account.Unpaid() == 0 {
		inTime := w.Deadline() - 2*int64(k.shard.Lead())
		k.usageLocked().charge = min(now+int64(k.limit().Window)/chargePart, inTime)
	}
	k.account.Declare(n)
}

// owe is overrun for a key that there is no room to remember: by a call of its own.
func (l *Limiter) owe(ctx context.Context, key string, r *Result, n int64) error {
	limit, err := l.limitOf(key)
	if err != nil {
		return err
	}
	var reply backend.SyncReply
	if planOf(limit) != counted {
		return nil
	}
	q := backend.SyncRequest{Key: l.storeKey(key), Client: l.once(), Limit: limit.Plain(), Window: r.window(), Debt: n, Strand: -1, Leaving: true}
	for range 2 {
		err = l.detached(ctx, l.shardOf(q.Key), q.Key, q.Limit, StoreCall{Op: "sync", Cause: string(next.Charge)}, func(ctx context.Context, _ *storeCall) (err error) {
			l.count.syncs.Add(1)
			reply, err = l.store.Sync(ctx, q)
			return l.conflict(reply.State, err)
		}, func(error) {})
		if err != nil {
			return l.failed(ctx, err)
		}
		if reply.Length == 0 {
			break
		}
		q.Limit.Window = reply.Length // the limit has changed since, but its window has not
	}
	if reply.Length == 0 && reply.Window == q.Window {
		l.count.move(account.Moved{Taken: reply.Debt, Overdrawn: min(reply.Debt, reply.Over)})
		l.count.spent.Add(reply.Debt)
		l.unasked[0].Add(reply.Debt)
	}
	return nil
}

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

package key

import (
	"time"

	"github.com/go-reservoir/reservoir/internal/next"
)

// This file has how a key ends: it gives back what it holds, says that it leaves, and is
// forgotten when the store has confirmed that.

// needsLast reports whether the key must make a last statement, which says that it
// leaves: because of tokens that it holds or may have been granted, or because others
// share the key and space their probes by the number of clients.
func (k *Key) needsLast(now int64) bool {
	w, closed := k.lease.Load(), k.env.Closed.Load()
	if k.fallback.waiting() > 0 {
		return true
	}
	if !w.Alive(now) { // the store may have opened a window since, and granted
		recently := k.use != nil && now-k.use.failedAt < 2*int64(k.terms.Load().Window+time.Second)
		return k.replyLost && (closed || recently)
	}
	return k.held() > 0 || k.account.Outstanding() || k.replyLost || k.clients > 1 || closed && k.account.Granted()
}

// hasLeft reports whether the key, which is idle, is needed no more.
func (k *Key) hasLeft(now int64) bool {
	holds := k.lease.Load().Alive(now) && (k.held() > 0 || k.account.Outstanding()) || k.fallback.waiting() > 0
	return k.idle() && k.queue == nil && !holds && !(k.phase == phaseLeaving && k.needsLast(now))
}

// Retire ends the key; with ifLeft, only if it has left. Tokens that it still holds have
// expired, and its counts become the limiter's. Counts.Read makes that one step for a reader
// of all counts: a count that seems to go back is taken for a restart by a metrics system.
func (k *Key) Retire(ifLeft bool) {
	e := k.env
	e.Counts.Read(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.phase == phaseRetired || ifLeft && !k.hasLeft(e.Clock.Now()) {
			return
		}
		if k.use != nil {
			k.use.timer.Stop()
		}
		k.allow() // or a late Settle would find a denial that ends, without a lease
		k.leaveWindow()
		e.Counts.overdraw(k.fallback.dropPending())
		k.lease.Store(nil)
		e.Counts.Spent.Add(k.account.Balance())
		e.Counts.Denied.Add(k.refusals.Load())
		k.enter(phaseRetired)
		e.Table.Delete(k.node)
	})
}

// Visit looks at a key once per idle time. A key that was not used since the last visit
// leaves: it gives back what it holds, and is forgotten when the store has confirmed that
// or the window has ended. A fingerprint of the key's counts shows whether it was used, so
// that the hot path need not record the time. A key that is newer than the last visit
// stays, because its next state would have the same epoch.
func (k *Key) Visit() {
	var leaves bool
	k.event(func(now int64) effect {
		was := k.mark
		if k.mark = k.fingerprint(); k.mark != was || k.phase == phaseRetired || k.queue != nil || k.node.Tag == k.env.Epoch.Load() || k.fallback.neededBy(k, now) {
			return unchanged
		}
		k.leave(now)
		leaves = true
		return changed
	})
	if leaves {
		k.Retire(true)
	}
}

// fingerprint changes whenever the key is used.
func (k *Key) fingerprint() uint64 {
	mark := uint64(k.refusals.Load())*0x9e3779b97f4a7c15 + uint64(k.spent())*0xbf58476d1ce4e5b9
	if w := k.lease.Load(); w != nil {
		mark += uint64(w.Window) * 0x94d049bb133111eb
	}
	if k.fallback != nil {
		mark += uint64(k.fallback.admitted)
	}
	return mark
}

// LastFetch returns a statement that hands back, at Close, what the key holds and says that
// it leaves, or nil if there is nothing to state. first says that none was made yet. The
// caller sends it.
func (k *Key) LastFetch(first bool) *Fetch {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.env.Clock.Now()
	if k.phase == phaseRetired || k.queue.inFlight() { // in flight only if the time for Close ended before it
		return nil
	}
	if first || !k.idle() {
		k.leave(now)
	}
	if k.hasLeft(now) {
		return nil
	}
	k.account.Return(k.drain()) // at once, because handles still spend
	return k.order(next.Return, now, 0, 0)
}

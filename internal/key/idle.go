package key

import (
	"sync"

	"github.com/go-reservoir/reservoir/internal/next"
)

// This file has how a key ends, which is always the same: it gives back what it holds, says that it leaves, and is
// forgotten when the store has confirmed that.

// leavers are the keys that have left their counter for another one, or because their limit is special now. They are
// in memory until the store has confirmed what they gave back, but no request finds them.
type leavers struct {
	mu   sync.Mutex
	keys map[*Key]struct{}
}

// mostLeavers bounds them. More are forgotten at once, so what they hold expires with its window.
const mostLeavers = 4096

// add adds a key, unless there are too many.
func (l *leavers) add(k *Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.keys) >= mostLeavers {
		return false
	}
	if l.keys == nil {
		l.keys = make(map[*Key]struct{})
	}
	l.keys[k] = struct{}{}
	return true
}

func (l *leavers) remove(k *Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.keys, k)
}

// Keeps reports whether a key is in memory, or leaves its counter.
func (e *Env) Keeps() bool {
	e.leavers.mu.Lock()
	defer e.leavers.mu.Unlock()
	return len(e.leavers.keys) > 0 || e.Table.Len() > 0
}

// all calls yield with every key, without the lock.
func (l *leavers) all(yield func(*Key) bool) {
	l.mu.Lock()
	keys := make([]*Key, 0, len(l.keys))
	for k := range l.keys {
		keys = append(keys, k)
	}
	l.mu.Unlock()
	for _, k := range keys {
		if !yield(k) {
			return
		}
	}
}

// leaveCounter makes the key leave for good: the next request finds another key, or none. Callers in line start over.
func (k *Key) leaveCounter(now int64) effect {
	if k.phase == phaseRetired || k.parted {
		return unchanged
	}
	k.parted = true
	k.leaveShare(now)
	k.allow()
	k.enter(phaseLeaving)
	k.env.Table.Delete(k.node)
	k.orphan = !k.env.leavers.add(k)
	line := k.queue.callers()
	line.Since(0, func(c *waiter) { line.Notify(c, outcome{Verdict: Verdict{Next: StartOver}}) })
	return changed
}

// retireIfTooMany ends a key that has left its counter and found no room among the leavers.
func (k *Key) retireIfTooMany() {
	k.mu.Lock()
	orphan := k.orphan
	k.mu.Unlock()
	if orphan {
		k.Retire(false)
	}
}

// needsLast reports whether the key must make a last statement, which says that it
// leaves: because of tokens that it holds or may have been granted, or because others
// share the key and space their probes by the number of clients.
func (k *Key) needsLast(now int64) bool {
	w, closed := k.lease.Load(), k.env.Closed.Load()
	if !k.keeps(w, now) && (!w.Doubted() || w.Over(now)) { // the store may have opened a window since, and granted
		recently := k.use != nil && now-k.use.failedAt < 2*int64(k.Limit().Window)+2e9
		return k.replyLost && (closed || recently)
	}
	return k.held() > 0 || k.account.Outstanding() || k.replyLost || k.clients > 1 || closed && k.account.Granted()
}

// hasLeft reports whether the key, which is idle, is needed no more.
func (k *Key) hasLeft(now int64) bool {
	w := k.lease.Load()
	holds := (k.keeps(w, now) || w.Doubted() && !w.Over(now)) && (k.held() > 0 || k.account.Outstanding())
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
		k.lease.Store(nil)
		e.Counts.Spent.Add(k.account.Balance())
		e.Counts.Denied.Add(k.refusals.Load())
		k.enter(phaseRetired)
		k.shard.keys.Add(-1)
		if k.parted {
			e.leavers.remove(k)
		} else {
			e.Table.Delete(k.node)
		}
	})
}

// Visit looks at a key once per idle time. A key that was not used since the last visit
// leaves: it gives back what it holds, and is forgotten when the store has confirmed that
// or the window has ended. A fingerprint of the key's counts shows whether it was used, so
// that the hot path need not record the time.
func (k *Key) Visit() {
	var leaves bool
	k.event(func(now int64) effect {
		was := k.node.Tag
		if k.node.Tag = k.fingerprint(); k.node.Tag != was || k.phase == phaseRetired || k.queue != nil || k.fallback.neededBy(k, now) {
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

// fingerprint changes whenever the key is used. It is not 0, so that a key is not taken for idle at its first visit.
func (k *Key) fingerprint() uint32 {
	mark := uint64(k.refusals.Load())*0x9e3779b97f4a7c15 + uint64(k.spent())*0xbf58476d1ce4e5b9
	if w := k.lease.Load(); w != nil {
		mark += uint64(w.Window.End) * 0x94d049bb133111eb
	}
	if k.fallback != nil {
		mark += uint64(k.fallback.admitted)
	}
	return uint32(mark^mark>>32) | 1
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
	k.expire(now)
	k.account.Return(k.drain(), 0) // at once, because handles still spend
	return k.order(next.Return, now, 0, 0)
}

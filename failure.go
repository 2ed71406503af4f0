package reservoir

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// Failure is what callers without stock get while the store is away: FailClosed,
// FailOpen or FailLocal(share). Callers with stock never notice: their tokens are
// charged already. The zero Failure is no policy and an error of New.
type Failure struct {
	mode  mode
	share float64
}

type mode uint8

const (
	noFailure mode = iota
	failClosed
	failOpen
	failLocal
)

var (
	// FailClosed, the default, is an error: no decision was made.
	FailClosed = Failure{mode: failClosed}

	// FailOpen admits every request: an outage of the store is an outage of
	// the limit, and of nothing else.
	FailOpen = Failure{mode: failOpen}
)

// FailLocal lets each process admit at most share of the limit, 0 to 1, per window
// by itself: 0.05 in twenty processes is one limit together, on top of what was
// charged before the store went away. A share of less than a token admits nobody.
// It needs memory of the key until the window ends, also when the store is back: past
// WithMaxKeys it is FailClosed.
//
// What FailLocal and FailOpen admit is charged when the store is back, if the
// window in which it happened still runs; see Stats.Owed.
func FailLocal(share float64) Failure { return Failure{mode: failLocal, share: share} }

// WithFailure sets what callers without stock get while the store is away:
// FailOpen, FailLocal(share) or, by default, FailClosed. A Wait that the policy does
// not admit lasts until the store is back or its context ends, unless the store
// rejects the call and an operator must act: then it gets the *StoreError at once. A
// few calls in a row that fail open a circuit breaker, per shard where the store has
// shards: from then on callers get the policy's answer at once, and a timer probes the
// shard by calls that charge nothing.
func WithFailure(f Failure) Option { return func(c *config) { c.failure = f } }

func (f Failure) validate() error {
	switch {
	case f.mode == noFailure:
		return fmt.Errorf("%w: an empty failure policy", ErrOption)
	case math.IsNaN(f.share) || f.share < 0 || f.share > 1:
		return fmt.Errorf("%w: a local share of %v, want 0 to 1", ErrOption, f.share)
	}
	return nil
}

// budget is how many tokens of a limit a process may admit by itself in a window.
func (f Failure) budget(limit int64) int64 {
	switch f.mode {
	case failOpen:
		return math.MaxInt64
	case failLocal:
		return int64(f.share * float64(limit))
	}
	return 0
}

// local is what one key has admitted in a window without the store. A nil *local is of
// a key that has not.
type local struct {
	window   backend.Window
	own      bool // the process has opened the window itself, and does not know what the store has
	admitted int64
}

// in reports whether w is the window in which requests were admitted.
func (o *local) in(w *lease.Lease) bool { return o != nil && w != nil && o.window == w.Window }

// opened reports whether the process has opened w by itself, and the store is to be
// asked first which window is open there.
func (o *local) opened(w *lease.Lease) bool { return o.in(w) && o.own }

// forgiveLocked takes back n of what r was admitted for without the store: what the store was
// not told of is no debt any more. What it has charged since goes back to it, for it may be
// above the limit. wanted is for the event.
func (k *keyState) forgiveLocked(r *Result, n, now int64) (wanted int64) {
	o, w := k.local, k.lease.Load()
	if o == nil || r.Source != Fallback || o.window != r.window() {
		return undecided
	}
	n = min(n, o.admitted)
	forgiven, repaid := k.account.Forgive(n), int64(0)
	if o.in(w) && w.Alive(now) {
		repaid = k.account.Repay(n - forgiven)
	}
	if o.admitted -= forgiven + repaid; repaid == 0 {
		return undecided
	}
	k.l.count.refunded.Add(repaid)
	return 0
}

// policyLocked answers a request that the store could not be asked about because of
// err, by the failure policy. An error that is not the store's has no policy. It
// decides nothing for those who stay and are not admitted, unless an operator must act.
func (k *keyState) policyLocked(r *Result, n int64, stay bool, now int64, err error) (decided bool, _ error) {
	failure, ok := errors.AsType[*StoreError](err)
	if !ok {
		return true, err
	}
	policy, limit := k.l.failure, k.limit()
	var f *local
	var left int64
	if policy.mode != failClosed {
		f = k.localLocked(now)
		left = policy.budget(limit.Tokens) - f.admitted
	}
	if n > left && (stay || f == nil) {
		if stay && failure.Class != backend.Rejected {
			return false, nil
		}
		k.l.count.failed.Add(1)
		return true, err
	}
	w := k.lease.Load()
	k.l.count.fallbacks.Add(1)
	r.Limit, r.Reset, r.Source = limit.Tokens, w.Window.Time(), Fallback
	if r.Allowed = n <= left; r.Allowed {
		k.l.count.admittedAway.Add(1)
		left -= n
		f.admitted = min(f.admitted+n, backend.MaxTokens) // FailOpen has no end
		k.account.Declare(n)
		if k.use != nil {
			k.use.charge = 0 // at once
		}
		r.key, r.epoch, r.charged = k.node.Hash, k.node.Tag, n
	} else {
		k.denied.Add(1)
		r.Shadowed, r.RetryAfter = limit.Shadow, w.RetryAfter(now)
	}
	r.Remaining = max(min(left, limit.Tokens-f.admitted), 0)
	return true, nil
}

// localLocked returns what was admitted without the store in the window at now. Where
// none may be open any more the process opens one by itself. The store adopts that when
// it is back, if no other is open then: so what was admitted is charged to the window
// in which that happened, and to no later one.
func (k *keyState) localLocked(now int64) *local {
	w := k.lease.Load()
	own := w.Over(now)
	if own {
		if k.account.Granted() && !k.unheard && !k.busy.inFlight() { // its figures are forgotten here, so nobody may speak for it again
			k.l.rename()
			k.name = k.l.account.Load()
		}
		limit := k.limit()
		s := backend.State{Window: backend.Window(limit.Ends(wall(w, now)).UnixMilli()), Remaining: limit.Tokens}
		s.Left = time.Until(s.Window.Time())
		w = k.switchLocked(s.Window, now)
		w.Read(s, now, now)
	}
	if !k.local.in(w) {
		k.local = &local{window: w.Window, own: own}
	}
	return k.local
}

// shard is what is known of one shard of the store, or of the whole store where it
// has none.
type shard struct {
	breaker.Breaker
	name   string
	outage atomic.Pointer[outageError]

	mu    sync.Mutex
	timer *time.Timer // of the next probe, while the circuit is open
	key   string      // of the call that failed last, to probe with
	limit Limit

	avoided string // a key whose answers say nothing of the shard
	checked int64  // until when no Check is made, one having failed while the circuit was open
}

// shardOf is the shard that a store key is on. A store that has shards, whose failures
// are not each other's, has a method Shard which names them without I/O.
func (c *client) shardOf(key string) *shard {
	var name string
	if c.parts != nil { // it may panic, and is asked under the key's lock, where nobody could be told
		guard.Log(func() { name = c.parts.Shard(key) })
	}
	if s, ok := c.shards.Load(name); ok {
		return s.(*shard)
	}
	s, _ := c.shards.LoadOrStore(name, &shard{name: name})
	return s.(*shard)
}

// outageError is what callers are told while a shard is away, made once.
type outageError struct{ cause, told error }

// away is the error of who is not served because the circuit is open. It carries the
// class and the cause that opened it.
func (s *shard) away() error {
	cause := s.Cause() // a *StoreError, as record gave it; nil if it has closed again
	if last := s.outage.Load(); last != nil && last.cause == cause {
		return last.told
	}
	e := &StoreError{Op: "sync", Class: backend.Unavailable, Err: errOpen}
	if failure, ok := cause.(*StoreError); ok {
		e = &StoreError{Op: failure.Op, Class: failure.Class, Err: fmt.Errorf("%w: %w", errOpen, failure.Err)}
	}
	s.outage.Store(&outageError{cause, e})
	return e
}

// mayCheck reports whether a Check is worth its time: a replica may answer it while the
// primary is away.
func (s *shard) mayCheck(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.Open() || now >= s.checked
}

// checkFailed withholds Checks for a while if the shard is away.
func (s *shard) checkFailed(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = now + int64(longestPause)
}

// armReopen sets the timer for the next such question: an outage that ends is noticed
// without traffic.
func (c *client) armReopen(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := time.Duration(max(s.NextProbe()-c.clock.Now(), 0)) + time.Microsecond
	if s.timer == nil {
		s.timer = time.AfterFunc(after, func() { guard.Log(func() { c.reopen(s) }) })
	} else {
		s.timer.Reset(after)
	}
}

// reopen asks whether a shard answers again, by a statement that asks for nothing, for
// a key that is on it. It has time to connect: nobody waits for it. When no key is on
// the shard any more, nobody would ask: it is forgotten.
func (c *client) reopen(s *shard) {
	if !c.calls.Begin() {
		return
	}
	defer c.calls.End()
	if !s.Due(c.clock.Now()) {
		if s.Watched() {
			c.armReopen(s)
		}
		return
	}
	key, limit, ok := c.keyOn(s)
	if !ok {
		c.forgetShard(s)
		return
	}
	ctx, cancel := context.WithTimeout(c.life, max(c.fetchTimeout, connectTime))
	defer cancel()
	defer func() { // whatever the store does
		if s.Watched() {
			c.armReopen(s)
		}
	}()
	c.ask(ctx, s, key, limit)
}

// ask makes a statement for a key that asks for nothing.
func (c *client) ask(ctx context.Context, s *shard, key string, limit Limit) {
	call := c.newCall(s, key, limit, StoreCall{Op: "sync", Cause: string(next.Reopen)})
	defer call.report()
	_, err := call.sync(ctx, true, backend.SyncRequest{Key: key, Client: c.id + ".probe", Limit: limit, Strand: -1})
	if outcomeOf(err) == breaker.Neutral { // it says nothing of the shard: ask for another key
		s.avoid(key)
	}
}

// connectTime is how long a probe may take: dial, TLS, handshake and the first load of
// a script, on a far server.
const connectTime = 2 * time.Second

// keyOn returns a key of the shard: that of the call which failed last, if it is still
// there, or any, but the one to avoid only where there is no other.
func (c *client) keyOn(s *shard) (key string, limit Limit, ok bool) {
	s.mu.Lock()
	key, limit = s.key, s.limit
	avoid := s.avoided
	s.mu.Unlock()
	if key != "" && c.shardOf(key) == s {
		return key, limit, true
	}
	c.keys.All(func(n *keytable.Node[keyState]) bool {
		if other := c.storeKey(n.Key); c.shardOf(other) == s {
			key, limit, ok = other, n.State.limit().Plain(), true
		}
		return !ok || key == avoid
	})
	return key, limit, ok
}

// remember keeps the key of a call that has failed, for a probe.
func (s *shard) remember(key string, limit Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key != s.avoided {
		s.key, s.limit = key, limit
	}
}

// avoid notes that the answer to a probe for the key said nothing of the shard.
func (s *shard) avoid(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key, s.avoided = "", key
}

// forgetShards forgets, a while after keys have left a shard, those that no key is on.
func (c *client) forgetShards() {
	t := c.due.Load()
	if t == 0 || c.clock.Now() < t || !c.due.CompareAndSwap(t, 0) {
		return
	}
	c.shards.Range(func(_, value any) bool {
		s := value.(*shard)
		if _, _, ok := c.keyOn(s); !ok && s.Open() {
			c.forgetShard(s)
		}
		return true
	})
}

func (c *client) forgetShard(s *shard) {
	s.Reset(c.clock.Now())
	c.shards.CompareAndDelete(s.name, s)
	c.reportShard(s)
}

// reportShard tells the hook what has changed.
func (c *client) reportShard(s *shard) {
	s.Report(func(now breaker.Change) {
		if c.hooks.ShardState != nil {
			guard.Log(func() {
				c.hooks.ShardState(ShardState{Shard: s.name, Away: now.Open, Rejecting: now.Rejecting, Err: now.Err})
			})
		}
	})
}

// shardNow looks again for the shard of a key before the store is asked; was is the one
// that it was on. A cluster knows none until its first answer, its slots move, and so do
// keys in a roll-out.
func (c *client) shardNow(was *shard, key string) *shard {
	s := c.shardOf(c.storeKey(key))
	if s != was && was.Open() {
		c.due.Store(c.clock.Now() + int64(longestPause))
	}
	return s
}

// stopReopening ends the timers of shards that are away, and asks each of them for the last
// time, at once, so that Close need not find out with each key.
func (c *client) stopReopening(ctx context.Context) {
	var wg sync.WaitGroup
	c.shards.Range(func(_, value any) bool {
		s := value.(*shard)
		s.stop()
		if key, limit, ok := c.keyOn(s); ok && s.Open() && ctx.Err() == nil {
			wg.Go(func() {
				bounded, cancel := context.WithTimeout(ctx, c.fetchTimeout)
				defer cancel()
				c.ask(bounded, s, key, limit)
			})
		}
		return true
	})
	wg.Wait()
}

func (s *shard) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// withoutStore is the failure policy for a key that there is no room to remember.
func (c *client) withoutStore(key string, limit Limit, n int64, err error) (Result, error) {
	if c.failure.mode != failOpen {
		c.count.failed.Add(1)
		return Result{}, err
	}
	c.count.fallbacks.Add(1)
	c.count.admittedAway.Add(1)
	c.count.overdrawn.Add(n) // there is nowhere to note it as debt
	return Result{Allowed: true, Limit: limit.Tokens, Reset: limit.Ends(time.Now()), Source: Fallback, key: c.keys.HashOf(key), charged: n}, nil
}

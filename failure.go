package reservoir

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/guard"
	"github.com/go-reservoir/reservoir/internal/keytable"
	"github.com/go-reservoir/reservoir/internal/lease"
	"github.com/go-reservoir/reservoir/internal/next"
)

// Failure is what callers without stock get while the store is away: [FailClosed],
// [FailOpen] or [FailLocal]. Callers with stock notice nothing, because their tokens are
// charged already. The zero Failure is no policy; [New] returns [ErrOption] for it.
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

// FailClosed, the default, returns a [*StoreError]: no decision was made.
func FailClosed() Failure { return Failure{mode: failClosed} }

// FailOpen admits every request, so callers without stock have no limit during an outage
// of the store.
func FailOpen() Failure { return Failure{mode: failOpen} }

// FailLocal lets each process admit at most share of the limit, 0 to 1, per window
// without the store: with 0.05, 20 processes together admit one limit, on top of what was
// charged before the outage. A share of less than one token admits nobody. The key must
// stay in memory until its window ends, even if the store is back earlier, so keys past
// [WithMaxKeys] get [FailClosed].
//
// When the store is back, it charges what FailLocal and FailOpen have admitted, if the
// window in which that happened is still open; see [Stats].Owed.
func FailLocal(share float64) Failure { return Failure{mode: failLocal, share: share} }

// WithFailure sets what callers without stock get while the store is away: [FailOpen],
// [FailLocal] or, by default, [FailClosed]. A Wait that the policy does not admit lasts
// until the store is back or its context ends; but if the store rejects the call, which an
// operator must mend, the Wait returns the [*StoreError] at once. After a few failed calls
// in a row a circuit breaker opens, one per shard if the store has shards. While it is
// open, callers get the policy's answer at once, and a timer probes the shard by calls
// that charge nothing.
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

// budget is how many tokens of a limit a process may admit without the store in a window.
func (f Failure) budget(limit int64) int64 {
	switch f.mode {
	case failOpen:
		return math.MaxInt64
	case failLocal:
		return int64(f.share * float64(limit))
	}
	return 0
}

// fallback is what one key has admitted in a window without the store. A nil *fallback has
// admitted nothing.
type fallback struct {
	window      backend.Window
	before      backend.Window // its name in earlier Results, until the store gave it another
	dropped     backend.Window // the store's last window; its account was dropped when the process opened one itself
	provisional bool           // the process has opened the window itself; the store may have another one
	admitted    int64
}

// in reports whether w is the window in which requests were admitted.
func (o *fallback) in(w *lease.Lease) bool { return o != nil && w != nil && o.window == w.Window }

// admits reports whether r was admitted in the window of o.
func (o *fallback) admits(r *Result) bool {
	return o != nil && r.Source == Fallback && r.charged > 0 && (o.window == r.window() || o.before == r.window())
}

// move records that the debt was carried over to the window to.
func (o *fallback) move(to backend.Window) { o.before, o.window = o.window, to }

// reopened reports whether the reply to the question which window is open names one whose
// account was dropped, because it was taken for over: the store's clock has stepped back.
func (o *fallback) reopened(r backend.SyncReply) bool {
	return o != nil && r.Granted > 0 && r.Window <= o.dropped
}

// isProvisional reports whether the process has opened w itself, and must first ask the
// store which window is open there.
func (o *fallback) isProvisional(w *lease.Lease) bool { return o.in(w) && o.provisional }

// refundFallbackLocked takes back n of the tokens that r was admitted for without the
// store. Debt that no statement has carried is cancelled. Tokens that the store has charged
// since, or may have, go back to the store, because they may be above the limit. wanted is
// for the event.
func (k *keyState) refundFallbackLocked(r *Result, n, now int64) (wanted int64) {
	o, w := k.fallback, k.lease.Load()
	if !o.admits(r) {
		return unchanged
	}
	n = min(n, o.admitted)
	cancelled, returned := k.account.CancelDebt(n), int64(0)
	if o.in(w) && w.Alive(now) {
		returned = k.account.ReturnDebt(n-cancelled, k.heldLocked())
	}
	if o.admitted -= cancelled + returned; returned == 0 {
		return unchanged
	}
	k.l.count.refunded.Add(returned)
	return 0
}

// policyLocked answers, by the failure policy, a request for which the store call failed
// with err. If err is no *StoreError, it is the answer. Callers that stay and are not
// admitted get no answer, unless an operator must act.
func (k *keyState) policyLocked(r *Result, n int64, stay bool, now int64, err error) (decided bool, _ error) {
	failure, ok := errors.AsType[*StoreError](err)
	if !ok {
		return true, err
	}
	f, left := k.budgetLocked(now)
	if n > left && (stay || f == nil) {
		if stay && failure.Class != backend.Rejected {
			return false, nil
		}
		k.l.count.failed.Add(1)
		return true, err
	}
	w, limit := k.lease.Load(), k.limit()
	k.l.count.fallbacks.Add(1)
	r.Limit, r.Reset, r.Source = limit.Tokens, w.Window.Time(), Fallback
	if r.Allowed = n <= left; r.Allowed {
		k.l.count.admittedByPolicy.Add(1)
		left -= n
		f.admitted = min(f.admitted+n, backend.MaxTokens) // FailOpen has no bound
		k.account.Declare(n)
		if k.use != nil {
			k.use.charge = 0 // at once
		}
		r.key, r.epoch, r.charged = k.node.Hash, k.node.Tag, n
	} else {
		k.denied.Add(1)
		r.Shadowed, r.RetryAfter = limit.Shadow, retryAfter(w.RetryAfter(now), limit.Window)
	}
	r.Remaining = max(min(left, limit.Tokens-f.admitted), 0)
	return true, nil
}

// budgetLocked returns what was admitted without the store in the window at now, nil with
// FailClosed, and how many tokens the failure policy still admits there.
func (k *keyState) budgetLocked(now int64) (f *fallback, left int64) {
	policy := k.l.failure
	if policy.mode == failClosed {
		return nil, 0
	}
	f = k.fallbackLocked(now)
	return f, policy.budget(k.limit().Tokens) - f.admitted
}

// answerLocked answers the callers in line up to last by the failure policy, and returns how
// many these are. Callers that stay until they are served wait on, unless the policy admits
// them or an operator must act. Those who wait on are looked at again when the policy has
// more tokens than then.
func (k *keyState) answerLocked(last uint64, now int64, err error) (answered int) {
	line, b := k.busy.callers(), k.busy
	var asked uint64
	if failure, ok := errors.AsType[*StoreError](err); ok && failure.Class != backend.Rejected && b.asked > 0 {
		if _, left := k.budgetLocked(now); left <= b.policyLeft {
			asked = b.asked
		}
	}
	waits := false
	line.Since(asked, func(c *waiter) {
		var o outcome
		var decided bool
		if c.Seq() > last {
			return
		}
		if decided, o.err = k.policyLocked(&o.Result, c.N, c.Stays, now, err); decided {
			line.Notify(c, o)
			answered++
		} else {
			waits = true
		}
	})
	if waits {
		b.asked = last
		_, b.policyLeft = k.budgetLocked(now)
	}
	return answered
}

// fallbackLocked returns what was admitted without the store in the window at now. If the
// last window is surely over, the process opens a provisional one, which the store adopts
// when it is back, if it has no other open. So tokens are charged to the window in which
// they were admitted, and to no later one.
func (k *keyState) fallbackLocked(now int64) *fallback {
	w := k.lease.Load()
	provisional := w.Over(now)
	var dropped backend.Window
	if provisional {
		if k.account.Granted() && !k.replyLost && !k.busy.inFlight() { // its figures are dropped here, so no statement may use its name again
			k.renameLocked()
		}
		switch {
		case k.fallback.isProvisional(w):
			dropped = k.fallback.dropped
		case w != nil:
			dropped = w.Window
		}
		limit := k.limit()
		s := backend.State{Window: backend.Window(limit.Ends(wall(w, now)).UnixMilli()), Remaining: limit.Tokens}
		s.Left = min(time.Until(s.Window.Time()), limit.Window) // our clock may be behind: see wall
		w = k.switchLocked(s.Window, now)
		w.Guess(s, now)
	}
	if !k.fallback.in(w) {
		k.fallback = &fallback{window: w.Window, provisional: provisional, dropped: dropped}
	}
	return k.fallback
}

// renameLocked gives the key's account a new name in the store.
func (k *keyState) renameLocked() {
	k.epoch = k.l.epoch.Add(1)
}

// shard is the state of one shard of the store, or of the whole store if it has no shards.
type shard struct {
	breaker.Breaker
	name   string
	outage atomic.Pointer[outageError]
	lines  [next.Classes]line // of keys that want calls which no request waits for

	mu    sync.Mutex
	timer *time.Timer // of the next probe, while the circuit is open
	key   string      // of the call that failed last, to probe with

	avoided      string // a key whose answers say nothing of the shard
	noCheckUntil int64  // until when no Check is made while the circuit is open, because one has failed
}

// shardOf returns the shard that a store key is on. A store whose shards fail
// independently has a method Shard, which names them without I/O. A key's shard is looked
// up before each call, because a cluster has no shards until its first answer, and its
// slots move.
func (c *client) shardOf(key string) *shard {
	var name string
	if c.parts != nil { // it may panic, and under the key's lock no caller could get the panic
		guard.Log(func() { name = c.parts.Shard(key) })
	}
	if s, ok := c.shards.Load(name); ok {
		return s.(*shard)
	}
	s, _ := c.shards.LoadOrStore(name, newShard(name))
	return s.(*shard)
}

// outageError is the error that callers get while a shard is away, made once.
type outageError struct{ cause, err error }

// openError returns the error of callers that are not served because the circuit is open.
// It has the class and the cause of the failure that opened it.
func (s *shard) openError() error {
	cause := s.Cause() // a *StoreError, as record gave it; nil if the circuit has closed again
	if last := s.outage.Load(); last != nil && last.cause == cause {
		return last.err
	}
	e := &StoreError{Op: "sync", Class: backend.Unavailable, Err: errOpen}
	if failure, ok := cause.(*StoreError); ok {
		e = &StoreError{Op: failure.Op, Class: failure.Class, Err: fmt.Errorf("%w: %w", errOpen, failure.Err)}
	}
	s.outage.Store(&outageError{cause, e})
	return e
}

// mayCheck reports whether to try a Check, which a replica may answer while the primary is
// away.
func (s *shard) mayCheck(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.Open() || now >= s.noCheckUntil
}

// checkFailed withholds Checks for a while if the shard is away.
func (s *shard) checkFailed(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noCheckUntil = now + int64(longestPause)
}

// armReopen sets the timer for the next probe of a shard, so that the end of an outage is
// noticed without traffic.
func (c *client) armReopen(s *shard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := max(time.Duration(s.NextProbe()-c.clock.Now()), time.Millisecond) // more often if another probe hung would be a loop
	if s.timer == nil {
		s.timer = time.AfterFunc(after, func() { guard.Log(func() { c.reopen(s) }) })
	} else {
		s.timer.Reset(after)
	}
}

// reopen probes whether a shard answers again, by a statement for one of its keys that asks
// for nothing. The probe has time to connect, because nobody waits for it. A shard without
// keys is forgotten.
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
	key, ok := c.keyOn(s)
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
	c.ask(ctx, s, key)
}

// ask makes a statement for key that asks for no tokens.
func (c *client) ask(ctx context.Context, s *shard, key string) {
	call := c.newCall(s, key, StoreCall{Op: "sync", Cause: string(next.Reopen)})
	defer call.report()
	_, err := call.sync(ctx, backend.SyncRequest{Key: key, Client: c.id + ".probe", Limit: c.anyLimit(), Strand: -1})
	if errors.Is(call.Err, ErrConflict) { // the key has a limit of its own, which a probe need not know
		call.Err = nil
	}
	guard.Unheard(err)
	if outcomeOf(err) == breaker.Neutral { // it says nothing of the shard: next time probe with another key
		s.avoid(key)
	}
}

// connectTime is how long a probe may take: dial, TLS, handshake and the first load of
// a script, on a far server.
const connectTime = 2 * time.Second

// keyOn returns a key of the shard: the key of the last failed call if it is still there,
// or any other. It returns the key to avoid only if the shard has no other.
func (c *client) keyOn(s *shard) (key string, ok bool) {
	s.mu.Lock()
	key = s.key
	avoid := s.avoided
	s.mu.Unlock()
	if key != "" && c.shardOf(key) == s {
		return key, true
	}
	c.keys.All(func(n *keytable.Node[keyState]) bool {
		if other := c.storeKey(n.Key); c.shardOf(other) == s {
			key, ok = other, true
		}
		return !ok || key == avoid
	})
	return key, ok
}

// remember keeps the key of a failed call, for a probe.
func (s *shard) remember(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key != s.avoided {
		s.key = key
	}
}

// avoid records that the answer to a probe for key said nothing of the shard.
func (s *shard) avoid(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key, s.avoided = "", key
}

func (c *client) forgetShard(s *shard) {
	s.Reset(c.clock.Now())
	c.shards.CompareAndDelete(s.name, s)
	c.resume(s)
	c.reportShard(s)
}

// reportShard calls the hook for each change of the shard.
func (c *client) reportShard(s *shard) {
	s.Report(func(now breaker.Change) {
		if c.hooks.ShardState != nil {
			guard.Log(func() {
				c.hooks.ShardState(ShardState{Shard: s.name, Away: now.Open, Rejecting: now.Rejecting, Err: now.Err})
			})
		}
	})
}

// stopReopening stops the timers of all shards, and probes each shard that is away for the
// last time, so that Close need not try it with each key.
func (c *client) stopReopening(ctx context.Context) {
	var probes errgroup.Group
	probes.SetLimit(callsAtOnce)
	c.shards.Range(func(_, value any) bool {
		s := value.(*shard)
		s.stop()
		if !s.Open() || ctx.Err() != nil { // a shard without keys would take a walk over all keys
			return true
		}
		if key, ok := c.keyOn(s); ok {
			probes.Go(func() error {
				bounded, cancel := context.WithTimeout(ctx, c.fetchTimeout)
				defer cancel()
				c.ask(bounded, s, key)
				return nil
			})
		}
		return true
	})
	_ = probes.Wait()
}

func (s *shard) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// policyStateless is the failure policy for a key that has no room in memory.
func (c *client) policyStateless(key string, limit Limit, n int64, stay bool, err error) (Result, error) {
	if _, ok := errors.AsType[*StoreError](err); !ok {
		return Result{}, err
	}
	if c.failure.mode != failOpen {
		if !stay || !outage(err) { // otherwise the caller asks again
			c.count.failed.Add(1)
		}
		return Result{}, err
	}
	c.count.fallbacks.Add(1)
	c.count.admittedByPolicy.Add(1)
	c.count.overdrawn.Add(n) // no account can record it as debt
	c.count.left.Add(n)
	return Result{Allowed: true, Limit: limit.Tokens, Reset: limit.Ends(time.Now()), Source: Fallback, key: c.keys.HashOf(key), charged: n}, nil
}

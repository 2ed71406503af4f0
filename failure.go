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
// charged before the outage. A share of less than one token admits nobody. That window is
// the store's, if its end is known from an earlier reply; otherwise it is the calendar's
// period, or begins with the first request and has the limit's length. It lasts until its
// end through any number of outages, and the key stays in memory that long, so keys past
// [WithMaxKeys] get [FailClosed].
//
// When the store is back, it charges what FailLocal and FailOpen have admitted in a window
// that it had named before, or in a period of the calendar, if that is still open; see
// [Stats].Owed. What they admit in any other window counts as Overdrawn at once.
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

// fallback is what the failure policy has admitted for one key. Its own window bounds what
// FailLocal admits; it is kept until its end, through any number of outages. What was
// admitted is debt of the store's window that was read last, if that is open, or of the
// calendar's period, which is known without a reading. A nil *fallback has admitted nothing.
type fallback struct {
	window   backend.Window // the policy's own, as its Results have it
	end      int64          // its end by the process' clock
	length   time.Duration  // of it
	admitted int64          // tokens in it

	debtor   backend.Window // the window of the store, or period, that owes, as its Results have it
	home     backend.Window // the same, or the one to which the store has carried its debt over
	declared int64          // tokens admitted as its debt, less those that came back
	pending  int64          // debt that waits until the period of that name was read, or none is open
}

// owes reports whether r was admitted as debt of the last window that owes.
func (f *fallback) owes(r *Result) bool {
	return f != nil && r.Source == Fallback && r.charged > 0 && f.debtor == r.window()
}

// pends reports whether debt waits for the period of r to be read.
func (f *fallback) pends(r *Result) bool { return f.owes(r) && f.pending > 0 }

// waiting is the debt that waits for its period.
func (f *fallback) waiting() int64 {
	if f == nil {
		return 0
	}
	return f.pending
}

// owedLocked is the debt that the store must still charge.
func (k *keyState) owedLocked() int64 { return k.account.Unpaid() + k.fallback.waiting() }

// fallbackLocked returns what the policy has admitted in its own window at now. A new one
// ends with the store's window, if one is open, or by the process' clock.
func (k *keyState) fallbackLocked(now int64) *fallback {
	if k.fallback == nil {
		k.fallback = new(fallback)
	}
	f := k.fallback
	if now <= f.end && f.window != 0 {
		return f
	}
	f.admitted = 0
	w := k.openLocked(now)
	if w != nil && k.limit().Calendar.Period == 0 {
		f.window, f.end, f.length = w.Window, w.LatestEnd(), k.limit().Window
		return f
	}
	limit := k.ownLimit()
	end := limit.Ends(wall(k.lease.Load(), now))
	if f.length = limit.Window; w != nil {
		end, f.length = w.Window.Time(), k.limit().Window
	}
	f.window, f.end = backend.Window(end.UnixMilli()), now+int64(time.Until(end))
	return f
}

// openLocked returns the store's window if it may be open, as far as this process knows. A
// calendar's window is over with its period, which the wall clock tells more exactly than
// an old reading.
func (k *keyState) openLocked(now int64) *lease.Lease {
	w := k.lease.Load()
	if w.Over(now) || k.limit().Calendar.Period != 0 && !time.Now().Before(w.Window.Time()) {
		return nil
	}
	return w
}

// declareLocked records n tokens that the policy admits now, and returns the window that
// they count in. Where neither a reading nor the calendar names one, they are overdrawn.
func (f *fallback) declareLocked(k *keyState, n, now int64) backend.Window {
	window := f.window
	w := k.openLocked(now)
	if w != nil {
		window = w.Window
	}
	if w == nil && k.limit().Calendar.Period == 0 {
		k.l.overdraw(n)
		return window
	}
	if f.debtor != window {
		k.l.overdraw(f.pending) // of a period that is over
		f.debtor, f.home, f.declared, f.pending = window, window, 0, 0
	}
	f.declared = min(f.declared+n, backend.MaxTokens)
	if w != nil {
		k.account.Declare(n)
	} else {
		f.pending = min(f.pending+n, backend.MaxTokens)
	}
	return window
}

// expireLocked counts pending debt whose period is over.
func (k *keyState) expireLocked(now int64) {
	if k.fallback.waiting() > 0 && time.Now().After(k.fallback.debtor.Time()) {
		k.foundLocked(0, now)
	}
}

// foundLocked declares pending debt when a reply says which window is open; 0 is none. Debt
// of a period that is open but has no window yet opens it. Debt of another one has come
// too late.
func (k *keyState) foundLocked(window backend.Window, now int64) {
	f := k.fallback
	if f.waiting() == 0 {
		return
	}
	left := time.Until(f.debtor.Time())
	switch {
	case window == 0 && left > 0:
		k.openedLocked(k.bound.Load().own())
		k.switchLocked(f.debtor, now).Guess(backend.State{Window: f.debtor, Left: left, Remaining: k.limit().Tokens}, now)
	case window != f.debtor:
		k.l.overdraw(f.pending)
		f.pending = 0
		return
	}
	k.account.Declare(f.pending)
	f.pending = 0
}

// refundFallbackLocked takes back n of the tokens that r was admitted for without the
// store. Debt that no statement has carried is cancelled. Tokens that the store has charged
// since, or may have, go back to the store, because they may be above the limit; if their
// window is over, they have expired. ok is false if r is not debt of the last window that
// owes. wanted is for the event.
func (k *keyState) refundFallbackLocked(r *Result, n, now int64) (wanted int64, ok bool) {
	f, w := k.fallback, k.lease.Load()
	if ok = f.owes(r); f != nil && r.Source == Fallback && r.charged > 0 && (ok || f.window == r.window()) {
		f.admitted = max(f.admitted-n, 0)
	}
	if !ok {
		return unchanged, false
	}
	n = min(n, f.declared)
	f.declared -= n
	waiting := min(n, f.pending)
	f.pending -= waiting
	n -= waiting
	if n == 0 {
		return unchanged, true
	}
	if w == nil || w.Window != f.home { // when the key left it, leaveLocked counted them
		n = takeUpTo(&k.l.count.left, n)
		k.l.count.refunded.Add(n)
		k.l.count.expired.Add(n)
		return unchanged, true
	}
	returned := k.account.ReturnDebt(n-k.account.CancelDebt(n), k.heldLocked())
	k.l.count.refunded.Add(returned)
	if returned == 0 {
		return unchanged, true
	}
	return 0, true
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
	limit := k.ownLimit()
	k.l.count.fallbacks.Add(1)
	r.Limit, r.Reset, r.Source = limit.Tokens, f.window.Time(), Fallback
	if r.Allowed = n <= left; r.Allowed {
		k.l.count.admittedByPolicy.Add(1)
		left -= n
		f.admitted = min(f.admitted+n, backend.MaxTokens) // FailOpen has no bound
		r.Reset = f.declareLocked(k, n, now).Time()
		if k.use != nil {
			k.use.charge = 0 // at once
		}
		r.key, r.epoch, r.charged = k.node.Hash, k.node.Tag, n
	} else {
		k.denied.Add(1)
		r.Shadowed, r.RetryAfter = limit.Shadow, retryAfter(time.Duration(f.end-now), f.length)
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
	timeout := max(c.fetchTimeout, connectTime)
	ctx, cancel := context.WithTimeout(c.life, timeout)
	defer cancel()
	again := func() {
		if s.Watched() {
			c.armReopen(s)
		}
	}
	defer again() // whatever the store does
	sent := c.clock.Now()
	late := time.AfterFunc(timeout+slack, func() { // the store does not obey its context, and may never return
		s.Record(sent, c.clock.Now(), breaker.Failed, s.Cause())
		again()
	})
	defer late.Stop()
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

// overdraw counts n tokens that the failure policy has admitted and no window can owe.
// Those that turn out not to be used may still be settled.
func (c *client) overdraw(n int64) {
	c.count.overdrawn.Add(n)
	c.count.left.Add(n)
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
	c.overdraw(n) // no account can record it as debt
	return Result{Allowed: true, Limit: limit.Tokens, Reset: limit.Ends(time.Now()), Source: Fallback, key: c.keys.HashOf(key), charged: n}, nil
}

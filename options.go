package reservoir

import (
	"crypto/rand"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/demand"
	"github.com/go-reservoir/reservoir/internal/key"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// Option changes a default of [New]. If several options set the same value, the last one
// counts. If a value makes no sense, New returns an error that wraps [ErrOption].
type Option func(*config)

type config struct {
	limit        Limit // New's
	name         string
	sizing       demand.Policy
	direct       bool
	limits       func(key string) Limit
	fetchTimeout time.Duration
	failure      key.Policy
	maxKeys      int
	maxWaiting   int
	idle         time.Duration
	hooks        Hooks
}

func defaults(limit Limit) config {
	return config{
		limit:        limit,
		sizing:       demand.Policy{Kind: demand.Adaptive, Min: 1},
		fetchTimeout: 100 * time.Millisecond,
		maxKeys:      1 << 20,
		failure:      key.Policy{Mode: key.FailClosed},
		idle:         min(max(limit.Window/20, 5*time.Minute), time.Hour),
	}
}

// WithName names the limit: the name stands before the key in the store. Limits of one store that
// differ in length, calendar or kind count a key apart without names, such as one per second and one per
// hour. Others share a count, so two limits per minute on the same keys, such as of requests and of
// tokens, need names. All processes must use the same name. By default there is no name. A name has up to
// 64 bytes and no control characters.
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithDirect holds no stock: the callers of a key stand in line, and a call asks the store for exactly
// what they need. So limits are exact and fair among processes to the token, and a killed process loses nothing,
// but each request waits for a round trip, and for the rest of the one under way. Callers in line share a call. By default requests are served from batches. Refusals are cached in both cases. Beside
// processes that hold batches, a request for which the store has too little waits for some more round trips, while
// tokens that lie idle in these come back.
func WithDirect() Option { return func(c *config) { c.direct = true } }

// WithLimits gives keys limits of their own, such as by plan; by default all have the limit of New.
// [Block] refuses a key's requests, and [Unlimited] admits them. If limits returns a limit out of
// range, or the zero Limit, as a map does for a plan that it lacks, calls for that key return [ErrLimit].
//
// limits is called when a key is first seen, before each of its fetches and direct calls,
// for a request larger than its last limit, by Check, Reset and [Limiter.Refresh], and for
// each request of a key that is blocked, unlimited or past [WithMaxKeys]. It is called with
// no lock held, and must be safe for concurrent use. It must not block, so read plans from memory: a call
// that blocks holds up the requests of its key, and takes one of the few slots for calls ahead of need.
// A panic of limits is not caught. In a caller's goroutine, as on a key's first
// request, it goes up to the caller and leaves nothing charged; in one of the limiter, as before a
// fetch, it ends the process.
//
// Stock is spent without asking limits. So a key that is to be blocked is served from stock
// until limits is called for it; [Limiter.Refresh] makes all processes call it at once. From the moment when
// limits has returned a block, none of the key's stock is admitted in this process, and the
// stock goes back to the store.
//
// A limit may change at any time, even in the middle of a window. The new number of tokens
// counts from the key's next fetch, for all processes together. A limit of another length, calendar or kind
// counts apart: requests are charged there from then on, the old stock goes back, and who changes
// to and fro finds the old count while its window runs. For a refused key, limits is called again up to 20 times
// a window, while requests come, in case the limit was raised. Tokens that were charged before a
// limit was lowered may still be spent.
func WithLimits(limits func(key string) Limit) Option {
	return func(c *config) { c.limits = limits }
}

// WithFetchTimeout bounds how long one call to the store may take: 100 ms by default; d
// must be more than 0. A caller without stock waits for its own fetch and at most for the
// rest of the one before, or for the next if its own is lost. A longer timeout tolerates slow replies; a shorter one gives
// callers an error sooner when the store is away. Callers with stock never wait. The first calls
// to a server may take 2 s, if that is more, because they connect.
func WithFetchTimeout(d time.Duration) Option { return func(c *config) { c.fetchTimeout = d } }

// WithMaxKeys bounds the number of keys held in memory: 1,048,576 by default, at some
// hundreds of bytes each. Past the bound, each request for a new key is a store call until
// idle keys are evicted; no key is evicted earlier to make room. If n is 0, every request
// is a store call. It is charged without an account, so unused tokens do not come back, and its
// refusal may be early, because tokens that lie idle in other processes are not called back.
func WithMaxKeys(n int) Option { return func(c *config) { c.maxKeys = n } }

// WithMaxWaiting bounds how many callers of a key wait in line in this process: while n do, for a reset or for a call, a Wait that
// finds no stock returns [ErrMaxWaiting] at once, and so does that of a [Group]. So an overload becomes errors instead of memory. Only
// callers of Wait count. A Wait for a key past [WithMaxKeys], or for a blocked one, is in no line, and not bounded. By default, or if n
// is 0, there is no bound.
func WithMaxWaiting(n int) Option { return func(c *config) { c.maxWaiting = n } }

// WithIdle sets after how long without use a key's memory is freed and its stock handed
// back; in practice it may take twice as long. d must be more than 0. The default is a
// 20th of the window of New's limit, but at least 5 minutes and at most an hour. A shorter
// time saves memory. A longer time saves a store call for keys that are used again. The store keeps an account
// of some 60 bytes for each process that has used a key in its window, however often that has forgotten it.
func WithIdle(d time.Duration) Option { return func(c *config) { c.idle = d } }

// WithHooks sets functions that report what the limiter does, for metrics and logs. They
// are called with no lock held, from a goroutine of the call that they report, after its
// callers were answered, so a slow hook delays nobody. A hook must not call Close, which waits for
// the hook. By default there are no hooks. Several WithHooks add up: those of a report are called
// in order, such as promlimit's and sloglimit's.
func WithHooks(h Hooks) Option {
	return func(c *config) {
		c.hooks.StoreCall = inTurn(c.hooks.StoreCall, h.StoreCall)
		c.hooks.ShardState = inTurn(c.hooks.ShardState, h.ShardState)
		if a, b := c.hooks.Subscription, h.Subscription; a == nil {
			c.hooks.Subscription = b
		} else if b != nil {
			c.hooks.Subscription = func(shard string, err error) {
				a(shard, err)
				b(shard, err)
			}
		}
	}
}

// inTurn returns a function that calls a and then b. If one of them is nil, it is the other one.
func inTurn[T any](a, b func(T)) func(T) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(what T) {
		a(what)
		b(what)
	}
}

// Hooks are for metrics and logs: functions that [WithHooks] calls. Several goroutines may call them at the same
// time. Nil functions are skipped, so the zero Hooks does nothing. A panic of one is not caught: it ends the process.
type Hooks struct {
	// StoreCall reports every call to the store after it has ended.
	StoreCall func(StoreCall)

	// ShardState reports that a shard goes away, rejects calls, or serves again.
	ShardState func(ShardState)

	// Subscription reports that messages about keys of a shard do not come to this process, and
	// why, or, with a nil err, that they come again: a right to publish or subscribe is missing, or the
	// connection is cut. Until they come again, refusals may be early, because idle tokens of
	// other processes are not called back, and this process learns late of [Limiter.Reset] and
	// [Limiter.Refresh]. Decisions never exceed the limit. A store that never sends messages is not
	// reported; see [Stats].Unsubscribed. shard is "" where the store has no shards.
	Subscription func(shard string, err error)
}

// ShardState is what [Hooks] report of a shard of the store: that it goes away, rejects calls, or serves again.
type ShardState struct {
	Shard     string // its name, as its store has it; "" where the store has no shards
	Away      bool   // callers without stock now get the failure policy's answer at once
	Rejecting bool   // the shard answers but refuses to serve: a password, a right or memory is missing
	Err       error  // why, a *StoreError; nil when it serves again, or no key in memory is on it
}

// StoreCall is what [Hooks] report of a call to the store that has ended. It names no key.
type StoreCall struct {
	Op       string        // "sync", "check", "reset" or "publish"
	Cause    string        // of a sync: wait, prefetch, reset, probe, give back, renew, reopen, charge or hold
	Reason   string        // why a batch has its size; "" for other calls
	Duration time.Duration // from sending to the reply
	Want     int64         // tokens asked for, or used above charges
	Granted  int64         // tokens granted
	Err      error         // nil or a *StoreError
}

// validateKey refuses a key that the store would refuse.
func (c *config) validateKey(key string) error {
	if key == "" || len(c.name)+1+2*len(key) <= backend.MaxKeyLen { // what its name in the store may have, without an allocation
		return backend.ValidateKey(key)
	}
	return backend.ValidateKey(placement.Named(c.name, key))
}

// validateRequest refuses a request that no limit could serve.
func (c *config) validateRequest(key string, n int64) error {
	if err := c.validateKey(key); err != nil {
		return err
	}
	if n < 1 {
		return fmt.Errorf("%w: %d, want at least 1", backend.ErrTokens, n)
	}
	return nil
}

// settings are what keys need to know.
func (c *config) settings(store backend.Store) key.Settings {
	s := key.Settings{
		Limit: backend.Limit(c.limit), ByKey: c.limits != nil, Name: c.name, Client: rand.Text()[:12], Sizing: c.sizing, Direct: c.direct,
		Timeout: c.fetchTimeout, Fallback: c.failure, MaxWaiting: c.maxWaiting,
	}
	s.Parts, _ = store.(key.Parts)
	if hook := c.hooks.ShardState; hook != nil {
		s.ShardState = func(shard string, now breaker.Change) {
			hook(ShardState{Shard: shard, Away: now.Open, Rejecting: now.Rejecting, Err: now.Err})
		}
	}
	return s
}

// validate names the first option whose value makes no sense.
func (c *config) validate() error {
	if err := c.limit.validate(); err != nil {
		return err
	}
	switch {
	case len(c.name) > 64 || strings.ContainsFunc(c.name, unicode.IsControl):
		return fmt.Errorf("%w: a name of %d bytes, want up to 64 and no control characters", ErrOption, len(c.name))
	case c.fetchTimeout <= 0 || c.fetchTimeout > 24*time.Hour:
		return fmt.Errorf("%w: a fetch timeout of %v, want more than 0 and at most a day", ErrOption, c.fetchTimeout)
	case c.maxKeys < 0:
		return fmt.Errorf("%w: at most %d keys, want 0 or more", ErrOption, c.maxKeys)
	case c.maxWaiting < 0:
		return fmt.Errorf("%w: at most %d callers in line, want 0 or more", ErrOption, c.maxWaiting)
	case c.idle <= 0:
		return fmt.Errorf("%w: an idle time of %v, want more than 0", ErrOption, c.idle)
	}
	if err := validateFailure(c.failure); err != nil {
		return err
	}
	return validateSizing(c.sizing)
}

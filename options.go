package reservoir

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/go-reservoir/reservoir/backend"
)

// Option changes a default of New. Of several that set the same the last counts;
// one that makes no sense is an error of New that wraps ErrOption.
type Option func(*config)

type config struct {
	limit        Limit // New's
	name         string
	prefix       string // of the store's keys: the name and a separator
	sizing       Sizing
	direct       bool
	limits       func(key string) Limit
	stranding    float64
	fetchTimeout time.Duration
	failure      Failure
	maxKeys      int
	idle         time.Duration
	hooks        Hooks
	lateOverruns bool
	shadow       bool
}

func defaults(limit Limit) config {
	return config{
		limit:        limit,
		sizing:       Adaptive(1, 0),
		stranding:    0.01,
		fetchTimeout: 100 * time.Millisecond,
		maxKeys:      1 << 20,
		failure:      FailClosed,
		idle:         min(max(limit.Window/20, 5*time.Minute), time.Hour),
	}
}

// WithBatch sets how many tokens a key fetches at a time: Fixed(n),
// Ladder(min, max) or, by default, Adaptive(1, 0). Larger batches mean fewer
// store calls, and more tokens that lie in one process while another is refused.
func WithBatch(s Sizing) Option { return func(c *config) { c.sizing = s } }

// WithName names the limit: the name stands before the key in the store. Limits of one
// store that count the same keys need names, such as "per-second" and "per-hour", for
// each to have windows of its own; otherwise their calls are ErrConflict. All processes
// must use the same name. The default is none, which leaves the store's keys as GitHub's
// scripts have them. A name has up to 64 bytes and no control characters.
func WithName(name string) Option { return func(c *config) { c.name = name } }

// WithDirect makes every request a store call of its own: exact and fair among
// processes to the token, at the price of a round trip each. By default requests
// are served from batches. Refusals are cached all the same.
func WithDirect() Option { return func(c *config) { c.direct = true } }

// WithLimits gives keys limits of their own; by default all have New's. It is
// called with no lock held, when a key is first seen, before each of its
// fetches, and for a request larger than the limit that is known; it must be quick
// and safe for concurrent use. A limit out of range is the error of that key's
// calls. A limit of no tokens, Limit{} for example, blocks the key, and Unlimited lets it
// pass; for such keys it is called for each request.
//
// A limit may change at any time, in the middle of a window too. Its tokens count from
// the key's next fetch, in all processes together, as the store then knows it; a window
// that is open keeps its length until it ends. A key that is refused asks 20 times a
// window, while requests come, whether its limit was raised. What was charged before a
// limit was lowered may still be spent.
func WithLimits(limits func(key string) Limit) Option {
	return func(c *config) { c.limits = limits }
}

// WithStranding sets the share of the limit, 0 to 1, that may lie unspent in all
// processes together when the limit has run out: 0.01 by default. More means
// fewer store calls near the end of the limit; 0 means direct calls there. It
// guides Adaptive only. Anything else than 0 to 1 makes no sense.
func WithStranding(share float64) Option { return func(c *config) { c.stranding = share } }

// WithFetchTimeout bounds how long one call to the store may take: 100 ms by default; it
// must be more than 0. A caller without stock waits for its own fetch and at most for the
// rest of the one before. Longer rides out slow replies; shorter answers sooner, by
// an error, when the store is away. Callers with stock never wait.
func WithFetchTimeout(d time.Duration) Option { return func(c *config) { c.fetchTimeout = d } }

// WithMaxKeys bounds the keys held in memory: 1,048,576 by default, at some
// hundreds of bytes each. Past the bound a new key is served directly, a store
// call for each request, until others have been idle; a held key is never
// forgotten for it. 0 holds none: every request is a store call.
func WithMaxKeys(n int) Option { return func(c *config) { c.maxKeys = n } }

// WithIdle sets after how long without use a key's memory is freed and its stock
// handed back, up to twice that in practice; it must be more than 0. The default
// is a twentieth of New's window, but at least 5 minutes and at most an hour.
// Shorter saves memory; longer saves a store call for keys that return, and memory
// of the store, which keeps an account of some 60 bytes for each time that a
// process has forgotten a key and come back to it in one window.
func WithIdle(d time.Duration) Option { return func(c *config) { c.idle = d } }

// WithShadow lets refusals pass, to see what a limit would do before it does it: such a
// Result is Allowed and Shadowed, nothing was charged for it, nobody waits, and Stats
// counts it. What is admitted is charged as always. Errors stay errors: WithFailure(FailOpen)
// lets requests pass in an outage too. Limit.Shadow does it for one key, by WithLimits.
func WithShadow() Option { return func(c *config) { c.shadow = true } }

// WithLateOverruns makes Settle count what a request has used above its charge against the
// window that is open then, if its own is over. By default it is forgotten, because it
// is not of that window; count it where requests last as long as windows do. Where this
// process knows of no open window it costs two store calls, bounded by Settle's ctx.
func WithLateOverruns() Option { return func(c *config) { c.lateOverruns = true } }

// WithHooks sets functions that are told what the limiter does, for metrics and
// logs. They are called with no lock held, from a goroutine of the call that they are
// told of, after those who waited for it were answered: a slow hook delays nobody. The
// panic of a hook is logged. A hook must not call Close, which waits for it. The default
// is none. Of several
// WithHooks the last counts; JoinHooks makes one of several.
func WithHooks(h Hooks) Option { return func(c *config) { c.hooks = h } }

// Hooks are called as things happen, by several goroutines at the same time; nil
// ones are skipped, so the zero Hooks is none.
type Hooks struct {
	// StoreCall is told of every call to the store after it has ended.
	StoreCall func(StoreCall)

	// ShardState is told when a shard's breaker opens and when it closes.
	ShardState func(ShardState)
}

// JoinHooks returns Hooks that call those of all, in their order: a metrics
// package's and a log's, say. What none of them has stays nil and costs nothing.
func JoinHooks(all ...Hooks) Hooks {
	var calls []func(StoreCall)
	var states []func(ShardState)
	for _, h := range all {
		if h.StoreCall != nil {
			calls = append(calls, h.StoreCall)
		}
		if h.ShardState != nil {
			states = append(states, h.ShardState)
		}
	}
	return Hooks{StoreCall: inTurn(calls), ShardState: inTurn(states)}
}

func inTurn[T any](all []func(T)) func(T) {
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return func(what T) {
		for _, tell := range all {
			tell(what)
		}
	}
}

// ShardState is a change in how a shard of the store serves.
type ShardState struct {
	Shard     string // its name, as its store has it; "" where the store has no shards
	Away      bool   // callers without stock now get the failure policy's answer at once
	Rejecting bool   // it answers and refuses to serve: a password, a right or memory is missing
	Err       error  // why, a *StoreError; nil when all is well again, or all keys have left
}

// StoreCall is one finished call to the store. It names no key.
type StoreCall struct {
	Op       string        // "sync", "take", "check", "refund" or "reset"
	Cause    string        // of a sync: wait, prefetch, reset, probe, give back, refresh, reopen or charge
	Reason   string        // why a batch had the size it had; "" for other calls
	Duration time.Duration // from sending to the reply
	Want     int64         // tokens asked for
	Granted  int64         // tokens got (given back, for a refund)
	Err      error         // nil, or a *StoreError
}

// Outcome is Err in a word, for metrics: ok, unavailable, rejected or unknown.
func (c StoreCall) Outcome() string {
	if c.Err == nil {
		return "ok"
	}
	if failure, ok := errors.AsType[*StoreError](c.Err); ok {
		switch failure.Class {
		case backend.Unavailable:
			return "unavailable"
		case backend.Rejected:
			return "rejected"
		}
	}
	return "unknown"
}

// guided reports whether the store tapers the grants.
func (c *config) guided() bool { return !c.direct && c.sizing.policy.Guided() }

// ahead reports whether keys order batches before they are needed.
func (c *config) ahead() bool { return !c.direct && c.sizing.policy.Ahead() }

// validateKey refuses a key that the store would refuse.
func (c *config) validateKey(key string) error {
	if c.prefix != "" && key != "" {
		key = c.storeKey(key)
	}
	return backend.ValidateKey(key)
}

// storeKey is how the store calls the key: with the limit's name before it. Between them
// stands a unit separator, of which a key has pairs only; so no two names, and no name
// and none, ever share a key, whatever users call themselves.
func (c *config) storeKey(key string) string {
	if strings.Contains(key, separator) {
		key = strings.ReplaceAll(key, separator, separator+separator)
	}
	return c.prefix + key
}

const separator = "\x1f"

// varies reports whether a key's limit, or the length of its window, may change.
func (c *config) varies() bool { return c.limits != nil || c.limit.Calendar.Period != 0 }

// mayBe reports whether a window may be of that length, though it is not that of its limit.
func (c *config) mayBe(length time.Duration) bool {
	off := length - c.limit.Window // of a calendar: a month is up to three days shorter
	return c.limits != nil || c.limit.Calendar.Period != 0 && max(off, -off) < c.limit.Window/8
}

// anyLimit is a limit for calls that need none, to probe with if they fail.
func (c *config) anyLimit() Limit {
	if planOf(c.limit) != counted {
		return PerMinute(1)
	}
	return c.limit.Plain()
}

// validate names the first option whose value makes no sense.
func (c *config) validate() error {
	if planOf(c.limit) == blocked && c.limits == nil {
		return fmt.Errorf("%w: 0 tokens, which block every key, without WithLimits", ErrLimit)
	}
	if err := validateLimit(c.limit); err != nil {
		return err
	}
	c.limit.Shadow = c.limit.Shadow || c.shadow
	if c.name != "" {
		c.prefix = c.name + separator
	}
	switch {
	case len(c.name) > 64 || strings.ContainsFunc(c.name, unicode.IsControl):
		return fmt.Errorf("%w: a name of %d bytes, want up to 64 and no control characters", ErrOption, len(c.name))
	case math.IsNaN(c.stranding) || c.stranding < 0 || c.stranding > 1:
		return fmt.Errorf("%w: a stranding share of %v, want 0 to 1", ErrOption, c.stranding)
	case c.fetchTimeout <= 0:
		return fmt.Errorf("%w: a fetch timeout of %v, want more than 0", ErrOption, c.fetchTimeout)
	case c.maxKeys < 0:
		return fmt.Errorf("%w: at most %d keys, want 0 or more", ErrOption, c.maxKeys)
	case c.idle <= 0:
		return fmt.Errorf("%w: an idle time of %v, want more than 0", ErrOption, c.idle)
	}
	if err := c.failure.validate(); err != nil {
		return err
	}
	return c.sizing.validate()
}

// Package reservoir makes rate limiting by Redis cheap without making it wrong.
//
// Each process holds a batch of tokens per key that the store has already
// charged to it, and spends them from memory. Most requests never touch the
// network, and yet all processes together never exceed the limit: tokens are
// reserved before anything is admitted. What a process does not use goes back.
//
//	limiter, err := reservoir.New(store, reservoir.PerMinute(60_000))
//	...
//	r, err := limiter.Allow(ctx, "user:42")
//	switch {
//	case err != nil: // no decision: the store is away
//	case !r.Allowed: // refused: come back after r.RetryAfter
//	}
//
// A store is memstore.New() for one process, redisstore.New(client) for many, or
// several of either behind sharding.New.
//
// # What is promised
//
// Over all processes, the tokens spent in a window of the store never exceed the
// limit while the store keeps its data, whatever calls are lost, late, repeated
// or reordered. A token that was charged is spent, handed back, or expires with
// its window, and Stats counts it as one of these. A caller with stock at hand
// does no I/O and takes no lock, but for the one in each batch that orders the
// next; a refusal costs no call until the reset, but for a rare probe; a crowd on
// one key shares one call; and a caller is bounded by its own context.
//
// The window is fixed: up to twice the limit may pass in an interval of a
// window's length that straddles a reset. See Limit.
package reservoir

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/chance"
)

// Limiter limits any number of keys. Make it with New; the zero Limiter is of no
// use. It is safe for concurrent use. It holds
// stock of the store's, so Close it to hand that back. One Limiter per process
// and limit is enough; two share nothing but the store.
type Limiter struct {
	config
	store    backend.Store
	limit    Limit
	clock    clock
	table    table
	shards   sync.Map     // name → *shard
	leaving  atomic.Int64 // clock time from which on to look for shards that all keys have left; 0 = there are none
	id       string
	account  atomic.Pointer[account] // of new entries
	epoch    atomic.Uint32           // of the last one; grows with evictions
	sweeper  sweeper
	places   places
	counting sync.Mutex // by Stats, while no key's counts may become the limiter's
	flights  sync.WaitGroup
	closed   atomic.Bool
	done     chan struct{} // closed with it
	closing  sync.Once
	closeErr error // written in closing, and only read after

	count struct { // of the slow path; what the hot path counts is in its entry
		taken, refunded, returned, expired                                                                     atomic.Int64 // tokens
		spent, denied                                                                                          atomic.Int64 // by keys that are gone
		calls, syncs, waited, failed, prefetches, probes, giveBacks, recovered, reasserted, unknown, fallbacks atomic.Int64
	}
}

// New returns a Limiter that counts in store. It does no I/O and starts no
// goroutine. It fails on a limit out of range, an option that makes no sense,
// or a store that is set up wrongly.
func New(store backend.Store, limit Limit, opts ...Option) (*Limiter, error) {
	l := &Limiter{config: defaults(limit), store: store, limit: limit, id: rand.Text()[:12], done: make(chan struct{})}
	for _, o := range opts {
		o(&l.config)
	}
	if store == nil {
		return nil, fmt.Errorf("%w: no store", ErrOption)
	}
	if s, ok := store.(interface{ Err() error }); ok && s.Err() != nil {
		return nil, s.Err()
	}
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	if err := l.validate(); err != nil {
		return nil, err
	}
	l.table.init(int64(l.maxKeys))
	l.rename()
	l.clock.init()
	return l, nil
}

// Allow is AllowN for one token.
func (l *Limiter) Allow(ctx context.Context, key string) (r Result, err error) {
	err = l.allow(&r, ctx, key, 1)
	return r, err
}

// AllowN asks for n tokens of key, all or none. Usually it is decided in memory;
// without stock the caller shares a fetch with others, for at most the fetch
// timeout. A refusal is a Result and charges nothing; an error means that no
// decision was made: ErrKey, ErrTokens, ErrLimit, ErrExceedsLimit, ErrClosed, a
// *StoreError, or that of ctx.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (r Result, err error) {
	err = l.allow(&r, ctx, key, n)
	return r, err
}

// allow writes its Result to where the caller has room for it; see window.admit.
func (l *Limiter) allow(r *Result, ctx context.Context, key string, n int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if e := l.table.get(key); e != nil && n > 0 && e.try(r, n) {
		return nil
	}
	slow, _, err := l.acquire(ctx, key, n, false)
	*r = slow
	return err
}

// Wait is WaitN for one token.
func (l *Limiter) Wait(ctx context.Context, key string) error {
	return l.WaitN(ctx, key, 1)
}

// WaitN blocks until n tokens of key are charged, through as many resets as it
// takes. Callers of one key are served first come first served. When ctx has a
// deadline that cannot be met it returns ErrDeadline at once; when ctx ends
// first, its error, and nothing is charged. Other errors are those of AllowN.
func (l *Limiter) WaitN(ctx context.Context, key string, n int64) error {
	_, _, err := l.acquire(ctx, key, n, true)
	return err
}

// acquire finds the key's entry and decides there. The entry is returned for
// handles to keep; it is nil for a key that there is no room for.
func (l *Limiter) acquire(ctx context.Context, key string, n int64, wait bool) (Result, *entry, error) {
	if err := ctx.Err(); err != nil {
		return Result{}, nil, err
	}
	if err := backend.ValidateKey(key); err != nil {
		return Result{}, nil, err
	}
	if n < 1 {
		return Result{}, nil, fmt.Errorf("%w: %d, want at least 1", ErrTokens, n)
	}
	for {
		e, err := l.entry(key)
		if err != nil {
			return Result{}, nil, err
		}
		if e == nil {
			r, err := l.crowded(ctx, key, n, wait)
			return r, nil, err
		}
		if r, err, again := e.acquire(ctx, n, wait); !again {
			return r, e, err
		}
		l.table.drop(e)
	}
}

// entry returns the key's entry, or nil if there is no room for one.
func (l *Limiter) entry(key string) (*entry, error) {
	if e := l.table.get(key); e != nil {
		return e, nil
	}
	if l.closed.Load() {
		return nil, ErrClosed
	}
	limit, err := l.limitOf(key)
	if err != nil {
		return nil, err
	}
	e := l.table.getOrMake(key, func(key string, hash uint64) *entry {
		return l.newEntry(key, hash, limit)
	})
	l.arm()
	return e, nil
}

func (l *Limiter) limitOf(key string) (Limit, error) {
	if l.limits == nil {
		return l.limit, nil
	}
	limit := l.limits(key)
	return limit, limit.Validate()
}

// crowded serves a key that there is no room for, call by call.
func (l *Limiter) crowded(ctx context.Context, key string, n int64, wait bool) (Result, error) {
	for {
		limit, err := l.limitOf(key)
		if err != nil {
			return Result{}, err
		}
		if n > limit.Tokens {
			return Result{}, ErrExceedsLimit
		}
		r, err := l.stateless(ctx, key, limit, n)
		if err != nil || r.Allowed || !wait {
			return r, err
		}
		if err := pause(ctx, r.RetryAfter+chance.Part(limit.Window/100), l.done); err != nil {
			return r, err
		}
	}
}

// pause sleeps for d, or until closed is; it returns at once if ctx does not last
// that long.
func pause(ctx context.Context, d time.Duration, closed <-chan struct{}) error {
	if t, ok := ctx.Deadline(); ok && time.Until(t) < d {
		return ErrDeadline
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return ErrClosed
	}
}

// Check asks the store how key stands, and charges nothing. Allowed says whether
// one token could be had. It costs a store call, perhaps to a replica, whose
// answer may lag; Source is Direct.
func (l *Limiter) Check(ctx context.Context, key string) (Result, error) {
	if l.closed.Load() {
		return Result{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := backend.ValidateKey(key); err != nil {
		return Result{}, err
	}
	limit, err := l.limitOf(key)
	if err != nil {
		return Result{}, err
	}
	s, err := l.check(ctx, key, limit)
	if err != nil {
		return Result{}, err
	}
	r := Result{Limit: limit.Tokens, Remaining: s.Remaining, Reset: s.Window.Time(), Source: Direct}
	if e := l.table.find(key); e != nil {
		r.Remaining += e.stockIn(s.Window)
	}
	if r.Allowed = r.Remaining > 0; !r.Allowed {
		r.RetryAfter = max(s.Left, 1)
	}
	return r, nil
}

// Refund takes back what r was charged, so that others can have it: for a
// request that turned out to cost nothing. It does nothing if r was refused or
// its window is over. Tokens from stock go back into stock, without a call;
// those of a direct call go back to the store, which is told once: after an
// error the outcome is unknown. Refund each Result at most once.
func (l *Limiter) Refund(ctx context.Context, key string, r Result) error {
	if err := backend.ValidateKey(key); err != nil {
		return err
	}
	if r.charged == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil && r.Source == Direct { // before it passes for refunded
		return err
	}
	n := r.charged
	if e := l.table.find(key); e != nil {
		if n = e.refund(r); n == 0 {
			return nil
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.Source == Fallback { // of a key that is not in memory any more
		return nil
	}
	back, err := l.refund(ctx, backend.RefundRequest{Key: key, Window: r.window(), Tokens: n})
	if back > 0 {
		l.count.refunded.Add(back)
		l.count.returned.Add(back)
		if e := l.table.find(key); e != nil {
			e.reopen(r.window(), back)
		}
	}
	return err
}

// account is how entries that were made between two sweeps call themselves to the
// store.
type account struct {
	client string
	epoch  uint32 // counts the accounts of a limiter, from 1
}

// rename changes the account of new entries. Evicted keys forget theirs, so a later
// entry of the same key must not speak in its name.
func (l *Limiter) rename() {
	epoch := l.epoch.Add(1)
	l.account.Store(&account{client: l.id + "." + strconv.FormatUint(uint64(epoch)-1, 36), epoch: epoch})
}

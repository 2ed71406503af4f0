package reservoir

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/deadline"
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
// FailOpen, FailLocal(share) or, by default, FailClosed. A Wait for more than the
// policy admits is not refused, and does not last until the store is back: it
// gets the *StoreError, as under FailClosed. A few calls in a row that fail open a
// breaker, per shard where the store has shards: from then on callers get that
// answer at once, and the shard is probed, in the background, by calls that
// charge nothing.
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

// fallback is what one key has admitted by itself in a window. The window is the
// store's while that is known, and one of its own length otherwise.
type fallback struct {
	ends     int64 // clock time
	reset    time.Time
	admitted int64
	owed     int64 // the part of it that the store was not told of yet
	stated   int64 // tokens that it was told of in win, and has not confirmed
}

// away answers a request for n that the store could not be asked about because
// of err, by the failure policy. Who waits is not refused but told err. An error
// that is not the store's has no policy. Under entry.mu.
func (e *entry) away(n, now int64, wait bool, err error) (Result, error) {
	if _, ok := errors.AsType[*StoreError](err); !ok {
		return Result{}, err
	}
	var budget int64
	switch e.l.failure.mode {
	case failOpen:
		budget = math.MaxInt64
	case failLocal:
		budget = int64(e.l.failure.share * float64(e.limit().Tokens))
	default:
		return Result{}, e.l.failed(err)
	}
	f := e.alone(now)
	if wait && n > budget-f.admitted { // there is no telling how long
		return Result{}, e.l.failed(err)
	}
	e.l.count.fallbacks.Add(1)
	r := Result{Limit: e.limit().Tokens, Reset: f.reset, Source: Fallback}
	if r.Allowed = n <= budget-f.admitted; r.Allowed {
		f.admitted = min(f.admitted+n, backend.MaxTokens) // FailOpen has no end
		f.owed = min(f.owed+n, backend.MaxTokens)
		r.charged = n
	} else {
		e.deny()
		r.RetryAfter = time.Duration(max(f.ends-now, 1))
	}
	r.Remaining = max(min(budget, e.limit().Tokens)-f.admitted, 0)
	return r, nil
}

// alone returns the fallback of the window at now.
func (e *entry) alone(now int64) *fallback {
	if e.local != nil && now < e.local.ends {
		return e.local
	}
	f := &fallback{ends: now + int64(e.limit().Window)}
	if e.local != nil {
		f.stated = e.local.stated
	}
	if w := e.win.Load(); w.alive(now) {
		f.ends = w.ends.Load()
		f.reset = w.id.Time()
	} else {
		f.reset = time.Now().Add(e.limit().Window).Truncate(time.Millisecond)
	}
	e.local = f
	return f
}

// owed is what the store is to be told that requests have used without it.
func (e *entry) owed(now int64) int64 {
	if e.local == nil || now >= e.local.ends {
		return 0
	}
	return e.local.owed
}

// remembers reports whether what was admitted without the store is still needed: as
// what the process has used of its share, or to be told when the store is back.
func (e *entry) remembers(now int64) bool {
	f := e.local
	return f != nil && now < f.ends && f.admitted > 0 && (e.l.failure.mode == failLocal || e.shard.open.Load())
}

// repay tells the store what it is owed, now that it answers. If callers wait, the
// fetch for them does.
func (e *entry) repay(now int64) {
	if e.flight == nil && e.queue.empty() && !e.dead && !e.l.closed.Load() && e.win.Load().alive(now) && e.untold(now) > 0 {
		e.state(forCharge)
	}
}

// confess makes what is owed a part of the account, and returns how much of it the
// store has not confirmed. It stays there as long as the window does: of a total
// that went down again the store would think that a grant was lost, and hand it
// over.
func (e *entry) confess(now int64) int64 {
	f := e.local
	if f == nil || !e.win.Load().alive(now) {
		return 0
	}
	n := min(e.owed(now), backend.MaxTokens-e.granted) // more is beyond any limit
	f.owed = 0
	f.stated += n
	e.granted += n
	return f.stated
}

// told notes that the store has charged what it was told of.
func (e *entry) told() {
	if e.local != nil {
		e.take(e.local.stated)
		e.local.stated = 0
	}
}

// untold is what the store has not charged yet, as far as is known.
func (e *entry) untold(now int64) int64 {
	n := e.owed(now)
	if e.local != nil && e.win.Load().alive(now) {
		n += e.local.stated
	}
	return n
}

// forgive takes back what a request was admitted for without the store. What the
// store was told of is given back to it, unless it is just being told.
func (e *entry) forgive(r Result, now int64) {
	if f := e.local; f != nil && now < f.ends && f.reset.Equal(r.Reset) {
		n := min(r.charged, f.owed, f.admitted)
		if m := min(r.charged-n, f.stated, f.admitted-n); m > 0 && e.flight == nil {
			f.stated -= m
			f.admitted -= m
			e.returned += m
		}
		f.owed -= n
		f.admitted -= n
	}
}

// unasked answers a request while the shard's breaker is open. Now and then it
// first sends somebody, whom nobody waits for, to see whether the shard is back.
func (e *entry) unasked(n, now int64, wait bool) (Result, error) {
	if e.flight == nil && e.shard.due(now) {
		e.state(forReopening)
	}
	return e.away(n, now, wait, errAway)
}

// probe is the same for a key that there is no room to remember.
func (l *Limiter) probe(s *shard, key string, limit Limit) {
	l.sweeper.mu.Lock()
	defer l.sweeper.mu.Unlock()
	if l.sweeper.over {
		return
	}
	l.flights.Add(1)
	f := &flight{shard: s, req: backend.SyncRequest{Key: key, Client: l.account.Load().client, Limit: limit}, cause: forReopening}
	go func() {
		defer l.flights.Done()
		ctx := deadline.After(l.fetchTimeout)
		defer ctx.Release()
		_, _ = l.sync(ctx, f)
	}()
}

// forgetful is the failure policy for such a key.
func (l *Limiter) forgetful(limit Limit, n int64, err error) (Result, error) {
	if l.failure.mode != failOpen {
		return Result{}, l.failed(err)
	}
	l.count.fallbacks.Add(1)
	return Result{Allowed: true, Limit: limit.Tokens, Reset: time.Now().Add(limit.Window), Source: Fallback}, nil
}

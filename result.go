package reservoir

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/key"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

// Result is the answer to one request. All of its fields come from the same reading of
// the same window. A Result that comes with an error means nothing.
//
// A Result that was charged refers to its key in memory, to be settled. So it keeps the
// Limiter from being collected, also after Close, and reflection on it, as by
// [reflect.DeepEqual] or a dump, reads what other goroutines write. Compare its fields, and
// keep only a Result that is still to be settled.
type Result struct {
	// Allowed says that the tokens were charged, and the request may go on.
	Allowed bool

	// Source says how the decision was made, and so what it cost.
	Source Source

	// Shadowed says that the limit would have refused the request, which passes because of
	// [Limit].Shadow. Nothing was charged.
	Shadowed bool

	free bool // of a limit of a Group that was not asked, so there is nothing to settle

	// Limit is the number of tokens per window; that of [Unlimited] if no limit applies, and 0 if the
	// limit is [Block].
	Limit int64

	// Window is the length of the window, and that of the day, week or month by the calendar. It is 0
	// if no limit applies.
	Window time.Duration

	// Remaining is how many tokens this process could still get in the window, at most
	// Limit: what the store had left at the last reading, and the stock. Other processes
	// spend from what the store has left too. Of a [Direct] result it is what the store had left for this
	// request, to the token.
	Remaining int64

	// Reset is the stored end of the window, to the millisecond, which is the same
	// instant in every process. It is zero if Check found no open window, or if the limit is [Block] or
	// [Unlimited]. It is this
	// process' own guess if a [Fallback], or a shadowed request for more than the limit,
	// has no window of the store. If the limit is [Limit.Rolling], it is when all of the limit is
	// free again unless more is charged, up to 1.55 windows away, and moves with each charge.
	Reset time.Time

	// RetryAfter is the time until Reset when the request was refused, counted
	// from the decision, and 0 when it was allowed or the limit is [Block]. If the limit is [Limit.Rolling], it is the time until
	// enough tokens count no more, at most 1.55 windows. Otherwise it is at most the window, also where
	// Reset is later: by less than a millisecond, if the window is not in whole seconds and
	// its end is rounded up, and by up to a second, if clocks differ.
	RetryAfter time.Duration

	of      *key.Key // whose account was charged; nil = none was
	charged int64    // tokens, to the window that ends at Reset
	gen     int64    // the generation of that window
	bucket  int64    // of a rolling limit, under whose lease it was charged
}

// resultOf is the Result of k for an answer.
func resultOf(k *key.Key, a *key.Answer) Result {
	r := Result{
		Allowed: a.Allowed, Source: Source(a.Source), Shadowed: a.Shadowed, Limit: a.Limit, Window: a.Window, Remaining: a.Remaining,
		Reset: a.Reset, RetryAfter: a.RetryAfter, charged: a.Charged,
	}
	if a.Charged > 0 {
		r.of, r.gen, r.bucket = k, a.Of.Gen, a.Bucket
	}
	return r
}

// charge is what r was charged.
func (r *Result) charge() key.Charge {
	return key.Charge{Charge: tokens.Charge{Tokens: r.charged, Window: r.window(), Bucket: r.bucket}, Fallback: r.Source == Fallback}
}

// window is the window that r was charged to.
func (r *Result) window() backend.Window { return backend.Window{End: r.Reset.UnixMilli(), Gen: r.gen} }

// Source is where a decision came from.
type Source uint8

const (
	// Local: from memory: admitted from stock, or refused because the window is exhausted or
	// the key is blocked. No call, no wait.
	Local Source = iota
	// Fetched: the caller waited for a fetch that it shared with others.
	Fetched
	// Direct: by a call to the store that asked for exactly what its callers needed, and brought no stock:
	// with [WithDirect], for a request larger than a batch may be, and for a key past [WithMaxKeys]. Callers in line
	// share such a call, except those of keys past WithMaxKeys.
	Direct
	// Fallback: by the failure policy, because the store is away.
	Fallback
)

// Package key has the same sources in the same order.
var _ = [1]struct{}{}[Fallback-Source(key.Fallback)]

// String returns the name of s in lower case.
func (s Source) String() string {
	names := [...]string{"local", "fetched", "direct", "fallback"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Limit is how many tokens all processes together may spend of a key in a window. Most limits are
// made by [PerSecond], [PerMinute], [PerHour], [PerDay], [PerWeek] and [PerMonth]; for a window of
// another length, write Limit{Tokens: 10, Window: 15 * time.Second}. [Block] refuses every request, and
// [Unlimited] admits every request.
//
// A window is fixed: it opens at its key's first charge and ends Window later or, if Window is whole
// seconds, at a whole second, rounded down: the first window of PerSecond(10) may be almost a second
// shorter than that, and then twice Tokens may pass in milliseconds. In any case they may pass in an
// interval that straddles a reset, by the nature of fixed windows; see [Limit.Rolling]. A limit by
// the calendar ends its windows with the day, week or month.
//
// The zero Limit is no limit, as a map of plans returns for a name that it lacks. For it, and for a limit out of
// range, [New] returns [ErrLimit], and so do calls if [WithLimits] returns it.
type Limit struct {
	Tokens int64         // 1 to 2^53-1
	Window time.Duration // whole milliseconds, 1 ms to 366 days

	// Calendar ends windows with the day, week or month; Window is about the length of one.
	// [PerDay], [PerWeek] and [PerMonth] set it. The zero Calendar is none.
	Calendar backend.Calendar

	// Shadow lets refused requests pass, so that a limit can be tried out. Their [Result] is Allowed
	// and Shadowed, nothing is charged for them, nobody waits, and [Stats] counts them. Admitted
	// requests are charged as always. Errors stay errors; use [WithFailOpen] to let requests pass in
	// an outage too.
	Shadow bool

	// Rolls says that the limit holds in every interval of the length Window, and not only in
	// windows that follow each other. [Limit.Rolling] sets it.
	Rolls bool
}

// Rolling returns the limit as a rolling one: at no time are more than Tokens spent in any
// interval of the length Window, over all processes, while the store keeps its data, less what
// its clock jumps ahead. Time is cut into buckets of a twentieth of Window, and what is spent in
// a bucket counts until Window has passed since its end. So in overload 5 to 6 % of
// the limit stay unused. Window is at least 20 ms. A rolling limit counts apart
// from a fixed one of the same key, so if a limit changes its kind, both may be used up once. It has no calendar.
func (l Limit) Rolling() Limit {
	l.Rolls = true
	return l
}

// Block refuses every request, without a store call. Its [Result] has no Reset and no RetryAfter,
// because no waiting helps. A Wait lasts until [WithLimits] returns another limit.
func Block() Limit { return Limit{Tokens: key.BlockTokens} }

// Unlimited admits every request, without a store call. [Stats] does not count such
// requests.
func Unlimited() Limit { return Limit{Tokens: key.UnlimitedTokens} }

// PerSecond is a limit of tokens in each second.
func PerSecond(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Second} }

// PerMinute is a limit of tokens in each minute.
func PerMinute(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Minute} }

// PerHour is a limit of tokens in each hour.
func PerHour(tokens int64) Limit { return Limit{Tokens: tokens, Window: time.Hour} }

// PerDay is a limit of tokens in each day of a time zone, from midnight to midnight. A
// day on which clocks change is shorter or longer than 24 hours. A nil zone is UTC. A zone that means
// another one in another process, as [time.Local], or has no name of its own is an [ErrLimit]: it names the
// count in the store.
//
// The store's clock decides which day it is, as for [PerWeek] and [PerMonth].
func PerDay(tokens int64, zone *time.Location) Limit {
	return perPeriod(tokens, 24*time.Hour, backend.Day, zone)
}

// PerWeek is a limit of tokens in each week of a time zone, which begins at midnight on
// Monday. A nil zone is UTC.
func PerWeek(tokens int64, zone *time.Location) Limit {
	return perPeriod(tokens, 7*24*time.Hour, backend.Week, zone)
}

// PerMonth is a limit of tokens in each month of a time zone, which begins at midnight on
// the first. A nil zone is UTC.
func PerMonth(tokens int64, zone *time.Location) Limit {
	return perPeriod(tokens, 31*24*time.Hour, backend.Month, zone)
}

func perPeriod(tokens int64, about time.Duration, p backend.Period, zone *time.Location) Limit {
	return Limit{Tokens: tokens, Window: about, Calendar: backend.Calendar{Period: p, Zone: zone}}
}

// Limit returns the limit that the key has now, for the window that is open now. It is the one place that asks WithLimits' function.
// If that has returned a block, it tells the key's state at once.
func (c caller) Limit(name string) (backend.Limit, error) {
	if c.l.limits == nil { // New has validated it
		return backend.Limit(c.l.limit).At(time.Now()), nil
	}
	limit := c.l.limits(name)
	if err := limit.validate(); err != nil {
		return backend.Limit{}, err
	}
	if limit.Tokens == key.BlockTokens {
		if k := c.l.env.Find(name); k != nil {
			k.Relimit(backend.Limit(limit), key.Told, nil)
		}
	}
	return backend.Limit(limit).At(time.Now()), nil
}

// validate accepts special limits too.
func (l Limit) validate() error {
	switch {
	case l.Tokens == key.BlockTokens || l.Tokens == key.UnlimitedTokens:
		return nil
	case l.Tokens == 0 && l.Window == 0:
		return fmt.Errorf("%w: no limit for this key (Block() refuses every request)", ErrLimit)
	case l.Tokens == 0:
		return fmt.Errorf("%w: 0 tokens, want 1 to 2^53-1 (Block() refuses every request)", ErrLimit)
	}
	return backend.Limit(l).Validate()
}

// specialAnswer answers a request under a limit that no store counts.
func specialAnswer(limit backend.Limit) (r Result, special bool) {
	a, special := key.AnswerSpecial(limit)
	return resultOf(nil, &a), special
}

// Errors of a call. An error means that no decision was made; a refusal is a [Result]. No
// error text contains a key.
var (
	// ErrClosed: the Limiter was closed.
	ErrClosed = key.ErrClosed

	// ErrExceedsLimit: the request asks for more tokens than the limit has. Waiting would
	// not help, so there is no RetryAfter.
	ErrExceedsLimit = key.ErrExceedsLimit

	// ErrDeadline: a Wait could not be served before its context's deadline.
	// It is returned at once, not at the deadline, and wraps
	// context.DeadlineExceeded.
	ErrDeadline = key.ErrDeadline

	// ErrMaxWaiting: as many callers as [WithMaxWaiting] says wait for the key already.
	ErrMaxWaiting = key.ErrMaxWaiting

	// ErrKey: the key is empty or longer than backend.MaxKeyLen.
	ErrKey = backend.ErrKey

	// ErrLimit: a Limit is out of range, or the zero Limit.
	ErrLimit = backend.ErrLimit

	// ErrOption: an option of New has a value that makes no sense.
	ErrOption = errors.New("reservoir: bad option")
)

// errResult: a Result was settled at another Limiter than its own, or was never charged.
var errResult = errors.New("reservoir: a result of another limiter, or of no charge")

// StoreError says why a call to the store failed, when no decision was made for want of the store. Its
// fields:
//
//   - Op is the operation, such as "sync", "check" or "reset".
//   - Class is [backend.Unavailable]: the call was not carried out, and the store may answer soon;
//     [backend.Rejected]: it was not carried out, and fails until an operator mends a
//     password, a right or memory; or [backend.Unknown]: it may have been carried out.
//   - Err is the cause, from the transport or the server. Unwrap returns it.
//   - KeyOnly says that only this key is concerned, and not its shard.
//
// Find it with [errors.AsType] or [errors.As]. A request that got one may be
// tried again; after Unknown of a key past [WithMaxKeys] it may then be charged twice, and a Reset may have happened.
// Its text holds no key, password or URL.
type StoreError = backend.Error

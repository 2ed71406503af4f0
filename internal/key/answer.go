package key

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Ask is what a request asks for.
type Ask struct {
	N     int64 // tokens, at least 1
	Stays bool  // it waits for tokens of windows to come, instead of being refused
	Some  bool  // if there are fewer than N, it takes those
}

// under is the request under the limit. In shadow all of it passes, and nobody waits.
func (q Ask) under(l *backend.Limit) Ask {
	if l.Shadow {
		q.Stays, q.Some = false, false
	}
	if q.Some {
		q.N = min(q.N, l.Tokens)
	}
	return q
}

// Answer is the answer to one request; its fields are those of the limiter's Result.
type Answer struct {
	Allowed    bool
	Shadowed   bool // the limit would have refused the request, which passes
	Source     Source
	Limit      int64
	Window     time.Duration // the window's length
	Remaining  int64
	Of         backend.Window // whose end Reset is
	Bucket     int64          // of a rolling limit, under whose lease it was charged
	Reset      time.Time
	RetryAfter time.Duration
	Charged    int64 // tokens, to the window Of
}

// Source is where a decision came from.
type Source uint8

const (
	Local    Source = iota // from memory
	Fetched                // from a fetch that the caller shared with others
	Direct                 // by a call that asked for exactly what its callers needed
	Fallback               // by the failure policy
)

// Verdict is the end of one step of a request: an Answer or an Err, or what to do Next.
type Verdict struct {
	Answer Answer
	Err    error
	Next   Next
}

// Next is what is left to do for a request.
type Next uint8

const (
	Nothing   Next = iota // the verdict has the answer
	Call                  // make a call without an account
	StartOver             // the key was forgotten or has left its counter meanwhile, or its limit is in shadow now
	askLimit              // ask for the limit before a decision
	wait                  // wait in line
)

// Errors of a request. The limiter exports them.
var (
	ErrClosed       = errors.New("reservoir: limiter closed")
	ErrExceedsLimit = errors.New("reservoir: more tokens than the limit")
	ErrMaxWaiting   = errors.New("reservoir: too many callers wait for this key")
	ErrDeadline     = fmt.Errorf("reservoir: no tokens before the %w", context.DeadlineExceeded)
)

// The causes of a backend.Error that no store returns.
var (
	errOpen    = errors.New("the circuit is open") // joined with the cause of the failure that opened it
	ErrTooSlow = errors.New("replies take longer than the window")
	errAstray  = errors.New("the store's clock and the calendar's period do not agree")
	errRepeats = errors.New("the network repeats each call, and brings the second reply")
)

// MaxAstray is how many statements in a row may name another period of the calendar than the store's.
const MaxAstray = 3

// ErrorAstray is the error of the last of these.
func ErrorAstray() error {
	return &backend.Error{Op: "sync", Class: backend.Unavailable, KeyOnly: true, Err: errAstray}
}

// Outage reports whether err is a failure of the store that may be over soon.
func Outage(err error) bool {
	failure, ok := errors.AsType[*backend.Error](err)
	return ok && failure.Class != backend.Rejected
}

// RetryAfter is what a Result says about a window of that length whose end is left away.
func RetryAfter(left, length time.Duration) time.Duration { return min(max(left, 1), length) }

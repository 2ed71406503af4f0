package reservoir

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-reservoir/reservoir/backend"
)

// Errors of a call. An error means that no decision was made; a refusal is a
// Result. None of them repeats a key.
var (
	// ErrClosed: the Limiter was closed.
	ErrClosed = errors.New("reservoir: limiter closed")

	// ErrExceedsLimit: more tokens than the limit has were asked for at once.
	// No waiting would help, so there is no RetryAfter.
	ErrExceedsLimit = errors.New("reservoir: more tokens than the limit")

	// ErrDeadline: a Wait could not be served before its context's deadline.
	// It is returned at once, not at the deadline, and wraps
	// context.DeadlineExceeded.
	ErrDeadline = fmt.Errorf("reservoir: no tokens before the %w", context.DeadlineExceeded)

	// ErrKey: the key is empty or longer than backend.MaxKeyLen.
	ErrKey = backend.ErrKey

	// ErrLimit: a Limit is out of range.
	ErrLimit = backend.ErrLimit

	// ErrTokens: the number of tokens is less than one.
	ErrTokens = backend.ErrTokens

	// ErrOption: an option of New has a value that makes no sense.
	ErrOption = errors.New("reservoir: bad option")
)

// StoreError is the failure of a call to the store; Class says whether it may
// have been carried out. Use errors.As to find it.
type StoreError = backend.Error

// errNoAnswer is the cause of a StoreError when a caller has waited as long for
// a fetch as WithFetchTimeout allows.
var errNoAnswer = errors.New("no answer within the fetch timeout")

// errTooSlow is the cause when grants keep arriving after their window's end.
var errTooSlow = errors.New("replies take longer than the window")

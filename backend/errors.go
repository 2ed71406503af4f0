package backend

import "fmt"

// Class says whether a failed call may have been carried out, so whether to repeat it.
type Class uint8

const (
	// Unknown: the call may have been carried out. A client with an account makes a new
	// statement; a statement without a client, and Reset, may not be repeated.
	Unknown Class = iota
	// Unavailable: surely not carried out; the store may answer soon.
	Unavailable
	// Rejected: surely not carried out. Repetitions fail too, until somebody changes
	// the store, its rights or its contents.
	Rejected
)

// String returns the class in a few words.
func (c Class) String() string {
	switch c {
	case Unavailable:
		return "unavailable"
	case Rejected:
		return "rejected"
	default:
		return "outcome unknown"
	}
}

// Error is the failure of one call to a store, which made no decision. Its text
// holds no key, password or URL.
type Error struct {
	Op    string // "sync", "check", "reset", "listen" or "publish", for example
	Class Class
	Err   error // from the transport or the server

	// KeyOnly says that the failure concerns only this key or its slot, such as a value
	// of another type or a slot that moves, and not the other keys of the shard. Such
	// an error never opens a shard's circuit breaker.
	KeyOnly bool
}

// Error names the operation, the class and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("reservoir: %s: store %v: %v", e.Op, e.Class, e.Err)
}

// Unwrap returns the cause, so that errors.Is finds context.DeadlineExceeded.
func (e *Error) Unwrap() error { return e.Err }

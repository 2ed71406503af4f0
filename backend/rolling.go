package backend

import "time"

// A store keeps a rolling limit in slices, of which a window has [Slices]. It counts every
// token in the slice in which it is spent or, until it knows that, in the last one in which it
// may be spent, until a window has passed since that slice's end. So at any time all tokens
// that were spent in the last window are counted.
//
// State.Window of a reply is the time at which its tokens count no more: a window after the end
// of the slice up to which they may be spent. So that slice ends when Left less the window's
// length has passed, and from then on the client spends none of them until it has stated its
// account. The reply carries unused ones over to a later slice ([SyncReply].Carried), and takes
// for spent in earlier slices what the statement says. The totals of an account go on over any number of slices, until
// the client was silent for a window; then another account begins.
//
// A Take counts in the slice that ends at least TakeRequest.Within from then, but at most a quarter
// of the window; a reply that comes later than the slice's end must not be used.
const (
	Slices = 20
	Ahead  = 7 // slices after the present one up to which a statement's tokens may be spent

	// Refundable is how many slices before the last in which a token may be spent it may have
	// been spent.
	Refundable = Ahead + 1
)

// Spent says that so many tokens of the account were spent by the end of a slice, in all. The
// slice may be a later one than the true one.
type Spent struct{ Slice, Tokens int64 }

// MaxSpent is how many of these a statement may have.
const MaxSpent = Slices + 1

// Slice returns the number of the slice of that window in which an instant of the store's clock,
// in Unix microseconds, lies.
func Slice(at int64, window time.Duration) int64 { return at / unit(window) }

// SliceEnd returns the window of tokens that may be spent up to the end of a slice.
func SliceEnd(slice int64, window time.Duration) Window {
	return Window(((slice+1)*unit(window) + window.Microseconds()) / 1000)
}

// SliceOf returns the slice of SliceEnd.
func SliceOf(w Window, window time.Duration) int64 {
	u := unit(window)
	return (int64(w)*1000-window.Microseconds()+u-1)/u - 1
}

// unit is the length of a slice in microseconds.
func unit(window time.Duration) int64 { return window.Microseconds() / Slices }

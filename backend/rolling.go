package backend

import (
	"context"
	"time"
)

// A store keeps a rolling limit in slices, of which a window has [Slices]. It counts every
// token in the slice in which it is spent or, until it knows that, in the last one in which it
// may be spent, until a window has passed since that slice's end. So at any time all tokens
// that were spent in the last window are counted.
//
// The End of State.Window of a reply is the time at which its tokens count no more: a window after the end
// of the slice up to which they may be spent. So that slice ends when Left less the window's
// length has passed, and from then on the client spends none of them until it has stated its
// account. The reply carries unused ones over to a later slice ([SyncReply].Carried), and takes
// for spent in earlier slices what the statement says. The totals of an account go on over any number of slices, until
// the client was silent for a window; then another account begins.
//
// A TakeRolling counts in the slice that ends at least TakeRequest.Within from then, but at most a quarter
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

// BucketEnd returns when a bucket ends, by the store's clock in Unix microseconds: tokens that are charged in it may be spent
// before. The bucket of an instant is its Slice.
func BucketEnd(bucket int64, window time.Duration) int64 { return (bucket + 1) * unit(window) }

// SliceEnd returns the window of tokens that may be spent up to the end of a slice.
func SliceEnd(slice int64, window time.Duration) Window {
	return Window{End: ((slice+1)*unit(window) + window.Microseconds()) / 1000}
}

// SliceOf returns the slice of SliceEnd.
func SliceOf(w Window, window time.Duration) int64 {
	u := unit(window)
	return (w.End*1000-window.Microseconds()+u-1)/u - 1
}

// unit is the length of a slice in microseconds.
func unit(window time.Duration) int64 { return window.Microseconds() / Slices }

// RollingStore is the part of a [Store] that charges and returns tokens of rolling limits.
type RollingStore interface {
	// SyncRolling states a client's account with a key and asks for more tokens. It is
	// idempotent: a statement that is repeated, duplicated or delayed charges
	// nothing twice and loses nothing.
	SyncRolling(ctx context.Context, r SyncRequest) (SyncReply, error)

	// TakeRolling charges exactly Tokens, or nothing. The store never sends it twice. An
	// Error of class Unknown means that the tokens may have been charged.
	TakeRolling(ctx context.Context, r TakeRequest) (TakeReply, error)

	// SettleRolling corrects what TakeRolling has charged: it charges more, even above the
	// limit, or gives tokens back, but never takes the count below zero. The store never sends it twice.
	SettleRolling(ctx context.Context, r SettleRequest) (SettleReply, error)
}

// SyncRequest is one client's statement of account with one key that has a rolling limit.
//
// Granted, Returned and Debt are cumulative within the account and never shrink. They count
// the tokens that the client believes it was granted, the tokens that it has given back,
// and the tokens that it used without a grant. Because a statement carries totals
// instead of changes, it may reach the store any number of times.
type SyncRequest struct {
	Key    string
	Client string // names one ledger entry; never reused for another account of the same key
	Limit  Limit

	Window   Window // of the last reply; zero if the client has none
	Granted  int64
	Returned int64 // at most Granted + Debt
	Debt     int64 // used without a grant, in an outage for example; charged even above the limit

	Want  int64 // tokens asked for; 0 only states the account
	Need  int64 // the part of Want that callers are waiting for
	Least int64 // the part of Need for the first of these callers; a store that has less grants nothing new

	Leaving bool  // see Hints
	Exact   bool  // see Hints
	Idle    int64 // as in Hints; -1 = it gets no messages
	Waited  bool  // see Hints
	Peers   int64 // the number of clients in the last reply; 0 if unknown
	Pace    int64 // see Hints

	// Total is SyncReply.Total of the last reply, and Used the number of
	// tokens that were charged at that time, less those that this statement is the first
	// to return. Both are 0 if unknown. A store with a smaller Total has lost data.
	Total int64
	Used  int64

	Account    int64   // that the totals are about, by the last reply; 0 = the client has none
	Spent      []Spent // what requests have used of Granted, by slices in ascending order; at most MaxSpent
	Refunded   int64   // the part of Spent that requests gave back, cumulative
	RefundedIn Window  // the earliest in which a part of Refunded was charged that no reply has confirmed

	Detached bool // see Statement
}

// SyncReply is the store's side of the account after a SyncRolling.
type SyncReply struct {
	State
	Grant      int64 // tokens to add to the stock now: Recovered and newly charged ones
	Recovered  int64 // the part of Grant that an earlier, lost reply had already granted
	Granted    int64 // the client's total, Grant included
	Returned   int64 // the client's total given back
	Debt       int64 // the client's total used without a grant
	Over       int64 // tokens charged above the limit, by debt
	Clients    int64 // that share the key and have not left, this one included
	Reasserted int64 // tokens of this statement that the store had lost and has charged again
	Carried    bool  // tokens that the client held in another slice now belong to Window
	Total      int64 // granted to all clients and returned by them, cumulative
	Learning   bool  // the store has recently lost data, and grants little more than is needed
	Idle       int64 // see Reply
	Called     int64 // see Reply

	// Account names what the totals are about. If it is another
	// one than the statement's, what the client holds counts no more.
	Account int64
}

// TakeRequest asks for Tokens of a rolling limit, all or none.
type TakeRequest struct {
	Key    string
	Limit  Limit
	Tokens int64         // 1 to Limit.Tokens
	Within time.Duration // how long the call may take, by which its Window is chosen; see [Slices]

	Detached bool // see Statement
}

// TakeReply is the decision and the reading that it was based on.
type TakeReply struct {
	State
	Allowed bool

	// Idle and Called are the part of a refusal that may not last: tokens lie idle in
	// clients, which a statement that needs some calls back, and clients were called and have
	// not answered yet.
	Idle, Called bool
}

// SettleRequest corrects what a TakeRolling was charged in Window.
type SettleRequest struct {
	Key    string
	Limit  Limit
	Window Window
	Tokens int64 // to charge or, if negative, to give back; -MaxTokens to MaxTokens, not 0
}

// SettleReply says whether the tokens were charged or given back.
type SettleReply struct {
	Open bool  // the window still counts; otherwise nothing was done
	Over int64 // tokens that are charged above the limit now
}

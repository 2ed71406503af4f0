// Package backend is the contract between the limiter and the place where
// limits are counted: the Store interface, the statements a client makes to it,
// its replies and its errors.
//
// A store counts tokens per key in fixed windows. A window opens at the first
// charge of its key, ends at an instant that the store writes down once, and is
// closed when that instant lies before the store's own clock. Whatever clients
// do (retry, repeat, send late, die), the tokens that a store has granted in one
// window never exceed the limit while it keeps its data.
//
// Implementations: memstore (in process), redisstore (Redis, Sentinel, Cluster),
// memcachestore (memcached), and decorators such as the sharding package. They all pass the suite in
// backendtest, to which a store from elsewhere can be held as well.
package backend

import (
	"context"
	"time"
)

// Store is an exact fixed-window counter per key, with a ledger of what each
// client was granted.
//
// All methods are safe for concurrent use. Each returns soon after its context
// ends, whatever the transport below is doing, and does not run after the
// context's deadline something that it had only queued. Requests are checked
// before anything is sent: a faulty one yields an error that wraps ErrKey,
// ErrLimit or ErrTokens. Every other failure is an *Error, which says whether
// the call may have been carried out.
type Store interface {
	// Sync states a client's account with a key and asks for more. It is
	// idempotent: to repeat, duplicate or delay a statement charges nothing
	// twice and loses nothing.
	Sync(ctx context.Context, r SyncRequest) (SyncReply, error)

	// Take charges exactly Tokens, or nothing. It is never sent twice; an
	// Error of class Unknown means that the tokens may be charged and are lost
	// until the window ends.
	Take(ctx context.Context, r TakeRequest) (TakeReply, error)

	// Check reads and charges nothing. It may be answered by a replica, and so
	// lag behind the other methods.
	Check(ctx context.Context, key string, limit Limit) (State, error)

	// Refund gives back tokens that Take charged to the window. Because the request
	// carries a total, it is idempotent: the store gives back what r.Total has more
	// than it knows of, so a repetition gives back nothing. It does nothing when that
	// window has closed, and never takes the count below zero. It returns the total
	// that the store now knows of as given back by the client; 0 if the window has closed.
	Refund(ctx context.Context, r RefundRequest) (total int64, err error)

	// Reset replaces the key's open window by a fresh one, of which nothing is charged.
	// From then on the old window is void, whatever clients say of it: nothing held or
	// owed in it is charged to the new window, and it is no sign of lost data. Tokens that
	// clients hold in memory may be spent until their next statement. The new window ends
	// where one that opens now would end or, if that is where the old one ends, a
	// millisecond before: an end is a window's name, and names differ. The window that
	// opens in that millisecond ends a length later: by a calendar, with the next period.
	//
	// If no window is open, Reset changes nothing and State.Window is 0. It is never sent
	// twice; an Error of class Unknown means that the window may be a fresh one. A store
	// that loses its data may forget that the old window is void.
	Reset(ctx context.Context, r ResetRequest) (State, error)
}

// Window is the end of a window in Unix milliseconds, as the store wrote it
// down. It names the window: two replies with equal Windows speak of the same
// one. Zero is no window.
type Window int64

// Time returns the instant at which w ends, or the zero time for no window.
func (w Window) Time() time.Time {
	if w == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(w))
}

// State is what one reading of a key said. Decision, Remaining and Window of a
// reply always come from the same reading.
//
// A window belongs to limits of one length. Where a request comes with another
// one, Length is that of the open window and the call has changed nothing: it
// neither charges nor grants, and never moves the window's end. The reply to a
// statement then repeats its totals, for one client. Window is 0 if none is open and the
// calendar's next period has that length.
type State struct {
	Window    Window        // the open window; 0 if none is open
	Left      time.Duration // until Window ends, by the store's clock, at the moment of reading
	Remaining int64         // tokens that are not charged to anybody
	Length    time.Duration // of the open window's limit if the request has another length; else 0
}

// SyncRequest is one client's statement of account with one key.
//
// Granted, Returned and Debt are cumulative within Window and never shrink: the
// tokens that the client believes it was granted, those of them that it has given
// back, and those that were used without a grant. Because the statement carries
// totals instead of changes, the store can hear it any number of times.
type SyncRequest struct {
	Key    string
	Client string // names one ledger entry; never reused for another account of the same key
	Limit  Limit

	Window   Window // what Granted and Returned refer to; 0 if the client knows no window
	Granted  int64
	Returned int64 // at most Granted + Debt
	Debt     int64 // used without a grant, in an outage for example; charged even above the limit

	Want  int64 // tokens it would like; 0 only states the account
	Need  int64 // how many of Want callers are waiting for; at most Want
	Least int64 // how many the first of these needs at once; at most Need. A store that has less grants nothing new

	// End is where a window that this statement opens ends, for limits by the
	// calendar; 0 is one length from now. It is at most a length away. Where the client's
	// clock is behind or ahead, so that End is over or further away by the store's clock,
	// the window ends some lengths later or earlier: at the end that is due.
	// Next is where the one after it ends: where End is over when the call arrives, and the
	// periods have not the same length, the reply says so by State.Length.
	End, Next Window

	// Leaving says that the client will not ask again soon: it does not count in
	// Clients until it does.
	Leaving bool

	// Strand is how many tokens of the limit may lie unspent in all clients
	// together. It guides the grant: large while the window is full, smaller
	// as it runs out, in proportion to who has been using it. A negative
	// Strand asks for Want as it is, up to what remains.
	Strand int64

	// Peers is how many clients shared the key when it was last heard of, which
	// at the beginning of a window the ledger does not know yet; 0 if unknown.
	Peers int64

	// Pace is how many tokens the client would use in a whole window at the pace
	// of late: who has only begun to need many has no history to show for it.
	Pace int64

	// Total is that of the last reply about Window that the client has heard, and
	// Used how many tokens were charged then: a store that has a smaller Total has
	// lost data, and learns from any one client what all others had been granted.
	// 0 if unknown.
	Total int64
	Used  int64
}

// SyncReply is the store's side of the account after a Sync.
type SyncReply struct {
	State
	Grant      int64         // tokens to add to the stock now: Recovered and those newly charged
	Recovered  int64         // the part of Grant that an earlier, unheard reply had granted already
	Granted    int64         // the client's total in Window, Grant included
	Returned   int64         // the client's total given back in Window
	Debt       int64         // the client's total used without a grant in Window
	Over       int64         // tokens charged above the limit, by debt
	Clients    int64         // clients that share the key in Window and have not left, this one included
	Reasserted int64         // tokens of this statement that the store had forgotten and has charged again
	Lasted     time.Duration // from Window's beginning until the limit was first used up; 0 if it is not
	Carried    bool          // what the client held in another window that still runs now belongs to Window
	Total      int64         // granted in Window to all clients and returned by them, cumulative; it never shrinks while the store keeps its data
	Learning   bool          // the store has lost data of late and grants only what is needed
}

// TakeRequest asks for Tokens, all or none.
type TakeRequest struct {
	Key    string
	Limit  Limit
	End    Window // where a window that this call opens ends, and Next the one after it; see SyncRequest
	Next   Window
	Tokens int64
}

// TakeReply is the decision and the reading it was made from.
type TakeReply struct {
	State
	Allowed bool
}

// RefundRequest gives back to Window what direct calls were charged. It is
// cumulative, like a statement of account.
type RefundRequest struct {
	Key    string
	Client string // whose direct charges go back; names a ledger entry
	Window Window
	Total  int64 // tokens that Client has given back to Window by Refund in all, this call included
}

// ResetRequest asks for a fresh window. If the open window has another length than
// Limit's, nothing changes; see State.
type ResetRequest struct {
	Key   string
	Limit Limit
	End   Window // where the new window ends, by a calendar, and Next the one after it; see SyncRequest
	Next  Window
}

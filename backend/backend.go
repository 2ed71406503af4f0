// Package backend is the contract between the limiter and its store: the [Store]
// interface, a client's requests, the store's replies, and the errors.
//
// A store counts tokens per key in fixed windows. A window opens at the first
// charge of its key and ends at an instant that the store records once. It is over
// when the store's clock has passed that instant. As long as the store keeps its data,
// the tokens that it grants in one window never exceed the limit, even if clients
// retry, repeat a statement, send it late, or die.
//
// A limiter may hold tokens that it does not use. The ledger knows about how many: for each
// client what it stated as Idle, and what was granted beyond its Need since. If the key has too
// few tokens for a statement, while others hold some idle, the store calls them: a [Listener]
// sends them messages, they return what they do not need, and the client asks again. For
// tokens that no request waits for, the store calls only if more than a hundredth of the limit
// is idle, or if it has called before in the window. The first
// client that finds neither tokens nor anybody to call makes the store tell all others that
// the limit is used up.
//
// Package memstore is a store in the process, redisstore one in Redis, Sentinel or Cluster,
// and sharding spreads keys over several stores. All pass the suite in backendtest, which
// can test other stores as well.
package backend

import (
	"context"
	"time"
)

// Store is an exact fixed-window counter per key, with a ledger of what each
// client was granted.
//
// All methods are safe for concurrent use. Each returns soon after its context ends, even
// if the connection does not react to that; only a Detached request may take longer. A
// call that is still queued at its context's deadline is never made. Requests are checked
// before anything is sent, and the error about a faulty one wraps [ErrKey], [ErrLimit] or
// [ErrTokens]. Every other failure is an *[Error], which says whether the call may have
// been carried out.
type Store interface {
	// Sync states a client's account with a key and asks for more tokens. It is
	// idempotent: a statement that is repeated, duplicated or delayed charges
	// nothing twice and loses nothing.
	Sync(ctx context.Context, r SyncRequest) (SyncReply, error)

	// Take charges exactly Tokens, or nothing. The store never sends it twice. An
	// Error of class Unknown means that the tokens may have been charged; if so,
	// nobody can use them until the window ends.
	Take(ctx context.Context, r TakeRequest) (TakeReply, error)

	// Check reads and charges nothing. A replica may answer it, so its reply may
	// lag behind the other methods.
	Check(ctx context.Context, key string, limit Limit) (State, error)

	// Settle corrects what Take has charged to a window: it charges more, even above the
	// limit, or gives tokens back, but never takes the count below zero. It does nothing if
	// that window is not open. The store never sends it twice. An Error of class Unknown
	// means that it may have been carried out.
	Settle(ctx context.Context, r SettleRequest) (SettleReply, error)

	// Reset replaces the key's open window by a fresh one, in which nothing is charged.
	// From then on the old window is void: tokens or debt that clients still state for it
	// are not charged to the new window and are no sign of lost data. Clients may spend
	// the tokens that they hold in memory until their next statement.
	//
	// The new window ends when any window that opens now would end. If the old window has
	// the same end, the new one ends a millisecond earlier, because the end is also the
	// window's name. A window that opens in that millisecond ends one length later or, by
	// a calendar, with the next period.
	//
	// If no window is open, Reset changes nothing and State.Window is 0. The store never
	// sends it twice; an Error of class Unknown means that the reset may have happened. A
	// store that loses its data may forget that the old window is void.
	Reset(ctx context.Context, r ResetRequest) (State, error)
}

// Window is the end of a window in Unix milliseconds, as the store recorded it. The
// end is also the window's name: equal values mean the same window of a key. Zero
// means no window.
type Window int64

// Time returns the instant at which w ends, or the zero time for no window.
func (w Window) Time() time.Time {
	if w == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(w))
}

// State is one reading of a key. The decision, Remaining and Window of a reply always
// come from the same reading.
//
// A window keeps the length with which it was opened. If the request's Limit has another
// length, Length is that of the window. The window is served all the same if Length is the
// request's OpenLength or, by a calendar, the length of the next period. Otherwise Conflict
// is set and the call has changed nothing: it neither charged nor granted, and did not move
// the window's end. The reply to a statement then repeats the statement's totals.
type State struct {
	Window    Window        // the open window; 0 if none is open
	Left      time.Duration // until Window ends, by the store's clock, at the moment of reading
	Remaining int64         // tokens that are not charged to anybody
	Length    time.Duration // of the open window, if the request's Limit has another; else 0
	Conflict  bool          // the call has changed nothing, because of Length; Check never sets it

	// Frees is, if Remaining of a rolling limit is less than was asked for, the time until
	// enough of what counts now counts no more.
	Frees time.Duration
}

// SyncRequest is one client's statement of account with one key.
//
// Granted, Returned and Debt are cumulative within Window and never shrink. They count
// the tokens that the client believes it was granted, the tokens that it has given back,
// and the tokens that it used without a grant. Because a statement carries totals
// instead of changes, it may reach the store any number of times.
type SyncRequest struct {
	Key    string
	Client string // names one ledger entry; never reused for another account of the same key
	Limit  Limit

	Window   Window // the window of Granted, Returned and Debt; 0 if the client has none
	Granted  int64
	Returned int64 // at most Granted + Debt
	Debt     int64 // used without a grant, in an outage for example; charged even above the limit

	Want  int64 // tokens asked for; 0 only states the account
	Need  int64 // the part of Want that callers are waiting for
	Least int64 // the part of Need for the first of these callers; a store that has less grants nothing new

	// End is the end of a window that this statement opens, for limits by the calendar;
	// 0 means one length from now. It is at most one length away. Next is the end of the
	// window after that one, which opens if End has passed when the call arrives. If by the
	// store's clock both have passed, or End is further away than a length, the client's
	// clock is wrong, and the store moves End by whole lengths.
	End, Next Window

	// OpenLength is the length of Window if the client's limit has another length by now,
	// otherwise 0. A window that opens now has the length of Limit.
	OpenLength time.Duration

	// Leaving says that the client will not ask again soon. SyncReply.Clients does not
	// count it until it asks again.
	Leaving bool

	// Exact asks for Want as it is, or what remains if that is less. Otherwise the store
	// sizes the grant: large while the window is full and smaller as it runs out, in
	// proportion to what each client has used.
	Exact bool

	// Idle is how many tokens of Window the client holds that nobody there waits for; -1 =
	// it gets no messages ([Listener]), so that its idle tokens cannot be recalled. Unless
	// it asks for an Exact grant, it then gets smaller ones, so that about a hundredth of
	// the limit lies idle in all such clients when the limit runs out.
	Idle int64

	// Waited says that the client has given those whom its last reply counts as Called time to
	// answer. The store calls those again that have not, up to three times, because messages may
	// be lost.
	Waited bool

	// Peers is the number of clients in the last reply; 0 if unknown. At the beginning
	// of a window the store's ledger has not yet counted them.
	Peers int64

	// Pace is the number of tokens that the client would use in a whole window at its
	// present rate. It matters for a client whose rate has just risen, because its share
	// of the tokens used so far is small.
	Pace int64

	// Run is how many tokens of Window the client has got in a row, less what others got
	// meanwhile; 0 if it does not ask for more of that window, or since others called its
	// tokens back. A store may grant as much once more even when the limit runs out, because
	// what has lasted mostly lasts as long again (Lindy's law). So a user whose requests go to
	// one process for a while costs few calls. Stores ignore it for a client that gets no
	// messages, and for a rolling limit.
	Run int64

	// Total is SyncReply.Total of the last reply about Window. Used is the number of
	// tokens that were charged at that time, less those that this statement is the first
	// to return. Both are 0 if unknown. A store with a smaller Total has lost data. One
	// client's statement then shows it how much was granted to all clients.
	Total int64
	Used  int64

	// Detached says that the call's context ends only at its deadline, because the caller
	// stops waiting by other means. The store may then return some seconds later than that.
	Detached bool

	// Of statements about a rolling limit; see [Slices].

	Account    int64   // that the totals are about, by the last reply; 0 = the client has none
	Spent      []Spent // what requests have used of Granted, by slices in ascending order; at most MaxSpent
	Refunded   int64   // the part of Spent that requests gave back, cumulative
	RefundedIn Window  // the earliest in which a part of Refunded was charged that no reply has confirmed
}

// SyncReply is the store's side of the account after a Sync.
type SyncReply struct {
	State
	Grant      int64         // tokens to add to the stock now: Recovered and newly charged ones
	Recovered  int64         // the part of Grant that an earlier, lost reply had already granted
	Granted    int64         // the client's total in Window, Grant included
	Returned   int64         // the client's total given back in Window
	Debt       int64         // the client's total used without a grant in Window
	Over       int64         // tokens charged above the limit, by debt
	Clients    int64         // clients that share the key in Window and have not left, this one included; after a Conflict the others, or 1 if these are unknown
	Reasserted int64         // tokens of this statement that the store had lost and has charged again
	Lasted     time.Duration // from Window's beginning until its tokens first ran out; 0 if they have not
	Carried    bool          // tokens that the client held in another window, still open elsewhere, now belong to Window
	Total      int64         // granted in Window to all clients and returned by them, cumulative; it never shrinks while the store keeps its data
	Learning   bool          // the store has recently lost data, and grants little more than is needed

	// Idle is at most how many tokens of Window lie idle in other clients, by their last
	// statements and what they were granted since; 0 if the store may not call them. Called is
	// how many clients were called to return theirs, have not stated since, and were not called
	// in vain four times and for min(T/20, 100 ms). If a statement gets less than it needs and
	// both are 0, the limit is used up, as far as the store can know.
	Idle   int64
	Called int64

	// Account names what the totals are about, if the limit is a rolling one. If it is another
	// one than the statement's, what the client holds counts no more.
	Account int64
}

// TakeRequest asks for Tokens, all or none.
type TakeRequest struct {
	Key    string
	Limit  Limit
	Tokens int64 // 1 to Limit.Tokens

	End, Next  Window        // of windows that this call may open; see SyncRequest
	OpenLength time.Duration // of the window that the client takes for open, if its limit has another length by now; else 0

	Within time.Duration // of a rolling limit: how long the call may take, by which its Window is chosen; see [Slices]

	Detached bool // see SyncRequest
}

// TakeReply is the decision and the reading that it was based on.
type TakeReply struct {
	State
	Allowed bool

	// Idle and Called are the part of a refusal that may not last: tokens lie idle in
	// clients, which a statement that needs some calls back, and clients were called and have
	// not answered yet; see [SyncReply]. A store without a ledger reports neither.
	Idle, Called bool
}

// SettleRequest corrects what direct calls were charged in Window.
type SettleRequest struct {
	Key    string
	Window Window
	Tokens int64 // to charge or, if negative, to give back; -MaxTokens to MaxTokens, not 0
	Limit  int64 // tokens of the key's limit, by which the store computes SettleReply.Over

	Rolling time.Duration // the length of a rolling limit's window; else 0
}

// SettleReply says whether the tokens were charged or given back.
type SettleReply struct {
	Open bool  // the window is open; otherwise nothing was done
	Over int64 // tokens that are charged above the limit now
}

// ResetRequest asks for a fresh window, which has the length of Limit.
type ResetRequest struct {
	Key   string
	Limit Limit

	End, Next  Window        // of the fresh window, by a calendar; see SyncRequest
	OpenLength time.Duration // see TakeRequest
}

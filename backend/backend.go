// Package backend is the contract between the limiter and its store: the [Store]
// interface, a client's statements, the store's replies, and the errors.
//
// A store counts tokens in counters. A [Limit.Counter] of a key has fixed windows of one length, the
// periods of one calendar, or the buckets of a rolling limit. A window opens at the first charge and ends at an instant that the store records once. It is
// over when the store's clock has reached that instant. As long as the store keeps its data,
// the tokens that it grants in one window never exceed the limit of the statement that asks, even if clients
// repeat a statement, send it late, or die.
//
// Each client has an account with a counter, about which it makes numbered statements: it says what the store
// should have charged to it, and the store sets the account to that and grants anew. Only the last
// statement of a client counts, and only its reply. So a grant whose reply was lost is not charged any more after
// the next statement, and no statement can charge or return anything twice.
//
// A limiter may hold tokens that it does not use. The store has an upper bound of these
// for each client: what it stated as Idle, and what was granted beyond its Need since. If a counter has too
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

// Store is an exact counter of fixed windows, with a ledger of what each client was granted.
//
// All methods are safe for concurrent use. Each must return soon after its context ends, even
// if the connection does not react to that, because a limiter has no other way to end a call: if
// one does not return, callers without stock of its key wait until their own contexts end, and so does Close. A
// call that is still queued at its context's deadline is never made. Requests are checked
// before anything is sent, and the error about a faulty one wraps [ErrKey], [ErrLimit] or
// [ErrTokens]. Every other failure is an *[Error], which says whether the call may have
// been carried out.
type Store interface {
	// Sync is the only call that charges and returns tokens. It never sends a statement again that may have
	// been carried out.
	Sync(ctx context.Context, q Statement) (Reply, error)

	// Check reads and charges nothing. A replica may answer it, so its reply may
	// lag behind the other methods.
	Check(ctx context.Context, key string, limit Limit) (State, error)

	// Reset ends the open window of a counter, if there is one, and voids its name in any case: tokens that clients still
	// state for it are never charged again. The next charge opens a window of a new generation. It
	// returns the window that is void now. Clients may spend the tokens that they hold in memory
	// until they hear of it, or until their next statement.
	//
	// The store never sends it twice; an Error of class Unknown means that the reset may have happened. A
	// store that loses its data may forget that the old window is void.
	Reset(ctx context.Context, key string, limit Limit) (Window, error)
}

// Window is the name of a window: its end in Unix milliseconds, as the store recorded it, and its generation. A Reset
// begins a generation, so the windows before and after it differ in name even if they end at one
// instant. Equal values mean the same window of a counter. The zero Window is none.
type Window struct{ End, Gen int64 }

// Time returns the instant at which w ends, or the zero time for no window.
func (w Window) Time() time.Time {
	if w.End == 0 {
		return time.Time{}
	}
	return time.UnixMilli(w.End)
}

// State is one reading of a counter. The decision, Remaining and Window of a reply always
// come from the same reading.
type State struct {
	Window    Window        // the open window; an End of 0 if none is open. That of a rolling limit ends when nothing counts any more
	Left      time.Duration // until Window ends, by the store's clock, at the moment of reading
	Remaining int64         // tokens of the request's limit that are not charged to anybody; 0 while it is held
	Held      time.Duration // for how much longer the counter is held; 0 = it is not

	// Frees is, if Remaining of a rolling limit is less than was asked for, the time until
	// enough of what counts now counts no more.
	Frees time.Duration
}

// Statement says what one client's account with a counter should be, and asks for tokens. A
// statement without a Client has no account: it charges Need, all or none, or else Change, which was
// used above an earlier charge in Window. What is charged without an account never comes back. If both are 0, and Hold is, it does nothing, as a probe.
type Statement struct {
	Key   string
	Limit Limit // one by the calendar also has Begin and End

	Client string // names one limiter in one process
	Life   int64  // of the client's account; each new one has a higher number
	Seq    int64  // of the statement in that life, counting from 1

	Window Window // of Mine, Change and Used; zero if the client has none
	Mine   int64  // tokens charged to the account, as the last reply that the client took says
	Change int64  // tokens used without a grant since, less those given back since
	Used   int64  // tokens charged to everybody at that reply
	Runs   bool   // the client's deadline for Window has not passed

	Want  int64 // tokens asked for; 0 only states the account
	Need  int64 // the part of Want that callers wait for
	Least int64 // the part of Need for the first of them; with less, nothing is granted

	// Begin and End are those of the present period by the calendar, Unix ms, and 0 without one. Unless the
	// store's clock lies between them, it does nothing; see Reply.Astray.
	Begin, End int64

	// Hold says that from now on, by the store's clock, the counter grants nothing for so long, to anybody. It never shortens a
	// hold, so it may be said again. 0 is none; at most [MaxWindow], rounded up to a millisecond. It may stand beside all else, with
	// or without a Client, and opens no window. While the counter is held, none opens, Want and Need count as 0, nobody is called,
	// and what clients state is charged or returned as ever. A window that ends after the hold goes on with its count. A Reset ends a hold.
	Hold time.Duration

	Hints

	Rolling

	// Detached says that the call's context ends only at its deadline, because the caller
	// stops waiting by other means. So the store need not watch for a cancellation.
	Detached bool
}

// Hints are what the size of a grant and the messages depend on. They never decide whether the
// counter is exact.
type Hints struct {
	Exact   bool  // grant Want as it is, or what remains if that is less
	Leaving bool  // the client does not count among Reply.Clients until it asks again
	Deaf    bool  // the client gets no messages, so its idle tokens cannot be called back
	Waited  bool  // it has given those that were called time to answer: they may not have heard
	GaveUp  bool  // it waits for them no longer, and neither does anybody until they state again
	Idle    int64 // tokens of Window that it holds and that nobody there waits for
	Pace    int64 // tokens that it would use in a whole window at its present rate

	// Run is how many tokens of Window it has got in a row, less what others got meanwhile. A store may
	// grant as much once more even when the limit runs out, because what has lasted mostly lasts as long again
	// (Lindy's law). So a user whose requests go to one process for a while costs few calls.
	Run int64
}

// Reply answers a statement. If Void is set, this statement or a later one of the client was here before; if
// Astray is set, the calendar's period is not the present one. In both cases nothing was done, and
// of the other fields only Now is set.
type Reply struct {
	State
	Now          int64 // the store's clock, Unix us
	Void, Astray bool

	Mine  int64 // tokens charged to the account, with Grant
	Grant int64 // tokens charged now, to be spent until Window ends or, of a rolling limit, by Grants
	Used  int64 // tokens charged to everybody; above the limit if more was used than granted

	Clients int64         // that share the window and have not left, this one included
	Lasted  time.Duration // from the window's beginning until the limit was used up; 0 = it is not
	Idle    int64         // tokens idle in others that may be called
	Called  int64         // clients that were called and may still answer

	Grants []Change // of a rolling limit: Grant by bucket, in ascending order
}

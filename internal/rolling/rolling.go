// Package rolling has the rules of one key of a rolling limit in Go: at no time are more than
// L tokens spent in an interval of length T. It follows lua/rolling.lua line by line; a
// differential test in redisstore gives both the same requests.
//
// Time is cut into slices of T/20. A Ring counts tokens in the slice in which they were
// spent, or may be spent at the latest, and a slice counts until T has passed since its end.
// Statements of totals move tokens to earlier slices when they were spent, and to later ones when
// they were not. So each token spent in an interval that ends now still counts now, and the sum
// of what counts is at most L after each grant.
package rolling

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// Ring is one key. The zero Ring was never charged. A copy shares the accounts. A Ring is not
// safe for concurrent use; its replies do not refer to it.
type Ring struct {
	sums
	own map[string]account // by client
}

// sums is what a Ring has besides the accounts.
type sums struct {
	length time.Duration // of the limit's window; 0 = never charged
	last   int64         // the ring's clock at the last step, us
	ahead  int64         // of it before the store's clock, us: the store's has stepped back
	low    int64         // the oldest slice that counts
	sum    int64         // of count
	count  [room]int64   // tokens by slice, modulo room; negative = given back, of later ones
	total  int64         // granted and charged to all, cumulative; it never shrinks
	learn  int64         // the end of the learning time, us: until then grants are small
	void   int64         // accounts that were named until then are void by a Reset, us

	present int64 // accounts of clients that have not left
	idle    int64 // the sum of the accounts'
	out     int64 // clients that were called and have not stated since
	at      int64 // when clients were called last, us
	calls   int64 // how often these were called, the last of them at least
}

// room is a power of two above the slices in use: those that count, and those ahead.
const room = 32

// account is a client's entry, cumulative since its name.
type account struct {
	name                               int64 // when it began, us; no other account of the client has the same
	slice                              int64 // the last in which what is unspent may be spent
	granted, returned, spent, refunded int64
	debt                               int64
	idle                               int64 // it holds at most so many that nobody there waits for
	present                            bool  // it has not left
	called                             bool  // to return what is idle, and has not stated since
}

// unspent is what the client may still spend.
func (a *account) unspent() int64 { return a.granted - a.returned - a.spent }

// Clone returns a copy that shares nothing with r.
func (r *Ring) Clone() Ring {
	next := *r
	next.own = maps.Clone(r.own)
	return next
}

// Open reports whether anything in r matters at now.
func (r *Ring) Open(now int64) bool {
	return r.length != 0 && now+r.ahead < r.over()
}

// over is when all is over that r has charged, by its clock. It is 0 if r was never charged.
func (r *Ring) over() int64 {
	return (r.low + 2*backend.Slices + backend.Refundable + 1) * (r.length.Microseconds() / backend.Slices)
}

// Kept reports whether anything is left of r at now, or of its clock.
func (r *Ring) Kept(now int64) bool { return r.Open(now) || now < r.over() }

func (r *Ring) slot(slice int64) *int64 { return &r.count[slice&(room-1)] }

// add counts n more tokens in a slice, or fewer. What counts no more is not counted. Absurd
// statements cannot make the sum negative, or any number inexact in Lua.
func (r *Ring) add(slice, n int64) {
	if slice >= r.low {
		count := r.slot(slice)
		n = max(min(n, backend.MaxTokens-r.sum, backend.MaxTokens-*count), -r.sum, -backend.MaxTokens-*count)
		*count += n
		r.sum += n
	}
}

// moved enters in the total that n tokens were granted, charged or given back.
func (r *Ring) moved(n int64) { r.total = min(r.total+n, backend.MaxTokens) }

// enter moves r to now, which it returns by its own clock, and the present slice. That clock
// never goes back: if the store's does, tokens of later slices would never count. A ring that begins
// anew keeps it after the last one's, or tokens that count no more, and are given back, would seem to
// be of later slices.
func (r *Ring) enter(now int64, l backend.Limit) (at, present int64) {
	if !r.Open(now) {
		at = max(now, r.over())
		*r = Ring{sums: sums{length: l.Window, last: at, ahead: at - now}}
		r.low = backend.Slice(at, l.Window) - backend.Slices
	}
	at = max(now+r.ahead, r.last)
	r.ahead, r.last = at-now, at
	r.drop(at)
	return at, r.low + backend.Slices
}

// drop forgets what counts no more.
func (r *Ring) drop(at int64) {
	low := backend.Slice(at, r.length) - backend.Slices
	for s := r.low; s < min(low, r.low+room); s++ {
		r.sum = min(max(r.sum-*r.slot(s), 0), backend.MaxTokens)
		*r.slot(s) = 0
	}
	r.low = max(r.low, low)
}

// state is a reading at the ring's time, for a request of need tokens under l, which counts up to
// a slice.
func (r *Ring) state(at, slice int64, l backend.Limit, need int64) backend.State {
	s := backend.State{Window: backend.SliceEnd(slice, r.length), Remaining: max(l.Tokens-r.sum, 0)}
	s.Left = max(time.Duration(s.Window.End*1000-at)*time.Microsecond, 0)
	if lack := need - s.Remaining; lack > 0 {
		s.Frees = r.frees(at, min(r.sum-l.Tokens+need, backend.MaxTokens))
	}
	return s
}

// frees is the time until n tokens that count now do not any more.
func (r *Ring) frees(at, n int64) time.Duration {
	s := r.low
	for ; s < r.low+room-1; s++ {
		if n = min(n-*r.slot(s), backend.MaxTokens); n <= 0 {
			break
		}
	}
	unit := r.length.Microseconds() / backend.Slices
	return time.Duration((s+backend.Slices+1)*unit-at) * time.Microsecond
}

// Take is the step of backend.RollingStore.TakeRolling; the methods below are steps too. The request must be
// valid.
func (r *Ring) Take(q backend.TakeRequest, now int64) backend.TakeReply {
	next := *r
	at, present := next.enter(now, q.Limit)
	slice := backend.Slice(at+min(q.Within, q.Limit.Window/4).Microseconds(), q.Limit.Window)
	if next.sum+q.Tokens > q.Limit.Tokens {
		if next.ahead != r.ahead { // or its clock would stand still until the store's has caught up
			*r = next
		}
		s := next.state(at, present, q.Limit, q.Tokens)
		return backend.TakeReply{State: s, Idle: next.idle > 0, Called: next.waits(at)}
	}
	next.add(slice, q.Tokens)
	next.moved(q.Tokens)
	*r = next
	return backend.TakeReply{State: r.state(at, slice, q.Limit, 0), Allowed: true}
}

// Check changes nothing. Its Window is when all of the limit is free again.
func (r *Ring) Check(l backend.Limit, now int64) backend.State {
	if !r.Open(now) {
		return backend.State{Remaining: l.Tokens}
	}
	next := *r
	at := max(now+r.ahead, r.last)
	next.drop(at)
	if next.sum == 0 {
		return backend.State{Remaining: l.Tokens}
	}
	s := next.low + room - 1
	for s > next.low && *next.slot(s) <= 0 {
		s--
	}
	return next.state(at, s, l, 1)
}

// Settle charges more, in the present slice, or gives back what was spent. A token that may be
// in a slice that counts no more is not given back.
func (r *Ring) Settle(q backend.SettleRequest, now int64) backend.SettleReply {
	if !r.Open(now) {
		return backend.SettleReply{}
	}
	next := *r
	at, present := next.enter(now, q.Limit)
	from := min(backend.SliceOf(q.Window, r.length)-backend.Refundable, present)
	if q.Window.End*1000 < at || q.Tokens < 0 && from < max(next.low, backend.Slice(r.void, r.length)+1) {
		return backend.SettleReply{}
	}
	*r = next
	if q.Tokens < 0 {
		r.add(from, q.Tokens)
	} else {
		r.add(present, q.Tokens)
		r.moved(q.Tokens)
	}
	return backend.SettleReply{Open: true, Over: max(r.sum-q.Limit.Tokens, 0)}
}

// Reset forgets all that counts, and reports whether anything does. Leases that are out may be spent until their deadlines.
func (r *Ring) Reset(now int64) bool {
	if !r.Open(now) {
		return false
	}
	at, _ := r.enter(now, backend.Limit{Window: r.length})
	*r = Ring{sums: sums{length: r.length, last: at, ahead: r.ahead, low: r.low, total: r.total, void: at}}
	return true
}

// Contents changes nothing.
func (r *Ring) Contents(now int64) backend.Contents {
	if !r.Open(now) {
		return backend.Contents{}
	}
	next := *r
	at, present := next.enter(now, backend.Limit{Window: r.length})
	out := backend.Contents{Window: backend.SliceEnd(present, r.length), Used: next.sum, Idle: next.idle}
	out.Left = max(time.Duration(out.Window.End*1000-at)*time.Microsecond, 0)
	for name, a := range next.own {
		if a.slice >= next.low {
			out.Clients = append(out.Clients, backend.Account{Client: name, Mine: a.granted - a.returned, Idle: a.idle, Left: !a.present})
		}
	}
	slices.SortFunc(out.Clients, func(a, b backend.Account) int { return strings.Compare(a.Client, b.Client) })
	return out
}

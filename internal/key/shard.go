package key

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/lane"
	"github.com/go-reservoir/reservoir/internal/next"
)

// Shard is a part of the store that fails independently, or the whole store.
//
// It paces the calls that no request waits for. Many keys may want such a call at one
// instant: they go idle, share a reset, or owe what an outage has left. So many of these calls
// are in flight; the other keys stand in line, without a goroutine or a timer. While the
// circuit is open the line stands still. When its turn comes, a key decides anew, so its
// statement is of that moment, and its timeout begins there.
type Shard struct {
	breaker.Breaker
	Name    string
	Changed func(breaker.Change) // what Report is to call

	env    *Env
	lane   lane.Lane[*Key] // of the calls that no request waits for
	keys   atomic.Int64    // in memory that were on this shard when they looked last
	outage atomic.Pointer[outageError]
	met    atomic.Bool  // a call has ended
	ahead  atomic.Int64 // how much the store's clock is ahead of this process' one, ns; 0 until that matters

	reopener
}

// How many calls of the lane are in flight to one shard, at most. A lane serves this number of calls
// in each round trip. Nobody waits for the rest, and all processes of a fleet may begin at one
// instant, at a reset or after an outage: 16 calls keep a near server busy, and those of a hundred
// processes wait for 32 ms at a server that does 50,000 in a second, well within the fetch timeout. What callers
// will soon need may be far away: at 60 ms, 240 calls at a time are 4,000 in a second.
const (
	paced = 256
	rest  = 16 // of which are of the rest, so 240 are always left for callers
)

// CallsAtOnce is how many keys hand back their stock at Close at the same time, how many limits a group asks, and
// for how many keys WithLimits' function is called because of messages.
const CallsAtOnce = 32

// Shards calls yield with every shard.
func (e *Env) Shards(yield func(*Shard) bool) {
	e.shards.Range(func(_, s any) bool { return yield(s.(*Shard)) })
}

// slot is one of the calls in flight that a shard's lane counts; the zero slot is none.
type slot struct {
	shard *Shard
	first bool // it is one that the rest may not take
}

// release gives the slot, if it is one, to the next key in line.
func (s slot) release() {
	if s.shard != nil {
		s.shard.lane.Free(s.first)
		s.shard.goOn()
	}
}

// takeSlot takes the slot that a call of that class of key k needs, which is not made at once, unless has is one already. If
// none is free, or the circuit is open, the key stands in line, and takeSlot reports false. A key
// in the line of the rest may come forward: its turn is then the earlier one in both lines, and the
// later one finds that it needs no call. It is called under the key's lock.
func (s *Shard) takeSlot(k *Key, has *slot, class next.Class, open bool) bool {
	first := class == next.Callers
	// The key has come to its turn, with the slot that goOn took for it.
	if !open && has.shard != nil {
		return true
	}
	if !open && s.lane.Take(first) {
		*has = slot{s, first}
		return true
	}
	k.inLine = class
	s.lane.Push(k, first)
	s.Resume() // the circuit may have closed, or a slot become free, in between
	return false
}

// leftLine is the event that k has left the line of s, where it may not be any more.
func (s *Shard) leftLine(k *Key, did effect) (sent bool) {
	return k.event(func(int64) effect {
		if k.shard == s {
			k.inLine = 0
		}
		k.findShard()
		return did
	})
}

// goOn gives free slots to the keys in line. A key whose turn has come may need no call any
// more.
func (s *Shard) goOn() {
	for !s.Open.Load() {
		k, first, ok := s.lane.Next()
		if !ok {
			return
		}
		if !s.leftLine(k, effect{changed: true, slot: slot{s, first}}) {
			s.lane.Free(first)
		}
	}
}

// Clock is the time by the store's clock, as far as this process knows. A calendar's period is that of this time.
func (s *Shard) Clock() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// SetClock records that the store's clock shows now, Unix us.
func (s *Shard) SetClock(now int64) { s.ahead.Store(int64(time.Until(time.UnixMicro(now)))) }

// LineUp lets all keys in line stand in line anew, if they still need to: while the circuit
// is open, some are forgotten, and some move to another shard.
func (s *Shard) LineUp() {
	keys := s.lane.Clear()
	for _, k := range keys {
		s.leftLine(k, unchanged)
	}
	for _, k := range keys { // not before, or a key that stood in both lines would come to stand twice in one
		k.event(func(int64) effect { return effect{changed: k.phase != retired} })
	}
}

// Resume lets the keys go on that stand in line though slots are free, as after an outage.
// In steady state there are none, because the end of each call lets the next key go on.
func (s *Shard) Resume() {
	if s.Open.Load() || !s.lane.Ready() || !s.env.Calls.Begin() {
		return
	}
	go func() {
		defer s.env.Calls.End()
		s.goOn()
	}()
}

// Ended records the end of a call for a key of the store: err is nil or a *backend.Error. neutral says that an error tells
// nothing of the shard, because who made the call has given it up.
func (s *Shard) Ended(stored string, cause next.Cause, t Trip, err error, neutral bool) {
	s.met.Store(true)
	outcome := breaker.Answered
	if failure, ok := errors.AsType[*backend.Error](err); ok {
		switch {
		case failure.KeyOnly && cause == next.Reopen && !neutral: // the shard answers a try, though it does not serve this key
		case failure.KeyOnly || neutral:
			outcome = breaker.Neutral
		case failure.Class == backend.Rejected:
			outcome = breaker.Rejected
		default:
			outcome = breaker.Failed
			s.failedFor(stored)
		}
	}
	// No key has ordered the try of a shard that is away, so it says nothing of how long a batch takes.
	if outcome == breaker.Answered && t.Ordered != 0 {
		s.ObserveLead(time.Duration(t.End - t.Ordered))
	}
	watch, closed := s.Record(t.Sent, t.End, outcome, err)
	if watch {
		s.arm()
	}
	if closed { // the lines stood still
		s.Resume()
	}
}

// outageError is the error that callers get while a shard is away, made once.
type outageError struct{ cause, err error }

// OpenError returns the error of callers that are not served because the circuit is open.
// It has the class and the cause of the failure that opened it.
func (s *Shard) OpenError() error {
	cause := s.Cause() // a *backend.Error; nil if the circuit has closed again
	if last := s.outage.Load(); last != nil && last.cause == cause {
		return last.err
	}
	e := &backend.Error{Op: "sync", Class: backend.Unavailable, Err: errOpen}
	if failure, ok := cause.(*backend.Error); ok {
		e = &backend.Error{Op: failure.Op, Class: failure.Class, Err: fmt.Errorf("%w: %w", errOpen, failure.Err)}
	}
	s.outage.Store(&outageError{cause, e})
	return e
}

package key

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/slots"
)

// Shard is a part of the store that fails independently, or the whole store.
//
// It paces the calls that no request waits for. Many keys may want such a call at one
// instant: they go idle, share a reset, or owe what an outage has left. Of each class only so
// many calls to a shard are in flight; the other keys stand in line, without a goroutine or
// a timer. While the circuit is open the lines stand still. When its turn comes, a key
// decides anew, so its statement is of that moment, and its timeout begins there.
type Shard struct {
	breaker.Breaker
	Name string

	env    *Env
	lanes  [next.Classes]lane // of keys that want calls which no request waits for
	outage atomic.Pointer[outageError]
	ahead  atomic.Int64 // how much the store's clock is ahead of this process' one, ns; 0 until that matters

	mu           sync.Mutex
	timer        *time.Timer // of the next probe, while the circuit is open
	failed       string      // the key in the store of the call that failed last, to probe with
	noCheckUntil int64       // until when no Check is made while the circuit is open, because one has failed
}

// How many calls of a class are in flight at most, to one shard of the store.
const (
	CallsAtOnce   = 32  // that nobody waits for; also keys at Close, and limits of a group
	callersAtOnce = 256 // for callers who stay, batches ahead of need, and what others call back: as many as a far store needs
)

// NewShard returns a shard of that name, which is "" if the store has none.
func (e *Env) NewShard(name string) *Shard {
	s := &Shard{Name: name, env: e}
	for class := range next.Classes {
		l := &s.lanes[class]
		l.shard, l.class = s, class
		l.Init(1, CallsAtOnce)
	}
	s.lanes[next.Callers].Init(callersAtOnce, callersAtOnce)
	return s
}

// lane has the slots for the calls of one class to one shard, and the keys that wait for one.
type lane struct {
	slots.Slots[*Key]
	shard *Shard
	class next.Class
}

// takeSlot takes the slot that a call of that class needs now, unless slot is one already.
// If none is free, or the circuit is open, the key stands in line, and takeSlot reports false.
func (k *Key) takeSlot(slot **lane, class next.Class, open bool) bool {
	if !open && (*slot != nil || class == next.AtOnce) {
		return true
	}
	l := &k.shard.lanes[class]
	if !open && l.Take() {
		*slot = l
		return true
	}
	k.inLine |= 1 << class
	l.Push(k)
	k.shard.Resume() // the circuit may have closed, or a slot become free, in between
	return false
}

// leaveLine records that the key has left a line, perhaps that of a shard where it was
// before.
func (k *Key) leaveLine(l *lane) {
	if k.shard == l.shard {
		k.inLine &^= 1 << l.class
	}
	k.findShard()
}

// goOn gives free slots to the keys in line. A key whose turn has come may need no call any
// more.
func (l *lane) goOn() {
	for !l.shard.Open() {
		k, ok := l.Next()
		if !ok {
			return
		}
		f := k.update(func(int64) effect { k.leaveLine(l); return changed }, l)
		if f != nil {
			go k.env.Caller.Send(f)
		} else {
			l.Free(slots.Unused, 0)
		}
	}
}

// freeSlot gives the fetch's slot to the next key in line. err is how the call has ended.
func (f *Fetch) freeSlot(c Trip, err error) {
	if f.late == nil || !f.late.Stop() {
		return
	}
	how := slots.Unused
	switch o := OutcomeOf(err); {
	case !c.Made:
	case o == breaker.Answered:
		how = slots.Answered
	case o == breaker.Failed:
		how = slots.Failed
	}
	f.slot.free(how, c.Duration)
}

func (l *lane) free(how slots.Outcome, took time.Duration) {
	l.Free(how, took)
	l.goOn()
}

// bound frees the slot, as after such an end, if what is to begin takes longer than a call
// may: a store may disobey its context, and a function of WithLimits may block. One that
// never returned would hold up all keys in line.
func (f *Fetch) bound(how slots.Outcome) {
	if f.slot == nil || f.late != nil && !f.late.Stop() { // it is free already
		return
	}
	f.late = time.AfterFunc(f.k.env.Timeout+Slack, func() { f.slot.free(how, 0) })
}

// Clock is the time by the store's clock, as far as this process knows. A calendar's period is that of this time.
func (s *Shard) Clock() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// SetClock records that the store's clock shows now, Unix us.
func (s *Shard) SetClock(now int64) { s.ahead.Store(int64(time.Until(time.UnixMicro(now)))) }

// LineUp lets all keys in the lines stand in line anew, if they still need to: while the
// circuit is open, some are forgotten, and some move to another shard.
func (s *Shard) LineUp() {
	for class := range s.lanes {
		l := &s.lanes[class]
		for _, k := range l.Clear() {
			k.event(func(int64) effect {
				k.leaveLine(l)
				return effect{changed: k.phase != phaseRetired}
			})
		}
	}
}

// Resume lets the keys go on that stand in line though slots are free, as after an outage.
// In steady state there are none, because freeSlot lets the next key go on.
func (s *Shard) Resume() {
	if s.Open() || !s.ready() || !s.env.Calls.Begin() {
		return
	}
	go func() {
		defer s.env.Calls.End()
		for class := range s.lanes {
			s.lanes[class].goOn()
		}
	}()
}

// ready reports whether keys stand in line though slots are free.
func (s *Shard) ready() bool {
	for class := range s.lanes {
		if s.lanes[class].Ready() {
			return true
		}
	}
	return false
}

// OutcomeOf is what the error of a call says of the shard.
func OutcomeOf(err error) breaker.Outcome {
	failure, ok := errors.AsType[*backend.Error](err)
	switch {
	case err == nil:
		return breaker.Answered
	case !ok || failure.KeyOnly:
		return breaker.Neutral
	case failure.Class == backend.Rejected:
		return breaker.Rejected
	}
	return breaker.Failed
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

// MayCheck reports whether to try a Check, which a replica may answer while the primary is
// away.
func (s *Shard) MayCheck(now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.Open() || now >= s.noCheckUntil
}

// CheckFailed withholds Checks for a while if the shard is away.
func (s *Shard) CheckFailed(now int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noCheckUntil = now + int64(LongestPause)
}

// Arm sets the timer for the next probe, so that the end of an outage is noticed without
// traffic. All calls have the same probe.
func (s *Shard) Arm(probe func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := max(time.Duration(s.NextProbe()-s.env.Clock.Now()), time.Millisecond) // more often if another probe hung would be a loop
	if s.timer == nil {
		s.timer = time.AfterFunc(after, probe)
	} else {
		s.timer.Reset(after)
	}
}

// Stop stops the timer of Arm.
func (s *Shard) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
	}
}

// Failed keeps the key in the store of a failed call, for a probe.
func (s *Shard) Failed(stored string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = stored
}

// ProbeKey returns a key of the shard, in the store: that of the last failed call if it is
// still there, or any other.
func (s *Shard) ProbeKey() (stored string, ok bool) {
	s.mu.Lock()
	stored = s.failed
	s.mu.Unlock()
	e := s.env
	if stored != "" && e.Caller.Shard(stored) == s {
		return stored, true
	}
	e.Table.All(func(n *node) bool {
		if other := e.Stored(n.Key); e.Caller.Shard(other) == s {
			stored, ok = other, true
		}
		return !ok
	})
	return stored, ok
}

package reservoir

import (
	"time"

	"github.com/go-reservoir/reservoir/internal/breaker"
	"github.com/go-reservoir/reservoir/internal/next"
	"github.com/go-reservoir/reservoir/internal/slots"
)

// This file paces the calls that no request waits for. Many keys may want such a call at one
// instant: they go idle, share a reset, or owe what an outage has left. Of each class only so
// many calls to a shard are in flight; the other keys stand in line, without a goroutine or
// a timer. While the circuit is open the lines stand still. When its turn comes, a key
// decides anew, so its statement is of that moment, and its timeout begins there.

// How many calls of a class are in flight at most, to one shard of the store.
const (
	callsAtOnce   = 32  // that nobody waits for; also keys at Close, and limits of a group
	callersAtOnce = 256 // for callers who stay, and batches ahead of need: as many as a far store needs
)

// line has the slots for the calls of one class to one shard, and the keys that wait for one.
type line struct {
	slots.Slots[*keyState]
	shard *shard
	class next.Class
}

func newShard(name string) *shard {
	s := &shard{name: name}
	for class := range next.Classes {
		l := &s.lines[class]
		l.shard, l.class = s, class
		l.Init(1, callsAtOnce)
	}
	s.lines[next.Callers].Init(callersAtOnce, callersAtOnce)
	return s
}

// mayCallLocked reports whether the key may make a call of that class now. If so, slot is
// the one that the call needs. Otherwise the key stands in line.
func (k *keyState) mayCallLocked(slot **line, class next.Class, open bool) bool {
	if !open && (*slot != nil || class == next.AtOnce) {
		return true
	}
	l := &k.shard.lines[class]
	if !open && l.Take() {
		*slot = l
		return true
	}
	k.inLine |= 1 << class
	l.Push(k)
	k.l.resume(k.shard) // the circuit may have closed, or a slot become free, in between
	return false
}

// findShardLocked looks up the shard that the key is on now.
func (k *keyState) findShardLocked() {
	if s := k.l.shardOf(k.l.storeKey(k.node.Key)); s != k.shard {
		k.shard, k.inLine = s, 0
	}
}

// turn is the event of a key that has come to the head of a line, and has got the slot. It
// returns the key's fetch, or nil if the key needs none any more.
func (k *keyState) turn(slot *line) *fetch {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaveLineLocked(slot)
	return k.advanceLocked(k.l.clock.Now(), 0, slot)
}

// leaveLineLocked records that the key has left a line, perhaps that of a shard where it
// was before.
func (k *keyState) leaveLineLocked(l *line) {
	if k.shard == l.shard {
		k.inLine &^= 1 << l.class
	}
	k.findShardLocked()
}

// goOn gives free slots to the keys in line.
func (l *line) goOn() {
	for !l.shard.Open() {
		k, ok := l.Next()
		if !ok {
			return
		}
		if f := k.turn(l); f != nil {
			go f.run()
		} else {
			l.Free(slots.Unused, 0)
		}
	}
}

// freeSlot gives the fetch's slot to the next key in line, once. err is how the call has ended.
func (f *fetch) freeSlot(c *storeCall, err error) {
	if f.slot == nil {
		return
	}
	how := slots.Unused
	switch o := outcomeOf(err); {
	case !c.made:
	case o == breaker.Answered:
		how = slots.Answered
	case o == breaker.Failed:
		how = slots.Failed
	}
	f.late.Stop()
	f.giveSlot(how, c.Duration)
}

func (f *fetch) giveSlot(how slots.Outcome, took time.Duration) {
	if f.freed.CompareAndSwap(false, true) {
		f.slot.Free(how, took)
		f.slot.goOn()
	}
}

// boundSlot frees the slot, as after such an end, if what is to begin takes longer than a
// call may: a store may disobey its context, and a function of WithLimits may block. One
// that never returned would hold up all keys in line.
func (f *fetch) boundSlot(how slots.Outcome) {
	if f.slot == nil {
		return
	}
	if f.late != nil {
		f.late.Stop()
	}
	f.late = time.AfterFunc(f.k.l.fetchTimeout+slack, func() { f.giveSlot(how, 0) })
}

// lineUp lets all keys in the lines of s stand in line anew, if they still need to: while the
// circuit is open, some are forgotten, and some move to another shard.
func (s *shard) lineUp() {
	for class := range s.lines {
		l := &s.lines[class]
		for _, k := range l.Clear() {
			k.event(func(int64) int64 {
				if k.leaveLineLocked(l); k.retired {
					return unchanged
				}
				return 0
			})
		}
	}
}

// resume lets the keys go on that stand in line at s though slots are free, as after an
// outage. In steady state there are none, because freeSlot lets the next key go on.
func (c *client) resume(s *shard) {
	if s.Open() || !s.ready() || !c.calls.Begin() {
		return
	}
	go func() {
		defer c.calls.End()
		for class := range s.lines {
			s.lines[class].goOn()
		}
	}()
}

// ready reports whether keys stand in line though slots are free.
func (s *shard) ready() bool {
	for class := range s.lines {
		if s.lines[class].Ready() {
			return true
		}
	}
	return false
}

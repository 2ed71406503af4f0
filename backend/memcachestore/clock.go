package memcachestore

import (
	"context"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// maxAhead is how far another process' clock may be ahead of ours. With a larger bound, a
// clock that is hours ahead could keep a window open for as long.
const maxAhead = time.Minute

// keyTime returns the time of a step in Unix us: the wall clock, or the time of the last
// write if that is ahead. So a key's time never runs backwards from one process to the
// next, and no process ends a window that another has just opened.
//
// memstore follows the monotonic clock instead. Here that would preserve an error of the
// wall clock that NTP corrects.
func (s *Store) keyTime(ctx context.Context, c *counter.Counter, flags uint32) int64 {
	if t, ok := storeclock.From(ctx); ok {
		return t.UnixMicro()
	}
	now := s.now().UnixMicro()
	if !c.Opened() || flags == math.MaxUint32 {
		return now
	}
	ahead := c.Left(now) - time.Duration(flags)*time.Millisecond // time of the last write minus ours
	if ahead <= 0 || ahead > maxAhead {
		return now
	}
	return now + ahead.Microseconds()
}

// leftAt returns the time of a write as an item's flags: the milliseconds left in the
// window, rounded up. The largest number means unknown, for windows of 50 days or more.
func leftAt(left time.Duration) uint32 {
	return uint32(min(int64((left+time.Millisecond-1)/time.Millisecond), math.MaxUint32))
}

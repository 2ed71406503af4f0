package memcachestore

import (
	"context"
	"math"
	"time"

	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// maxAhead is how far ahead of ours another process' clock may be. A larger bound
// would let a clock that is wrong by hours keep a window open for as long.
const maxAhead = time.Minute

// keyTime is the instant of a step, Unix us: the wall clock, or that of the last
// write if it was ahead. So the time of a key never runs backwards from one process
// to the next, and none ends a window that another one has just opened.
//
// It is the wall clock, not one that follows the monotonic one, as memstore's: that
// would keep for ever what NTP corrects.
func (s *Store) keyTime(ctx context.Context, c *counter.Counter, flags uint32) int64 {
	if t, ok := storeclock.From(ctx); ok {
		return t.UnixMicro()
	}
	now := s.now().UnixMicro()
	if !c.Opened() || flags == math.MaxUint32 {
		return now
	}
	ahead := c.Left(now) - time.Duration(flags)*time.Millisecond // of the last write, to us
	if ahead <= 0 || ahead > maxAhead {
		return now
	}
	return now + ahead.Microseconds()
}

// leftAt is the time of a write as an item's flags: the milliseconds that the window
// had left, rounded up. The largest number is unknown, for windows of 50 days or more.
func leftAt(left time.Duration) uint32 {
	return uint32(min(int64((left+time.Millisecond-1)/time.Millisecond), math.MaxUint32))
}

package rollout

import (
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/placement"
)

// side says where a key is counted.
type side uint8

const (
	inOld side = iota
	inBoth
	inNew
)

// span is a range set by SetPercent, linked to the ranges before it.
type span struct {
	low, high float64
	since     time.Time
	before    *span
}

// of returns the side of a key at a place under this range alone.
func (p *span) of(place float64) side {
	switch {
	case place < p.low:
		return inNew
	case place < p.high:
		return inBoth
	default:
		return inOld
	}
}

// now returns the side of a key at a place, if its windows run for up to long. A key is
// left to one store only if no window of the other store can be open: it was assigned to
// that store alone at least long ago, and never to the other store since. An earlier
// assignment proves nothing, because the key may have been called back before it had
// left the other store.
func (p *span) now(place float64, long time.Duration) side {
	side := p.of(place)
	if side == inBoth {
		return inBoth
	}
	for other := inOld + inNew - side; p != nil && p.of(place) != other; p = p.before {
		if p.of(place) == side && (p.before == nil || time.Since(p.since) >= long) {
			return side
		}
	}
	return inBoth // it was in the other store, or its store is unknown
}

// at returns the store of a key whose windows run for up to long.
func (s *Store) at(key string, long time.Duration) backend.Store {
	switch s.span.Load().now(place(key), long) {
	case inOld:
		return s.old
	case inNew:
		return s.new
	default:
		return both{s}
	}
}

// lasts returns how long a stored window of l may run, and records the longest.
func (s *Store) lasts(l backend.Limit) time.Duration {
	long := l.Window + slack(l.Window)
	for l.Window <= backend.MaxWindow { // the stores refuse longer ones
		if was := s.longest.Load(); int64(long) <= was || s.longest.CompareAndSwap(was, int64(long)) {
			break
		}
	}
	return long
}

// slack returns how much longer than its limit's length a stored window may run, by the
// rules of the scripts, plus a second for clocks that differ.
func slack(window time.Duration) time.Duration { return min(window/10, time.Second) + time.Second }

// place returns a key's place between 0 and 100 percent, the same in every process:
// 64-bit FNV-1a, and the finaliser of SplitMix64. It must never change: see
// TestPlaces.
func place(key string) float64 {
	return float64(placement.Mix(placement.Hash(key))>>11) / (1 << 53) * 100
}

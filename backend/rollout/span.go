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

// span is a range that SetPercent has set, and those before it.
type span struct {
	low, high float64
	since     time.Time
	before    *span
}

// of is the side of a key at a place under this range alone.
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

// now is the side of a key at a place while those windows may run that were open
// when the range changed, which is for so long. A key may be left to one store if
// that one has counted it all this time: since the key was first to be there alone,
// and not in the other store after that. That it once was to be in a store proves
// nothing: it may have been called back before it had left the other one.
func (p *span) now(place float64, long time.Duration) side {
	side := p.of(place)
	if side == inBoth {
		return inBoth
	}
	for other := inOld + inNew - side; p != nil && p.of(place) != other; p = p.before {
		if p.of(place) == side && (p.before == nil || time.Since(p.since) > long) {
			return side
		}
	}
	return inBoth // it was in the other store, or nobody knows in which one
}

// only is the one store of a key whose windows may run for so long, or nil for both.
func (s *Store) only(key string, long time.Duration) backend.Store {
	switch s.span.Load().now(place(key), long) {
	case inOld:
		return s.old
	case inNew:
		return s.new
	default:
		return nil
	}
}

// side is where a key is whose windows may run as long as any.
func (s *Store) side(key string) side {
	return s.span.Load().now(place(key), time.Duration(s.longest.Load()))
}

// lasts is how long a stored window may run, and remembers the longest.
func (s *Store) lasts(l backend.Limit) time.Duration {
	long := l.Window + slack(l.Window)
	for l.Window <= backend.MaxWindow { // others are refused
		if was := s.longest.Load(); int64(long) <= was || s.longest.CompareAndSwap(was, int64(long)) {
			break
		}
	}
	return long
}

// slack is what a stored window may be longer than its limit says, by the rules of
// the scripts, and a second for clocks that differ.
func slack(window time.Duration) time.Duration { return min(window/10, time.Second) + time.Second }

// place is where a key stands between 0 and 100 percent, in every process and for
// ever: FNV-1a, 64 bit, and the finaliser of SplitMix64. It must never change: see
// TestPlaces.
func place(key string) float64 {
	return float64(placement.Mix(placement.Hash(key))>>11) / (1 << 53) * 100
}

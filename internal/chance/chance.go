// Package chance draws what is random in the library: the times over which it spreads its calls,
// and the clients that a store looks at. With a seed, a simulation of a whole fleet replays.
package chance

import (
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"
)

// seeded is nil for the runtime's generator.
var seeded atomic.Pointer[uint64]

// Seed makes every draw depend only on seed and the instant of the draw, until restore
// is called. Draws at one instant are equal. Seed is for tests on a virtual clock: timers
// that are due at one instant run in any order, so a sequence of draws would not replay.
func Seed(seed uint64) (restore func()) {
	seeded.Store(&seed)
	return func() { seeded.Store(nil) }
}

// Part returns a random part of d, uniformly from 0 up to d; 0 if d is not positive.
func Part(d time.Duration) time.Duration {
	return time.Duration(generator().Int64N(int64(max(d, 1))))
}

// Interval returns an exponentially distributed time with that mean. If n processes each
// wait for intervals of n times the mean, together they make one event every mean.
func Interval(mean time.Duration) time.Duration {
	return time.Duration(generator().ExpFloat64() * float64(mean))
}

// Order ranges over m in random order: as a map does or, with a seed, in one that follows from the
// seed and the instant.
func Order[V any](m map[string]V) iter.Seq2[string, V] {
	if seeded.Load() == nil {
		return maps.All(m)
	}
	names := slices.Sorted(maps.Keys(m))
	at := int(Part(time.Duration(len(names))))
	return func(yield func(string, V) bool) {
		for _, name := range append(names[at:], names[:at]...) {
			if v, ok := m[name]; ok && !yield(name, v) {
				return
			}
		}
	}
}

// generator returns the generator of a draw. The runtime's has no state here, so it is safe for concurrent use.
func generator() *rand.Rand {
	if seed := seeded.Load(); seed != nil {
		return rand.New(rand.NewPCG(*seed, uint64(time.Now().UnixNano())))
	}
	return unseeded
}

var unseeded = rand.New(runtime{})

type runtime struct{}

func (runtime) Uint64() uint64 { return rand.Uint64() }

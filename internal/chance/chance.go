// Package chance is the library's randomness for spreading things in time. It
// can be given a seed, so that a simulation of a whole fleet replays.
package chance

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// seeded is nil for the runtime's generator.
var seeded atomic.Pointer[uint64]

// Seed makes every draw depend on seed and its instant alone, until restore is
// called. It is for tests on a virtual clock: of timers that are due at one
// instant that runs any first, so that draws in sequence would not replay. Draws
// at one instant are equal.
func Seed(seed uint64) (restore func()) {
	seeded.Store(&seed)
	return func() { seeded.Store(nil) }
}

// Part returns a random part of d, uniformly from 0 up to d; 0 if d is not positive.
func Part(d time.Duration) time.Duration {
	return time.Duration(generator().Int64N(int64(max(d, 1))))
}

// Interval returns the time to the next of events that come at random, every
// mean on average: exponentially distributed, so that any number of processes
// which do this with n times the mean make one such event every mean together.
func Interval(mean time.Duration) time.Duration {
	return time.Duration(generator().ExpFloat64() * float64(mean))
}

type source interface {
	Int64N(n int64) int64
	ExpFloat64() float64
}

func generator() source {
	if seed := seeded.Load(); seed != nil {
		return rand.New(rand.NewPCG(*seed, uint64(time.Now().UnixNano())))
	}
	return global{}
}

type global struct{}

func (global) Int64N(n int64) int64 { return rand.Int64N(n) }
func (global) ExpFloat64() float64  { return rand.ExpFloat64() }

// Package chance is the library's randomness for spreading things in time. It
// can be given a seed, so that a simulation of a whole fleet replays.
package chance

import (
	"math/rand/v2"
	"sync"
	"time"
)

var (
	mu     sync.Mutex
	seeded *rand.Rand // nil: the runtime's generator
)

// Seed makes all that follows depend on seed alone, until restore is called. It
// is for tests; calls from goroutines that race each other still differ in order.
func Seed(seed uint64) (restore func()) {
	mu.Lock()
	defer mu.Unlock()
	seeded = rand.New(rand.NewPCG(seed, 0))
	return func() {
		mu.Lock()
		defer mu.Unlock()
		seeded = nil
	}
}

// Part returns a random part of d, uniformly from 0 up to d; 0 if d is not positive.
func Part(d time.Duration) time.Duration {
	return draw(func(r source) time.Duration { return time.Duration(r.Int64N(int64(max(d, 1)))) })
}

// Interval returns the time to the next of events that come at random, every
// mean on average: exponentially distributed, so that any number of processes
// which do this with n times the mean make one such event every mean together.
func Interval(mean time.Duration) time.Duration {
	return draw(func(r source) time.Duration { return time.Duration(r.ExpFloat64() * float64(mean)) })
}

type source interface {
	Int64N(n int64) int64
	ExpFloat64() float64
}

func draw(f func(source) time.Duration) time.Duration {
	mu.Lock()
	defer mu.Unlock()
	if seeded != nil {
		return f(seeded)
	}
	return f(global{})
}

type global struct{}

func (global) Int64N(n int64) int64 { return rand.Int64N(n) }
func (global) ExpFloat64() float64  { return rand.ExpFloat64() }

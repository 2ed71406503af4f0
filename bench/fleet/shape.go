package fleet

import (
	"math"
	"math/rand/v2"
	"time"
)

// shape spreads a demand over processes and time. It returns the share of process i at
// time t, and the time until which the share stays the same.
type shape func(i int, t time.Duration) (share float64, until time.Duration)

// kind makes shapes for fleets of n processes.
type kind func(n int, r *rand.Rand) shape

var (
	equal  = always(func(int, int) float64 { return 1 })
	zipf   = always(func(i, _ int) float64 { return math.Pow(float64(i+1), -1.2) })
	oneHot = always(hot)
)

// always makes shapes that never change, from the weight of process i of n.
func always(weight func(i, n int) float64) kind {
	return func(n int, _ *rand.Rand) shape {
		sum := 0.0
		for i := range n {
			sum += weight(i, n)
		}
		return func(i int, _ time.Duration) (float64, time.Duration) { return weight(i, n) / sum, math.MaxInt64 }
	}
}

// hot gives one process 90 % and the others equal parts of the rest.
func hot(i, n int) float64 {
	if i == 0 {
		return 9 * float64(n-1)
	}
	return 1
}

// moves gives a tenth of the processes 90 %, and moves on to the next tenth every five
// seconds, so that each process is hot for one step in ten.
func moves(n int, _ *rand.Rand) shape {
	const step = 5 * time.Second
	size := max(n/10, 1)
	return func(i int, t time.Duration) (float64, time.Duration) {
		turn := int(t / step)
		until := time.Duration(turn+1) * step
		if (i+n-turn*size%n)%n < size {
			return 0.9 / float64(size), until
		}
		return 0.1 / float64(n-size), until
	}
}

// bursts gives every process the same on average, all of it in one second of five. The
// second is random for each process.
func bursts(n int, r *rand.Rand) shape {
	const on, cycle = time.Second, 5 * time.Second
	phase := make([]time.Duration, n)
	for i := range phase {
		phase[i] = time.Duration(r.Int64N(int64(cycle)))
	}
	return func(i int, t time.Duration) (float64, time.Duration) {
		at := (t + phase[i]) % cycle
		if at < on {
			return float64(cycle/on) / float64(n), t + on - at
		}
		return 0, t + cycle - at
	}
}

// arrivals are the requests to one process: a Poisson process whose rate changes
// with time.
type arrivals struct {
	shape  shape
	i      int
	demand float64 // of all processes, requests per second
	rand   *rand.Rand
}

// after returns the first arrival after t. It draws one exponential number and
// lets the rate use it up, piece by piece.
func (a *arrivals) after(t time.Duration) time.Duration {
	left := a.rand.ExpFloat64()
	for {
		share, until := a.shape(a.i, t)
		rate := share * a.demand / float64(time.Second)
		if wait := left / rate; wait < float64(until-t) { // a rate of 0 is an endless wait
			return t + time.Duration(wait) + 1
		}
		left -= rate * float64(until-t)
		t = until
	}
}

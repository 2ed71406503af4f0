// Package sim replays traffic against real limiters, and counts what that costs.
//
// A [Traffic] is a list of requests, made from a description by [Shape] or read
// from a record by [ReadTrace]. A [Replay] makes them, each at its time, on one
// real Limiter for each process, and an [Outcome] says what came of it. The command
// "reservoir tune" and the fleet model of the module bench use it.
//
// # The clock
//
// On the embedded store a replay can run on a virtual clock, which moves on when
// everything waits: an hour of traffic takes as long as its decisions, and a busy
// machine disturbs nothing. The caller brings it: see [Setting]. On a Redis, which
// keeps its own time, a replay takes the traffic's time.
package sim

import (
	"math/rand/v2"
	"strconv"
	"time"
)

// MaxRequests bounds a traffic: 16 bytes each are held, and all are replayed for
// each policy.
const MaxRequests = 10_000_000

// Traffic is requests, in order of their times.
type Traffic struct {
	Requests  []Request
	Tokens    int64 // that each asks for; 0 = 1
	Keys      []string
	Processes int
	Length    time.Duration // at least the last request's time
}

// Request is one request of a traffic.
type Request struct {
	At      time.Duration // since the beginning of the traffic
	Key     int32         // into Traffic.Keys
	Process int32         // that it comes to
}

// Shape describes a traffic: requests come at random, independently of each
// other, and to a random process, as behind a load balancer.
type Shape struct {
	Rate      float64 // requests per second on average
	Keys      int
	Zipf      float64 // exponent above 1 by which the first keys are called for more often; 0 = evenly
	Processes int
	Length    time.Duration
	Seed      uint64 // equal shapes make equal traffics
}

// Expected is how many requests the traffic has on average.
func (s Shape) Expected() float64 { return s.Rate * s.Length.Seconds() }

// Traffic makes the requests.
func (s Shape) Traffic() Traffic {
	r := rand.New(rand.NewPCG(s.Seed, 1))
	t := Traffic{Keys: Keys(s.Keys), Processes: s.Processes, Length: s.Length}
	pick := Picker(r, s.Keys, s.Zipf)
	for at := 0.0; len(t.Requests) < MaxRequests; {
		if at += r.ExpFloat64() / s.Rate * float64(time.Second); at >= float64(s.Length) {
			break
		}
		t.Requests = append(t.Requests, Request{time.Duration(at), int32(pick()), r.Int32N(int32(s.Processes))})
	}
	return t
}

// Picker picks one of n keys at random: evenly if zipf is 0, otherwise the first more
// often, by that exponent.
func Picker(r *rand.Rand, n int, zipf float64) func() int {
	if zipf == 0 || n == 1 {
		return func() int { return r.IntN(n) }
	}
	z := rand.NewZipf(r, zipf, 1, uint64(n-1))
	return func() int { return int(z.Uint64()) }
}

// Keys are n names.
func Keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	return keys
}

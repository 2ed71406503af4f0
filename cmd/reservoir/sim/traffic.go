// Package sim replays traffic against real limiters, and counts what that costs.
//
// A [Traffic] is a list of requests, made from a description by [Shape]. A [Replay] makes
// them, each at its time, on one real Limiter for each process, and returns an [Outcome].
// "reservoir tune" and the module test use it. The clock is virtual: an hour of traffic takes
// only as long as its decisions, and a busy machine does not change the outcome.
package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
)

// MaxRequests bounds a traffic, because each request takes 16 bytes and is replayed for
// each policy.
const MaxRequests = 10_000_000

// Traffic is a list of requests, in order of their times.
type Traffic struct {
	Requests  []Request
	Tokens    int64 // per request
	Keys      []string
	Processes int
	Length    time.Duration // at least the last request's time
}

// Request is one request of a traffic.
type Request struct {
	At      time.Duration // since the beginning of the traffic
	Key     int32         // index in Traffic.Keys
	Process int32         // index of the process that receives it
}

// Shape describes a traffic whose requests arrive at random, independently of each other.
type Shape struct {
	Rate      float64 // requests per second on average
	Tokens    int64   // per request
	Keys      int
	Zipf      float64 // exponent above 1 of a Zipf distribution that prefers the first keys; 0 = evenly
	Processes int
	Sticky    int // requests for a key that come in a row to one process; then a random one gets as many
	Length    time.Duration
	Seed      uint64 // equal shapes make equal traffics
}

// Traffic makes the requests, but at most [MaxRequests].
func (s Shape) Traffic() Traffic {
	r := rand.New(rand.NewPCG(s.Seed, 1))
	t := Traffic{Keys: Keys(s.Keys), Tokens: s.Tokens, Processes: s.Processes, Length: s.Length}
	pick := Picker(r, s.Keys, s.Zipf)
	for at := 0.0; len(t.Requests) < MaxRequests; {
		if at += r.ExpFloat64() / s.Rate * float64(time.Second); at >= float64(s.Length) {
			break
		}
		t.Requests = append(t.Requests, Request{At: time.Duration(at), Key: int32(pick())})
	}
	t.route(s.Sticky, s.Seed)
	return t
}

// route sends the requests for each key to one process so many times in a row, and then to
// another or the same: 1 is a load balancer that knows no clients, more are clients that keep
// a connection for a while.
func (t Traffic) route(sticky int, seed uint64) {
	r, last, runs := rand.New(rand.NewPCG(seed, 2)), make([]int32, len(t.Keys)), make([]int, len(t.Keys))
	for i := range t.Requests {
		q := &t.Requests[i]
		if runs[q.Key]%max(sticky, 1) == 0 {
			last[q.Key] = r.Int32N(int32(t.Processes))
		}
		runs[q.Key]++
		q.Process = last[q.Key]
	}
}

// Picker returns a function that picks one of n keys at random: evenly if zipf is 0,
// otherwise by a Zipf distribution with that exponent. The function is not safe for
// concurrent use.
func Picker(r *rand.Rand, n int, zipf float64) func() int {
	if zipf == 0 || n == 1 {
		return func() int { return r.IntN(n) }
	}
	z := rand.NewZipf(r, zipf, 1, uint64(n-1))
	return func() int { return int(z.Uint64()) }
}

// Keys returns n names: key-0, key-1 and so on.
func Keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	return keys
}

// Policy is a way to fetch tokens.
type Policy struct {
	Name   string
	Option reservoir.Option
}

// ErrPolicy is the error for an unknown policy.
var ErrPolicy = errors.New("want direct, fixed (several sizes), a size, ladder, adaptive, adaptive:min-max")

// Policies returns the named policies, in order and without duplicates, for a limit of
// tokens, or [ErrPolicy]. A number is a batch of that size, and fixed stands for a
// thousandth, a hundredth and a tenth of the limit. The ladder is Rockset's rule, from 10
// tokens to a tenth of the limit. The 0 in adaptive:5-0 means no upper bound.
func Policies(names []string, tokens int64) (list []Policy, err error) {
	add := func(name string, o reservoir.Option) {
		if !slices.ContainsFunc(list, func(p Policy) bool { return p.Name == name }) {
			list = append(list, Policy{name, o})
		}
	}
	fixed := func(n int64) { add(fmt.Sprint("fixed ", n), reservoir.WithFixedBatch(n)) }
	for _, name := range names {
		kind, figures, _ := strings.Cut(name, ":")
		low, high, _ := strings.Cut(figures, "-")
		least, noLeast := strconv.ParseInt(low, 10, 64)
		most, noMost := strconv.ParseInt(high, 10, 64)
		size, noSize := strconv.ParseInt(name, 10, 64)
		switch {
		case name == "direct":
			add(name, reservoir.WithDirect())
		case name == "fixed":
			for _, part := range []int64{1000, 100, 10} {
				fixed(max(tokens/part, 1))
			}
		case noSize == nil && size >= 1:
			fixed(size)
		case name == "ladder":
			add(name, reservoir.WithLadder(min(10, tokens), max(tokens/10, min(10, tokens))))
		case name == "adaptive":
			add(name, reservoir.WithBatch(1, 0))
		case kind == "adaptive" && noLeast == nil && noMost == nil && least >= 1 && (most == 0 || most >= least):
			add("adaptive "+figures, reservoir.WithBatch(least, most))
		default:
			return nil, ErrPolicy
		}
	}
	return list, nil
}

// Package fleet is a model of many processes that share one limit.
//
// Every process is a real reservoir.Limiter. Package sim, which "reservoir tune" runs
// too, makes their requests, here on the virtual clock of testing/synctest, over one
// memstore and a network of 1 ms there and back. Requests for one token each come at
// random, in one of several shapes of demand, and refused requests are not retried. Only
// demand and network are modelled.
//
// make fleet simulates all rows of the table under all rules. This simulates a part:
//
//	go test -tags=fleet -run=TestFleet -fleet=bars -rules=adaptive
//
// TestEveryday has the limits that most people have, and asks how true refusals are.
//
// A row covers several windows from the very first, which is cold. Requests count to the
// window in their Result. Stranded is what is unspent when a
// caller gets the first refusal of a window. Waited counts
// requests whose Source is on the network, admitted or not.
//
// The same seed makes the same table: arrivals and the library draw from seeded generators,
// a run has one thread, and events of different processes share no instant (see lane).
package fleet

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// scenario is a fleet, its limit and the demand for it.
type scenario struct {
	kind      kind // nil = sticky, see manners
	processes int
	limit     reservoir.Limit
	demand    float64 // in limits per window
	windows   int     // how many are simulated, from the first, which is cold
}

// rule is a way to fetch tokens. Only the default's processes get messages, because the others'
// rules have none.
type rule struct {
	name, what string
	option     func(l reservoir.Limit) reservoir.Option
}

var rules = []rule{
	{"direct", "exactly what callers ask for", func(reservoir.Limit) reservoir.Option { return reservoir.WithDirect() }},
	{"fixed", "batches of L/1000, as Rockset set it", func(l reservoir.Limit) reservoir.Option {
		return reservoir.WithFixedBatch(max(l.Tokens/1000, 1))
	}},
	{"ladder", "Rockset's ladder, from 1 to L/100", func(l reservoir.Limit) reservoir.Option {
		return reservoir.WithLadder(1, max(l.Tokens/100, 1))
	}},
	{adaptive, "the default", func(reservoir.Limit) reservoir.Option { return reservoir.WithBatch(1, 0) }},
}

const adaptive = "adaptive" // the rule to which the bars apply

// random returns one of the generators of a seed. They do not depend on the rule, so that
// all rules get the same demand.
func random(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

const oneWay = 500 * time.Microsecond // half of a call, to which the lane adds a little

// run simulates one fleet on a virtual clock. An error means that the model itself is
// unsound.
func (s scenario) run(r rule, seed uint64) (outcome, error) {
	replay := replayOf(s.traffic(seed), s.limit, r.option(s.limit), seed)
	if r.name != adaptive {
		replay.Store = struct{ backend.Store }{replay.Store}
	}
	total, err := replay.Run(context.Background())
	windows := slices.DeleteFunc(total.Windows, func(w *sim.Window) bool { return w.Requests == 0 })
	switch {
	case err != nil:
		return outcome{}, err
	case len(windows) <= s.windows:
		return outcome{}, errors.New("the traffic ended before the windows did")
	}
	return s.outcome(windows), nil
}

// replayOf returns a replay of t on the virtual clock, over a new memstore that is oneWay
// away.
func replayOf(t sim.Traffic, l reservoir.Limit, o reservoir.Option, seed uint64) *sim.Replay {
	travel := func(process int, now time.Duration, back bool) time.Duration {
		if back {
			return lane(process).next(now+oneWay, reply) - now
		}
		return lane(process).next(now+oneWay, reach) - now
	}
	return &sim.Replay{
		Traffic: t, Policy: sim.Policy{Option: o}, Store: memstore.New(),
		Setting: sim.Setting{Limit: l, Seed: seed, Travel: travel},
	}
}

// traffic returns somewhat more than the windows take, because each window opens at a
// request, and the window after the last shows how many calls were made before it.
func (s scenario) traffic(seed uint64) sim.Traffic {
	length := time.Duration(s.windows) * s.limit.Window
	if s.kind == nil {
		gap := float64(s.limit.Window) / (s.demand * float64(s.limit.Tokens))
		t := sim.Traffic{Tokens: 1, Keys: []string{"shared"}, Processes: s.processes, Length: length + length/8 + s.limit.Window/8}
		for _, q := range manners["sticky"].requests(s.processes, s.limit.Window, gap, t.Length, seed) {
			t.Requests = append(t.Requests, sim.Request{At: q.at, Process: int32(q.process)})
		}
		return t
	}
	t := sim.Traffic{Tokens: 1, Keys: []string{"shared"}, Processes: s.processes, Length: length}
	shape := s.kind(s.processes, random(seed, 0))
	for i := range s.processes {
		a := arrivals{shape, i, s.demand * float64(s.limit.Tokens) / s.limit.Window.Seconds(), random(seed, 1<<32+uint64(i))}
		made := time.Duration(0)
		for at := a.after(0); at < length+length/8+s.limit.Window/8; at = a.after(at) {
			made = lane(i).next(max(at, made+1), asking)
			t.Requests = append(t.Requests, sim.Request{At: made, Process: int32(i)})
		}
	}
	slices.SortFunc(t.Requests, func(a, b sim.Request) int { return cmp.Compare(a.At, b.At) })
	return t
}

// outcome is a row of the table: the windows in steady state, and the first, in which no
// demand is known yet.
type outcome struct {
	means
	cold     means
	admitted float64 // share of the limit, in the worst window
	over     int64   // tokens above the limit, in the worst window
	refused  int64
	requests int64
}

// means are averages over some windows. Shares are between 0 and 1.
type means struct {
	calls    float64 // per admitted request
	stranded float64 // of the limit, at a window's first refusal
	waited   float64 // of all requests
}

// outcome sums up the first s.windows windows. windows has at least one more.
func (s scenario) outcome(windows []*sim.Window) outcome {
	o := outcome{admitted: 1}
	for _, w := range windows[:s.windows] {
		o.refused += w.Refused
		o.requests += w.Requests
		o.over = max(o.over, w.Spent-s.limit.Tokens)
		o.admitted = min(o.admitted, float64(w.Spent)/float64(s.limit.Tokens))
	}
	first, end := windows[1].Calls, windows[s.windows].Calls
	o.cold, o.means = s.means(windows[:1], first), s.means(windows[1:s.windows], end-first)
	return o
}

// means sums up windows in which the given number of calls was made.
func (s scenario) means(windows []*sim.Window, calls int64) (m means) {
	var spent, requests, waited int64
	for _, w := range windows {
		spent, requests, waited = spent+w.Spent, requests+w.Requests, waited+w.Waited
	}
	m.calls, m.waited = sim.Ratio(calls, spent), sim.Ratio(waited, requests)
	m.stranded, _ = sim.Stranded(windows, s.limit.Tokens)
	return m
}

// lane is the set of instants at which events of one process happen: requests come, calls
// reach the store, replies and messages come back. No two processes share an instant, and
// neither do the four events, because the virtual clock orders events of one instant at random. An
// event moves to the lane's next instant, by less than lanePeriod.
type lane int // the process' number, less than maxProcesses

const (
	asking, reach, reply, message = 0, 1, 2, 3 // the events

	laneWidth    = 4 // one for each event
	maxProcesses = 1000
	lanePeriod   = laneWidth * maxProcesses // divides oneWay
)

// next returns the first instant for an event that is not before t.
func (l lane) next(t, event time.Duration) time.Duration {
	own := time.Duration(l)*laneWidth + event
	return t + (own-t%lanePeriod+lanePeriod)%lanePeriod
}

// shape spreads a demand over processes and time. It returns the share of process i at
// time t, and the time until which the share stays the same.
type shape func(i int, t time.Duration) (share float64, until time.Duration)

// kind makes shapes for fleets of n processes.
type kind func(n int, r *rand.Rand) shape

var (
	equal  = always(func(int, int) float64 { return 1 })
	zipf   = always(func(i, _ int) float64 { return math.Pow(float64(i+1), -1.2) })
	oneHot = always(func(i, n int) float64 { // 90 %, and the others have equal parts of the rest
		if i == 0 {
			return 9 * float64(n-1)
		}
		return 1
	})
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
		if until == math.MaxInt64 {
			return until // no more
		}
		left -= rate * float64(until-t)
		t = until
	}
}

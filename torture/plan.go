package torture

import (
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// scenario is a topology and what befalls it. It follows from the seed, but for when
// midnight is.
type scenario struct {
	Topology topology
	Loses    loss // of all its faults: one that takes more would hide whether another takes any
	Faults   []kind
	Seed     uint64
	Fleet    int           // processes
	Pace     float64       // share of the full rate of requests
	Timeout  time.Duration // of a fetch
	Span     time.Duration // of a fault, about
	Hang     time.Duration // of a server that is stopped
	Slots    int           // that are resharded
	Skew     int64         // a deliberate bug; see skewed
	Midnight int64         // when the calendar's first window ends, Unix seconds
}

var (
	// brief is for where many tests share a machine.
	brief = scenario{Fleet: 2, Pace: 0.2, Timeout: 400 * time.Millisecond, Span: 300 * time.Millisecond, Hang: 1200 * time.Millisecond, Slots: 60}
	// full has the library's default timeout.
	full = scenario{Fleet: 4, Pace: 1, Timeout: 100 * time.Millisecond, Span: time.Second, Hang: 3 * time.Second, Slots: 3000}
)

// scenarios are all topologies, each with the faults that take as much from the store,
// and seeds that count up. cheapest leaves out the faults that a cheaper one has.
func scenarios(like scenario, seed uint64, cheapest bool) (list []scenario) {
	for _, like.Topology = range topologies {
		for like.Loses = range loss(losses) {
			like.Faults = nil
			for _, f := range faults {
				if f.loses == like.Loses && slices.Contains(f.on, like.Topology) && (!cheapest || f.on[0] == like.Topology) {
					like.Faults = append(like.Faults, f.kind)
				}
			}
			if like.Faults != nil {
				like.Seed = seed + uint64(len(list))
				shuffle(like.Faults, like.Seed)
				list = append(list, like)
			}
		}
	}
	return list
}

// sample is every kind of fault once, where it is cheapest to have.
func sample(seed uint64) []scenario { return scenarios(brief, seed, true) }

// shortest is how many faults make it worth while to start servers, about.
const shortest = 8

// endless is scenarios for as long as they are asked for: rounds of all, and the faults
// of each, in another order each time.
func endless(seed uint64) iter.Seq[scenario] {
	return func(yield func(scenario) bool) {
		for {
			round := scenarios(full, seed, false)
			shuffle(round, seed)
			for _, sc := range round {
				sc.Faults = slices.Repeat(sc.Faults, max(shortest/len(sc.Faults), 1))
				shuffle(sc.Faults, sc.Seed)
				if !yield(sc) {
					return
				}
			}
			seed += uint64(len(round))
		}
	}
}

func shuffle[T any](list []T, seed uint64) {
	rand.New(rand.NewPCG(seed, 2)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

package torture

import (
	"math/rand/v2"
	"slices"
	"time"
)

const (
	fetchTimeout   = 100 * time.Millisecond // the library's default
	patientTimeout = 400 * time.Millisecond // where many tests share a machine
)

// course is a topology and faults that go together: what loses data would hide
// whether anything else does, and a process that is killed takes tokens along.
type course struct {
	on     topology
	faults []kind
}

// courses splits the faults of each topology by what they take from the store;
// cheapest leaves out those that a cheaper one has.
func courses(cheapest bool) (list []course) {
	for where := range topology(topologies) {
		for loses := range loss(losses) {
			c := course{on: where}
			for k, f := range faults() {
				if f.loses == loses && slices.Contains(f.on, where) && (!cheapest || f.on[0] == where) {
					c.faults = append(c.faults, kind(k))
				}
			}
			if c.faults != nil {
				list = append(list, c)
			}
		}
	}
	return list
}

// sample is every kind of fault once, where it is cheapest to have.
func sample(seed uint64) []scenario {
	var list []scenario
	for _, c := range courses(true) {
		list = append(list, scenario{
			Topology: c.on, Faults: shuffled(c.faults, seed), Seed: seed,
			Fleet: 2, Pace: 0.2, Timeout: patientTimeout, Span: 300 * time.Millisecond, Hang: 1200 * time.Millisecond, Slots: 60,
		})
	}
	return list
}

// shortest is how many faults make it worth while to start servers, about.
const shortest = 8

// endless yields scenarios for as long as they are asked for: rounds of all
// courses, and the faults of each, in another order each time.
func endless(seed uint64) func() scenario {
	var round []course
	at := seed
	return func() scenario {
		if len(round) == 0 {
			round = shuffled(courses(false), at)
		}
		c := round[0]
		round, at = round[1:], at+1
		faults := slices.Repeat(c.faults, max(shortest/len(c.faults), 1))
		return scenario{
			Topology: c.on, Faults: shuffled(faults, at), Seed: at,
			Fleet: 4, Pace: 1, Timeout: fetchTimeout, Span: time.Second, Hang: 3 * time.Second, Slots: 3000,
		}
	}
}

func shuffled[T any](list []T, seed uint64) []T {
	rng := rand.New(rand.NewPCG(seed, 2))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

var kinds = map[string]kind{"equal": equal, "zipf": zipf, "one hot": oneHot, "moves": moves, "bursts": bursts}

// small is a fleet of one process in ten of the table's.
func small(k kind, demand float64) scenario {
	return scenario{k, 10, reservoir.PerMinute(6_000), demand, 2}
}

// The bounds are loose: a fleet this small gains less, and what matters here is
// that the model runs, and that no rule admits too much under any shape.
func TestNoRuleAdmitsTooMuch(t *testing.T) {
	for _, r := range rules {
		for name, k := range kinds {
			t.Run(r.name+"/"+name, func(t *testing.T) {
				o := simulate(t, small(k, 1.5), r, 7) // requires that none is over
				require.Greater(t, o.refused, int64(0))
				require.Greater(t, o.admitted, 0.7)
				if r.name == adaptive {
					require.Less(t, o.calls, 0.1)
					require.Less(t, o.waited, 0.01)
				}
			})
		}
	}
}

func TestNothingIsRefusedBelowTheLimit(t *testing.T) {
	for _, r := range rules {
		o := simulate(t, small(equal, 0.5), r, 7)
		require.Zero(t, o.refused, r.name)
		require.InDelta(t, 0.5, o.admitted, 0.05, r.name)
	}
}

func TestDirectCallsForEachRequest(t *testing.T) {
	s := scenario{equal, 10, reservoir.PerMinute(6_000), 0.5, 2}
	o := simulate(t, s, rules[0], 7)
	require.Equal(t, "direct", rules[0].name)
	require.InDelta(t, 1, o.calls, 0.001)
	require.InDelta(t, 1, o.waited, 0.001)
	require.Zero(t, o.stranded)
}

func TestSameSeedSameOutcome(t *testing.T) {
	for _, r := range rules {
		s := scenario{moves, 10, reservoir.PerMinute(3_000), 1.5, 2}
		one := simulate(t, s, r, 1)
		require.Equal(t, one, simulate(t, s, r, 1), r.name)
		require.NotEqual(t, one, simulate(t, s, r, 2), r.name)
	}
}

// Two windows and the beginning of a third: the first is cold, and one too many is
// admitted in the second.
func TestOutcome(t *testing.T) {
	s := scenario{limit: reservoir.PerSecond(10), windows: 2}
	first := &sim.Window{Requests: 11, Waited: 1, Spent: 9, Refused: 2, Stranded: 3}
	second := &sim.Window{Calls: 4, Requests: 11, Spent: 11}
	want := outcome{
		means:    means{calls: 2.0 / 11},
		cold:     means{calls: 4.0 / 9, stranded: 0.3, waited: 1.0 / 11},
		admitted: 0.9, over: 1, refused: 2, requests: 22,
	}
	require.Equal(t, want, s.outcome([]*sim.Window{first, second, {Calls: 6}}))
}

func TestArrivalsFollowTheirShape(t *testing.T) {
	const n, demand, span = 20, 200.0, 100 * time.Second
	for name, k := range kinds {
		s := k(n, random(1, 0))
		total := 0
		for i := range n {
			a := arrivals{shape: s, i: i, demand: demand, rand: random(1, uint64(i))}
			for at := a.after(0); at < span; at = a.after(at) {
				share, _ := s(i, at-1)
				require.Positive(t, share, "%s: a request while there are none", name)
				total++
			}
		}
		require.InEpsilon(t, demand*span.Seconds(), total, 0.03, name) // 4 standard deviations
	}
}

func TestSharesAddUp(t *testing.T) {
	const n = 100
	for name, k := range kinds {
		if name == "bursts" { // only on average
			continue
		}
		s := k(n, random(1, 0))
		for _, at := range []time.Duration{0, 4 * time.Second, time.Minute, time.Hour} {
			sum := 0.0
			for i := range n {
				share, until := s(i, at)
				require.Greater(t, until, at)
				sum += share
			}
			require.InDelta(t, 1, sum, 1e-9, name)
		}
	}
}

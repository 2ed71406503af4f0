package fleet

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// simulate runs a fleet. It depends on seed alone.
func simulate(t *testing.T, s scenario, r rule, seed uint64) outcome {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	o, err := s.run(r, seed)
	require.NoError(t, err)
	require.Zero(t, o.over, "%s: tokens over the limit", r.name)
	return o
}

// TestRules: small fleets admit no more than the limit under any rule and shape, and the
// same seed gives the same outcome. The bounds are loose, because small fleets gain less.
func TestRules(t *testing.T) {
	for _, r := range rules {
		for name, k := range map[string]kind{"equal": equal, "zipf": zipf, "one hot": oneHot, "moves": moves, "bursts": bursts, "sticky": nil} {
			t.Run(r.name+"/"+name, func(t *testing.T) {
				s := scenario{k, 10, reservoir.PerMinute(3_000), 1.5, 2}
				o := simulate(t, s, r, 7)
				require.Greater(t, o.refused, int64(0))
				require.Greater(t, o.admitted, 0.7)
				if r.name == adaptive {
					require.Less(t, o.calls, 0.1)
					require.Less(t, o.waited, 0.01)
				}
				if name == "moves" && r.name == adaptive { // the other rules draw less
					require.Equal(t, o, simulate(t, s, r, 7))
					require.NotEqual(t, o, simulate(t, s, r, 8))
				}
			})
		}
		o := simulate(t, scenario{equal, 10, reservoir.PerMinute(3_000), 0.5, 2}, r, 7)
		require.Zero(t, o.refused, r.name)
		require.InDelta(t, 0.5, o.admitted, 0.05, r.name)
	}
}

// Two windows and the beginning of a third: the first is cold, and one token too many is
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

package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// small is a fleet of one process in five of the table's.
func small(k *kind, demand float64) scenario {
	return scenario{k, 20, reservoir.PerMinute(12_000), demand, 3}
}

// The bounds are loose: a fleet this small gains less, and what matters here is
// that the model runs, and that no rule admits too much under any shape.
func TestNoRuleAdmitsTooMuch(t *testing.T) {
	for _, r := range rules {
		for _, k := range []*kind{equal, zipf, oneHot, moves, bursts} {
			t.Run(r.name+"/"+k.name, func(t *testing.T) {
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
		s := small(moves, 1.5)
		one := simulate(t, s, r, 1)
		require.Equal(t, one, simulate(t, s, r, 1), r.name)
		require.NotEqual(t, one, simulate(t, s, r, 2), r.name)
	}
}

// A window that refuses: 3 tokens lie in limiters, one too many is admitted.
func TestTally(t *testing.T) {
	var calls, held int64
	a := time.UnixMilli(1_000)
	b := time.UnixMilli(2_000)
	count := &tally{
		limit: reservoir.PerSecond(10), windows: 2,
		calls: func() int64 { return calls }, held: func() int64 { return held },
		course: course{began: a.Add(-time.Second), step: time.Second},
	}
	at := a.Add(-time.Second)
	told := func(n int, r reservoir.Result) {
		for range n {
			require.True(t, count.begin(at, at))
			count.end(at, r, nil)
		}
	}
	calls, held = 2, 3
	told(8, reservoir.Result{Allowed: true, Reset: a})
	told(1, reservoir.Result{Reset: a, Source: reservoir.Fetched})
	held = 5
	told(1, reservoir.Result{Reset: a, Source: reservoir.Denied})
	calls, at = 4, a
	told(8, reservoir.Result{Allowed: true, Reset: b})
	told(1, reservoir.Result{Allowed: true, Reset: a}) // late, of the window before
	told(3, reservoir.Result{Allowed: true, Reset: b})
	calls = 6
	require.False(t, count.begin(b, b.Add(1)))
	require.Equal(t, outcome{
		means:    means{calls: 2.0 / 11},
		cold:     means{calls: 4.0 / 9, stranded: 0.3, waited: 1.0 / 11},
		admitted: 0.9, over: 1, refused: 2, requests: 22,
		course: []moment{{calls: 2.0 / 10, waited: 1.0 / 10}, {calls: 2.0 / 12}},
	}, count.outcome())
}

func TestArrivalsFollowTheirShape(t *testing.T) {
	const n, demand, span = 20, 200.0, 100 * time.Second
	for _, k := range []*kind{equal, zipf, oneHot, moves, bursts} {
		s := k.shape(n, random(1, 0))
		total := 0
		for i := range n {
			a := arrivals{shape: s, i: i, n: n, demand: demand, rand: random(1, uint64(i))}
			for at := a.after(0); at < span; at = a.after(at) {
				share, _ := s(i, n, at-1)
				require.Positive(t, share, "%s: a request while there are none", k.name)
				total++
			}
		}
		require.InEpsilon(t, demand*span.Seconds(), total, 0.03, k.name) // 4 standard deviations
	}
}

func TestSharesAddUp(t *testing.T) {
	const n = 100
	for _, k := range []*kind{equal, zipf, oneHot, moves} {
		s := k.shape(n, random(1, 0))
		for _, at := range []time.Duration{0, 4 * time.Second, time.Minute, time.Hour} {
			sum := 0.0
			for i := range n {
				share, until := s(i, n, at)
				require.Greater(t, until, at)
				sum += share
			}
			require.InDelta(t, 1, sum, 1e-9, k.name)
		}
	}
}

func TestAgendaIsInOrder(t *testing.T) {
	r := random(1, 0)
	var h agenda
	for i := range 50 {
		h = append(h, arrival{time.Duration(r.Int64N(20)), i})
	}
	h.order()
	last := arrival{-1, 0}
	for range 1_000 {
		require.True(t, last.before(h[0]))
		last = h[0]
		h.replace(last.at + 1 + time.Duration(r.Int64N(20)))
	}
}

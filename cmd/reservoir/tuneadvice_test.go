package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// of is an outcome of 10,000 requests, of which 5,000 were admitted.
func of(policy string, calls int64, stranded float64, needless, waited int64) sim.Outcome {
	return sim.Outcome{
		Policy: policy, Requests: 10_000, Admitted: 5000, Refused: 5000, Needless: needless,
		StoreCalls: calls, CallsPerRequest: float64(calls) / 10_000, Waited: waited, WaitedShare: float64(waited) / 10_000,
		Stranded: stranded, StrandedWindows: 3,
	}
}

func TestAdvise(t *testing.T) {
	direct := of("direct", 9000, 0, 0, 9000)
	big := of("fixed", 20, 0.3, 100, 20)
	big.Policy = "fixed 1000"
	unlimited := func(o sim.Outcome) sim.Outcome {
		o.StrandedWindows, o.Refused, o.Admitted, o.Needless = 0, 0, 10_000, 0
		o.Stranded = 0
		return o
	}
	for _, row := range []struct {
		name, want, reason string
		all                []sim.Outcome
	}{
		{"the default", "adaptive", "fixed 1000 makes fewer calls, but it refuses 100 requests that the limit had tokens for and strands 30.0 % of the limit.",
			[]sim.Outcome{direct, big, of("adaptive", 100, 0.01, 0, 2)}},
		{"half the calls are clearly better", "ladder", "It wastes little of the limit and makes less than half the store calls of adaptive. It makes 99 store calls for 10,000 requests (0.99 %); 0.02 % of the requests wait for the store; when the first is refused, 1.00 % of the limit lies unspent in processes.",
			[]sim.Outcome{direct, of("ladder", 99, 0.01, 0, 2), of("adaptive", 200, 0.01, 0, 2)}},
		{"more are not", "adaptive", "It is the default",
			[]sim.Outcome{direct, of("fixed", 100, 0.01, 0, 2), of("adaptive", 200, 0.01, 0, 2)}},
		{"nor where more wait", "adaptive", "It is the default",
			[]sim.Outcome{direct, of("fixed", 20, 0.01, 0, 3), of("adaptive", 200, 0.01, 0, 2)}},
		{"nor one of its own family", "adaptive", "It is the default",
			[]sim.Outcome{direct, of("adaptive 1-100", 150, 0.01, 0, 2), of("adaptive", 200, 0.01, 0, 2)}},
		{"a few percent are stranded", "adaptive", "It is the default",
			[]sim.Outcome{direct, of("fixed", 4600, 0, 0, 4600), of("adaptive", 200, 0.04, 15, 2)}},
		{"the default saves nothing", "direct", "save next to nothing here",
			[]sim.Outcome{direct, of("fixed", 8500, 0, 0, 8500), of("adaptive", 7300, 0, 0, 7300)}},
		{"the default wastes", "direct", " adaptive makes fewer calls, but it refuses 75 requests that the limit had tokens for and strands 7.90 % of the limit.",
			[]sim.Outcome{direct, of("fixed", 8000, 0, 0, 8000), of("adaptive", 8700, 0.079, 75, 6000)}},
		{"the default wastes, and direct calls are many", "fixed", "less than half the store calls of direct",
			[]sim.Outcome{direct, of("fixed", 4000, 0, 0, 4000), of("adaptive", 9100, 0.079, 75, 6000)}},
		{"and is told of", "direct", " adaptive, the default, strands 7.90 % of the limit.",
			[]sim.Outcome{direct, of("adaptive", 9100, 0.079, 0, 6000)}},
		{"neither of them", "ladder", "It makes the fewest store calls", []sim.Outcome{of("fixed", 8500, 0, 0, 8500), of("ladder", 8400, 0, 0, 8500)}},
		{"nobody was refused", "adaptive", "Nobody was refused",
			[]sim.Outcome{unlimited(direct), unlimited(of("fixed", 10, 0, 0, 1)), unlimited(of("adaptive", 100, 0, 0, 2))}},
		{"cold", "adaptive", "It is the default", []sim.Outcome{direct, cold(of("ladder", 40, 0.11, 0, 2)), cold(of("adaptive", 100, 0.09, 0, 2))}},
		{"only bad ones", "fixed 1000", "None of the policies is without fault here. This one wastes least: it refuses 100 requests",
			[]sim.Outcome{of("ladder", 10, 0.5, 900, 2), big}},
	} {
		got := advise(row.all)
		require.Equal(t, row.want, got.Policy, row.name)
		require.Contains(t, got.Reason, row.reason, row.name)
	}
}

// On the guide's own traffics, some of them shorter or of fewer keys, the tool says what the
// guide (docs/choosing.md) does.
func TestTuneAgreesWithTheGuide(t *testing.T) {
	for args, want := range map[string]string{
		"-rate 50 -keys 10000 -limit 10 -window 1m -duration 90s":               "direct", // hardly a key is used twice
		"-limit 60 -window 1m -rate 1.5 -duration 5m -processes 20":             "direct", // three tokens for each process are no batch
		"-limit 60 -window 1m -rate 1.5 -duration 5m -processes 20 -sticky 20":  "adaptive",
		"-limit 300 -window 1m -rate 7.5 -duration 5m -processes 20 -sticky 20": "adaptive",
		"-rate 50 -keys 100 -zipf 1.1 -limit 10 -window 1m -duration 90s":       "direct", // nor are these
		"-limit 600 -window 1m -rate 15 -duration 3m -processes 20":             "adaptive",
		"-limit 6000 -window 1m -rate 150 -duration 90s -processes 20":          "adaptive",
		"-limit 6000 -window 1m -rate 50 -n 3 -duration 2m -processes 20":       "adaptive",
		"-limit 600 -window 10s -rate 90 -duration 30s -processes 20 -keys 2":   "adaptive",
		"-limit 10000 -window 1s -rate 3000 -n 7 -duration 2s -processes 8":     "adaptive",
	} {
		r := tuned(t, invoke(t.Context(), append([]string{"tune", "-seed", "1", "-format", "json"}, strings.Fields(args)...)...))
		requireTuned(t, r)
		require.Equal(t, want, r.Recommendation.Policy, "%s: %s", args, r.Recommendation.Reason)
	}
}

func cold(o sim.Outcome) sim.Outcome {
	o.Cold = true
	return o
}

func TestTuneNotes(t *testing.T) {
	c := &tuning{setting: sim.Setting{Limit: reservoir.PerMinute(60)}}
	r := c.newReport(sim.Traffic{Length: time.Minute}, []sim.Outcome{of("direct", 9000, 0, 0, 0)})
	require.Len(t, r.Notes, 1)
	require.Contains(t, r.Notes[0], "no longer than the first window")
}

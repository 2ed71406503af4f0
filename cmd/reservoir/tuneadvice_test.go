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
	direct, fixed := of("direct", 9000, 0, 0, 9000), of("fixed", 20, 0.3, 100, 20)
	for _, row := range []struct {
		name, want, reason string
		all                []sim.Outcome
	}{
		{"the default", "adaptive", "It makes 100 store calls for 10,000 requests (1.00 %); 0.02 % of the requests wait for the store; when the first is refused, 1.00 % of the limit is unspent.",
			[]sim.Outcome{direct, fixed, of("adaptive", 100, 0.01, 0, 2)}},
		{"a few percent are stranded", "adaptive", "It is the default", []sim.Outcome{direct, of("adaptive", 200, 0.04, 15, 2)}},
		{"it saves nothing", "direct", "save next to nothing here", []sim.Outcome{direct, of("adaptive", 7300, 0, 0, 7300)}},
		{"it wastes", "direct", "The default refuses 75 requests that the limit had tokens for and strands 7.90 % of the limit.",
			[]sim.Outcome{direct, of("adaptive", 8700, 0.079, 75, 6000)}},
		{"cold", "adaptive", "It is the default", []sim.Outcome{direct, cold(of("adaptive", 100, 0.09, 0, 2))}},
		{"alone", "adaptive", "It is the default", []sim.Outcome{of("adaptive", 100, 0.3, 0, 2)}},
		{"not replayed", "direct", "exact", []sim.Outcome{fixed, direct}},
		{"neither of them", "fixed", "Neither", []sim.Outcome{fixed}},
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

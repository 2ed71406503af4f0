package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// of is an outcome of 10,000 requests, of which 5,000 were admitted.
func of(kind sim.Kind, calls int64, stranded float64, needless, waited int64) sim.Outcome {
	return sim.Outcome{
		Policy: string(kind), Kind: kind, Requests: 10_000, Admitted: 5000, Refused: 5000, Needless: needless,
		StoreCalls: calls, CallsPerRequest: float64(calls) / 10_000, Waited: waited, WaitedShare: float64(waited) / 10_000,
		Stranded: stranded, StrandedWindows: 3,
	}
}

func TestAdvise(t *testing.T) {
	direct := of(sim.Direct, 9000, 0, 0, 9000)
	big := of(sim.Fixed, 20, 0.3, 100, 20)
	big.Policy = "fixed 1000"
	broken := of(sim.Ladder, 5, 0, 0, 0)
	broken.Over = 1
	failing := of(sim.Ladder, 5, 0, 0, 0)
	failing.Errors = 500
	unlimited := func(o sim.Outcome) sim.Outcome {
		o.StrandedWindows, o.Refused, o.Admitted, o.Needless = 0, 0, 10_000, 0
		o.Stranded = 0
		return o
	}
	for _, row := range []struct {
		name, want, reason string
		all                []sim.Outcome
	}{
		{"fewest calls", "adaptive", "fixed 1000 makes fewer calls, but it refuses 100 requests that the limit had tokens for and strands 30.0 % of the limit.",
			[]sim.Outcome{direct, big, of(sim.Adaptive, 100, 0.01, 0, 2)}},
		{"another is better", "ladder", "It makes the fewest store calls of the policies that waste little of the limit. It makes 50 store calls for 10,000 requests (0.50 %); 0.20 % of the requests wait for the store; when the first is refused, 1.0 % of the limit lies unspent in processes.",
			[]sim.Outcome{direct, of(sim.Ladder, 50, 0.01, 0, 20), of(sim.Adaptive, 200, 0.01, 0, 2)}},
		{"nearly as good", "adaptive", "nearly as few store calls as fixed",
			[]sim.Outcome{direct, of(sim.Fixed, 100, 0.01, 0, 2), of(sim.Adaptive, 120, 0.01, 0, 2)}},
		{"few wait", "adaptive", "far fewer requests wait",
			[]sim.Outcome{of(sim.Fixed, 100, 0.01, 0, 100), of(sim.Adaptive, 190, 0.01, 0, 2)}},
		{"no batch helps", "direct", "Batches save next to nothing here",
			[]sim.Outcome{direct, of(sim.Fixed, 8500, 0, 0, 8500), of(sim.Adaptive, 8600, 0, 0, 8600)}},
		{"nobody was refused", "adaptive", "Nobody was refused",
			[]sim.Outcome{unlimited(direct), unlimited(of(sim.Fixed, 10, 0, 0, 10)), unlimited(of(sim.Adaptive, 100, 0, 0, 2))}},
		{"cold", "adaptive", "It makes the fewest store calls", []sim.Outcome{direct, cold(of(sim.Ladder, 50, 0.07, 0, 2)), cold(of(sim.Adaptive, 100, 0.05, 0, 2))}},
		{"only bad ones", "fixed 1000", "None of the policies is without fault here. This one wastes least: it refuses 100 requests",
			[]sim.Outcome{of(sim.Ladder, 10, 0.5, 900, 2), big}},
		{"over the limit", "direct", "ladder makes fewer calls, but it goes over the limit.", []sim.Outcome{broken, with(direct, 0.5)}},
		{"fails", "direct", "ladder makes fewer calls, but it fails 500 requests.", []sim.Outcome{failing, with(direct, 0.5)}},
	} {
		got := advise(row.all)
		require.Equal(t, row.want, got.Policy, row.name)
		require.Contains(t, got.Reason, row.reason, row.name)
	}
}

func with(o sim.Outcome, perRequest float64) sim.Outcome {
	o.CallsPerRequest = perRequest
	return o
}

func cold(o sim.Outcome) sim.Outcome {
	o.Cold = true
	return o
}

func TestTuneNotes(t *testing.T) {
	c := &tuning{setting: sim.Setting{Limit: demoLimit("search"), Speed: 2}}
	late := of(sim.Direct, 9000, 0, 0, 0)
	late.Late, late.Errors = int64(demoWindow), 1
	r := c.newReport(sim.Traffic{Length: demoWindow}, []sim.Outcome{late}, "here")
	require.Len(t, r.Notes, 3)
	require.Contains(t, r.Notes[0], "direct: one request in a hundred was made 500ms or more after its time.")
	require.Contains(t, r.Notes[1], "1 request ended in an error")
	require.Contains(t, r.Notes[2], "no longer than a window")
	require.Contains(t, r.heading, "at 2 times its speed")
	require.NoError(t, r.verdict())
	r.Policies[0].Over = 3
	require.ErrorContains(t, r.verdict(), "direct admitted 3 over the limit")
}

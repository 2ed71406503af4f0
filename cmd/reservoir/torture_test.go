package main

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

var torture = flag.Duration("torture", 7*time.Second, "how `long` TestTorture runs")

// TestTorture has sixteen processes of very different demand, twice the limit
// together, share one key through as many windows as there is time for: a few by
// default, some hundreds by make torture.
func TestTorture(t *testing.T) {
	t.Parallel()
	const processes, limit, length = 16, 12_000, 2 * time.Second
	server := redistest.Start(t)
	var running []*process
	for _, rate := range zipfRates(processes, 2*limit/length.Seconds()) {
		running = append(running, start(t, nil, "load", "-store", "redis://"+server.Addr(), "-key", "shared",
			"-limit", strconv.Itoa(limit), "-window", length.String(), "-rate", fmt.Sprintf("%.2f", rate),
			"-duration", torture.String(), "-format", "json"))
	}
	var reports []report
	var requests, allowed, waited, calls int64
	for _, p := range running {
		r := p.end().report(t)
		requireBalance(t, r)
		requireFewErrors(t, r)
		reports = append(reports, r)
		requests += r.Requests
		allowed += r.Allowed
		waited += r.Waited
		calls += r.StoreCalls
	}
	sums := spent(reports...)
	requireWithin(t, limit, sums)

	resets := resetsOf(reports...)
	for i := 1; i < len(resets); i++ {
		require.GreaterOrEqual(t, resets[i]-resets[i-1], length.Milliseconds(), "all tell the same end of a window")
	}
	whole := complete(reports)
	require.GreaterOrEqual(t, len(whole), int(*torture/length)/2, "windows rolled over")
	used := make([]int64, len(whole))
	for i, reset := range whole {
		used[i] = sums[window{Key: "shared", Reset: reset}]
	}
	t.Logf("%d requests, %d allowed, %d store calls (%.2f %% of the allowed), %.2f %% waited; of %d whole windows the least used %.2f %%, all %.2f %%",
		requests, allowed, calls, 100*sim.Ratio(calls, allowed), 100*sim.Ratio(waited, requests), len(whole),
		100*sim.Ratio(slices.Min(used), limit), 100*sim.Ratio(sum(used), limit*int64(len(used))))
	require.GreaterOrEqual(t, slices.Min(used), int64(limit*98/100), "nothing lies idle: %v", used)
	require.Less(t, calls, allowed/10)
}

// zipfRates shares a rate among processes by rank: the first has as much as the
// second twice, the third three times, and so on.
func zipfRates(processes int, rate float64) []float64 {
	rates := make([]float64, processes)
	var harmonic float64
	for i := range rates {
		harmonic += 1 / float64(i+1)
	}
	for i := range rates {
		rates[i] = rate / harmonic / float64(i+1)
	}
	return rates
}

func sum(list []int64) (n int64) {
	for _, x := range list {
		n += x
	}
	return n
}

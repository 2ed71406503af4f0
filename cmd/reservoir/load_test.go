package main

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// requireBalance checks what holds of every report.
func requireBalance(t *testing.T, r report) {
	t.Helper()
	require.Equal(t, r.Requests, r.Allowed+r.Denied+r.Errors)
	require.Equal(t, r.TokensTaken+r.TokensRefunded, r.TokensSpent+r.TokensReturned+r.TokensExpired+r.TokensHeld)
	require.Zero(t, r.TokensHeld, "closed")
	require.Zero(t, r.TokensLate)
	require.LessOrEqual(t, r.Waited, r.Requests)
	require.LessOrEqual(t, r.Latency.P50, r.Latency.P99)
	require.LessOrEqual(t, r.Latency.P99, r.Latency.P999)
	require.LessOrEqual(t, r.Latency.P999, r.Latency.Max)
	require.True(t, slices.IsSortedFunc(r.Windows, func(a, b window) int {
		if c := strings.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return int(a.Reset - b.Reset)
	}))
}

// requireFewErrors allows for calls that time out because the machine is busy, which opens
// a circuit: then many requests fail.
func requireFewErrors(t *testing.T, r report, about ...any) {
	t.Helper()
	most := r.Requests / 50
	if strings.Contains(r.FirstError, "no answer within the fetch timeout") {
		most = r.Requests / 2
	}
	require.LessOrEqual(t, r.Errors, most, "%s %v", r.FirstError, about)
}

// spent adds up windows over reports.
func spent(reports ...report) map[window]int64 {
	sums := make(map[window]int64)
	for _, r := range reports {
		for _, w := range r.Windows {
			sums[window{Key: w.Key, Reset: w.Reset}] += w.Spent
		}
	}
	return sums
}

func requireWithin(t *testing.T, limit int64, sums map[window]int64, about ...any) {
	t.Helper()
	for w, n := range sums {
		require.LessOrEqual(t, n, limit, "%v %v", w, about)
	}
}

func TestLoadJSON(t *testing.T) {
	o := invoke(t.Context(), strings.Fields("load -requests 1000 -limit 100 -window 1h -seed 7 -format json")...)
	r := o.report(t)
	requireBalance(t, r)
	require.EqualValues(t, 1000, r.Requests)
	require.EqualValues(t, 100, r.Allowed, "the limit is used to the last token")
	require.EqualValues(t, 900, r.Denied)
	require.EqualValues(t, 7, r.Seed)
	require.EqualValues(t, 100, r.TokensSpent)
	require.Len(t, r.Windows, 1)
	require.Equal(t, "key-0", r.Windows[0].Key)
	require.EqualValues(t, 100, r.Windows[0].Spent)
	require.InDelta(t, float64(r.StoreCalls)/1000, r.StoreCallsPerRequest, 1e-9)

	var fields map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &fields))
	require.Subset(t, slices.Collect(maps.Keys(fields)), []string{
		"requests", "allowed", "denied", "errors", "waited", "store_calls", "store_calls_per_request",
		"tokens_taken", "tokens_spent", "tokens_returned", "tokens_expired", "tokens_refunded", "tokens_held",
		"seconds", "latency_ns", "windows",
	})
	require.Subset(t, fields["latency_ns"], map[string]any{"p50": fields["latency_ns"].(map[string]any)["p50"]})
	require.Len(t, fields["latency_ns"], 4)
}

func TestLoadKeepsItsSchedule(t *testing.T) {
	r := invoke(t.Context(), strings.Fields("load -rate 2000 -requests 600 -workers 3 -format json")...).report(t)
	require.EqualValues(t, 600, r.Requests)
	require.GreaterOrEqual(t, r.Seconds, 599.0/2000, "call 599 is not made before it is due")

	r = invoke(t.Context(), strings.Fields("load -rate 2000 -duration 300ms -workers 64 -format json")...).report(t)
	require.LessOrEqual(t, r.Requests, int64(r.Seconds*2000)+64, "however many workers there are")

	r = invoke(t.Context(), strings.Fields("load -requests 3 -workers 8 -format json")...).report(t)
	require.EqualValues(t, 3, r.Requests)
}

func TestLoadText(t *testing.T) {
	o := invoke(t.Context(), strings.Fields("load -requests 12345 -limit 1000 -window 1h")...)
	require.Equal(t, exitOK, o.status)
	for _, want := range []string{"requests", "12,345", "11,345", "store calls", "p99.9", "1,000 of 1,000", "1,000 spent"} {
		require.Contains(t, o.stdout, want)
	}
	require.Contains(t, o.stdout, "store        in this process, with no network: ")
}

func TestReport(t *testing.T) {
	at := time.UnixMilli(10_000)
	ok := func(reset int64) reservoir.Result {
		return reservoir.Result{Allowed: true, Reset: time.UnixMilli(reset), Source: reservoir.Fetched}
	}
	a, b := newReport(), newReport()
	a.record("k", 2, ok(11_000), nil, at, time.Microsecond)
	a.record("k", 2, ok(9_999), nil, at, time.Minute)
	a.record("", 2, ok(11_000), nil, at, 0)
	a.record("k", 2, reservoir.Result{Source: reservoir.Local}, nil, at, 0)
	b.record("k", 2, reservoir.Result{}, &reservoir.StoreError{Err: errors.New("away")}, at, 0)
	b.record("k", 2, reservoir.Result{}, reservoir.ErrClosed, at, 0)
	for _, reset := range []int64{12_000, 11_000, 10_500, 12_000, 10_500} {
		b.record("k", 2, ok(reset), nil, at, 0)
	}
	a.merge(b)
	a.complete(reservoir.Stats{})
	require.Equal(t, []window{{"k", 9_999, 2}, {"k", 10_500, 4}, {"k", 11_000, 4}, {"k", 12_000, 4}}, a.Windows)
	require.Contains(t, a.text(reservoir.PerSecond(10)), "windows      4; the most spent here in one: 4 of 10\n")
	require.EqualValues(t, 2, a.TokensLate)
	require.EqualValues(t, 11, a.Requests)
	require.EqualValues(t, 2, a.Errors)
	require.EqualValues(t, 8, a.Waited, "eight were fetched for; an error may have come at once")
	require.InEpsilon(t, time.Minute, a.Latency.Max, 0.01)
	require.Contains(t, a.FirstError, "away")
}

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tiny is a tuning of two or three windows with more demand than the limit.
const tiny = "tune -rate 15000 -limit 500 -window 100ms -duration 220ms -processes 3 -delay 100us "

func tuned(t *testing.T, o outcome) tuneReport {
	t.Helper()
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Empty(t, o.stderr)
	var r tuneReport
	require.NoError(t, json.Unmarshal([]byte(o.stdout), &r), o.stdout)
	return r
}

// requireTuned checks what holds of every replay.
func requireTuned(t *testing.T, r tuneReport) {
	t.Helper()
	require.NotEmpty(t, r.Policies)
	names := map[string]bool{}
	for _, o := range r.Policies {
		names[o.Policy] = true
		require.EqualValues(t, r.Traffic.Requests, o.Requests, o.Policy)
		require.Equal(t, o.Requests, o.Admitted+o.Refused+o.Errors, o.Policy)
		require.Zero(t, o.Over, o.Policy)
		require.InDelta(t, float64(o.StoreCalls)/float64(o.Requests), o.CallsPerRequest, 1e-9)
		if o.Policy == "direct" {
			require.LessOrEqual(t, o.StoreCalls, o.Requests, "who comes during a call shares the next one, and a refusal from memory may send a probe")
		}
	}
	require.True(t, names[r.Recommendation.Policy])
	require.NotEmpty(t, r.Recommendation.Reason)
}

func TestTuneJSON(t *testing.T) {
	r := tuned(t, invoke(t.Context(), strings.Fields(tiny+"-seed 7 -keys 2 -format json")...))
	requireTuned(t, r)
	var names []string
	calls := map[string]int64{}
	for _, o := range r.Policies {
		names = append(names, o.Policy)
		calls[o.Policy] = o.StoreCalls
	}
	require.Equal(t, []string{"direct", "fixed 1", "fixed 5", "fixed 50", "ladder", "adaptive", "adaptive 1-100"}, names)
	require.Less(t, calls["adaptive"], calls["direct"])
	require.Less(t, calls["fixed 50"], calls["fixed 5"])
	require.EqualValues(t, 7, r.Traffic.Seed)
	require.Equal(t, 2, r.Traffic.Keys)
	for _, o := range r.Policies {
		require.Zero(t, o.Errors, "nothing disturbs virtual time")
	}

	again := tuned(t, invoke(t.Context(), strings.Fields(tiny+"-seed 7 -keys 2 -policies 50 -zipf 1.5 -format json")...))
	requireTuned(t, again)
	require.Len(t, again.Policies, 1)
}

// Requests for several tokens are admitted as whole ones, and fewer of them.
func TestTuneOfSeveralTokens(t *testing.T) {
	for _, n := range []int64{7, 500} {
		r := tuned(t, invoke(t.Context(), append(strings.Fields(tiny+"-seed 1 -keys 2 -format json -n"), fmt.Sprint(n))...))
		requireTuned(t, r)
		require.Equal(t, n, r.Traffic.Tokens)
		for _, o := range r.Policies {
			require.LessOrEqual(t, o.Admitted, 2*3*(500/n), "two keys, three windows: %s", o.Policy)
			require.Positive(t, o.Admitted, o.Policy)
		}
	}
	o := invoke(t.Context(), strings.Fields(tiny+"-n 7 -policies direct")...)
	require.Regexp(t, `^[0-9,]+ requests in 220ms for 1 key and 3 processes, 7 tokens each, `, o.stdout)
}

func TestTuneText(t *testing.T) {
	o := invoke(t.Context(), strings.Fields(tiny+"-policies direct,adaptive")...)
	require.Equal(t, exitOK, o.status, o.stderr)
	require.Empty(t, o.stderr)
	require.Regexp(t, `^[0-9,]+ requests in 220ms for 1 key and 3 processes, 1 token each, limit 500 per 100ms, on the embedded store, 100µs away\n`, o.stdout)
	require.Regexp(t, `(?m)^ +policy +calls +a request +waited +stranded +refused +needless +over +p99 +p50 +admitted\n +direct +[0-9,]+ .*\n +adaptive +[0-9,]+ `, o.stdout)
	require.Regexp(t, `(?m)^Recommended: (direct|adaptive)\n[A-Z].*`, o.stdout)
}

func TestTuneUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"tune -rate 0":                   "-rate",
		"tune -rate 1e6 -duration 1h":    "is more than 9,000,000 requests",
		"tune -rate 0.001 -duration 1ns": "no requests",
		"tune -processes 0":              "-processes",
		"tune -delay 90ms":               "-delay",
		"tune -sticky 0":                 "-sticky",
		"tune -policies adaptive:0-5":    "-policies",
		"tune -policies " + canary:       "-policies",
		"tune -policies direct,,ladder":  "-policies",
	} {
		o := invoke(t.Context(), strings.Fields(args)...)
		require.Equal(t, exitUsage, o.status, args)
		o.requireOneLine(t)
		require.Contains(t, o.stderr, want, args)
		require.NotContains(t, o.stderr+o.stdout, canary, args)
	}
}

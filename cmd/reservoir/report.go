package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// report is what a load did. The counts of tokens are the limiter's, taken after
// it was closed, so that taken + refunded == spent + returned + expired + held
// and held is 0; those of windows are the callers', by what they were told.
type report struct {
	Requests             int64   `json:"requests"`
	Allowed              int64   `json:"allowed"`
	Denied               int64   `json:"denied"`
	Errors               int64   `json:"errors"`
	Waited               int64   `json:"waited"` // calls that were answered over the network
	StoreCalls           int64   `json:"store_calls"`
	StoreCallsPerRequest float64 `json:"store_calls_per_request"`
	TokensTaken          int64   `json:"tokens_taken"`
	TokensSpent          int64   `json:"tokens_spent"`
	TokensReturned       int64   `json:"tokens_returned"`
	TokensExpired        int64   `json:"tokens_expired"`
	TokensRefunded       int64   `json:"tokens_refunded"`
	TokensHeld           int64   `json:"tokens_held"`
	TokensLate           int64   `json:"tokens_late"`    // allowed in a window that had ended, by this machine's clock
	TokensUnknown        int64   `json:"tokens_unknown"` // of direct calls that failed and may be charged for nothing
	Seconds              float64 `json:"seconds"`
	Seed                 uint64  `json:"seed"`
	FirstError           string  `json:"first_error,omitempty"`
	NotRun               string  `json:"not_run,omitempty"` // what was left out when it was interrupted

	Latency latency  `json:"latency_ns"`
	Windows []window `json:"windows"` // of the first windowKeys keys

	keys int // that the load was for
}

// latency is of the calls themselves, not of the schedule they kept.
type latency struct {
	P50  time.Duration `json:"p50"`
	P99  time.Duration `json:"p99"`
	P999 time.Duration `json:"p999"`
	Max  time.Duration `json:"max"`
}

// window is what this process spent in one window of one key.
type window struct {
	Key   string `json:"key"`
	Reset int64  `json:"reset_unix_ms"`
	Spent int64  `json:"spent"`
}

// newReport puts together what the callers saw and what the limiter counted.
func newReport(t *traffic, sum *tally, s reservoir.Stats) *report {
	r := &report{
		Requests: sum.requests, Allowed: sum.allowed, Denied: sum.denied, Errors: sum.errors,
		Waited: sum.waited, StoreCalls: s.StoreCalls, StoreCallsPerRequest: sim.Ratio(s.StoreCalls, sum.requests),
		TokensTaken: s.Taken, TokensSpent: s.Spent, TokensReturned: s.Returned, TokensExpired: s.Expired,
		TokensRefunded: s.Refunded, TokensHeld: s.Held, TokensLate: sum.late, TokensUnknown: s.Unknown,
		Seconds: sum.elapsed.Seconds(), Seed: t.seed,
		Latency: latencyOf(sum),
		Windows: windowsOf(t.keys, sum.windows), keys: len(t.keys),
	}
	if sum.failure != nil {
		r.FirstError = oneLine(sum.failure)
	}
	return r
}

// latencyOf rounds as the histogram does, but never to more than the slowest call.
func latencyOf(sum *tally) latency {
	at := func(percent float64) time.Duration {
		return min(time.Duration(sum.latency.ValueAtQuantile(percent)), sum.slowest)
	}
	return latency{P50: at(50), P99: at(99), P999: at(99.9), Max: sum.slowest}
}

// windowsOf lists the sums by key, then by reset. It is never nil, so that JSON
// has an empty list and no null.
func windowsOf(keys []string, spent map[windowOf]int64) []window {
	list := []window{}
	for w, n := range spent {
		list = append(list, window{keys[w.key], w.reset, n})
	}
	slices.SortFunc(list, func(a, b window) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Reset, b.Reset)) })
	return list
}

func (r *report) text(limit reservoir.Limit) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
	count := func(name string, n int64, note string) {
		line(name, "%15s   %8s   %s", table.Commas(n), percent(sim.Ratio(n, r.Requests)), note)
	}
	line("requests", "%15s   %s a second for %s", table.Commas(r.Requests), table.Commas(int64(float64(r.Requests)/max(r.Seconds, 1e-9))),
		short(time.Duration(r.Seconds*float64(time.Second))))
	count("allowed", r.Allowed, "")
	count("denied", r.Denied, "")
	count("errors", r.Errors, r.FirstError)
	count("waited", r.Waited, "on the network")
	count("store calls", r.StoreCalls, "")
	l := r.Latency
	line("latency", "p50 %v, p99 %v, p99.9 %v, max %v", short(l.P50), short(l.P99), short(l.P999), short(l.Max))
	line("tokens", "%s taken + %s refunded = %s spent + %s returned + %s expired + %s held", table.Commas(r.TokensTaken),
		table.Commas(r.TokensRefunded), table.Commas(r.TokensSpent), table.Commas(r.TokensReturned), table.Commas(r.TokensExpired), table.Commas(r.TokensHeld))
	if r.TokensLate > 0 {
		line("late", "%s tokens, by this machine's clock", table.Commas(r.TokensLate))
	}
	if n := len(r.Windows); n > 0 {
		of := ""
		if r.keys > windowKeys {
			of = fmt.Sprintf(" of the first %d keys", windowKeys)
		}
		fullest := slices.MaxFunc(r.Windows, func(a, b window) int { return cmp.Compare(a.Spent, b.Spent) })
		line("windows", "%s%s; the most spent here in one: %s of %s", table.Commas(int64(n)), of, table.Commas(fullest.Spent), table.Commas(limit.Tokens))
	}
	if r.NotRun != "" {
		line("stopped", "early: %s", r.NotRun)
	}
	return b.String()
}

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

// report is the result of a load. Each worker fills its own, so that counting is cheap:
// about 60 ns a call and two readings of the clock.
//
// The counts of tokens are the limiter's after Close, so that taken + refunded == spent +
// returned + expired + held, and held is 0. The counts of windows are the callers', from
// their results.
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
	TokensUnknown        int64   `json:"tokens_unknown"` // of failed direct calls that may have been charged
	Seconds              float64 `json:"seconds"`
	Seed                 uint64  `json:"seed"`
	FirstError           string  `json:"first_error,omitempty"`
	NotRun               string  `json:"not_run,omitempty"` // what an interruption left out

	// TokensLate counts tokens of requests that began after the end of their window, by
	// this machine's clock. It is 0 unless that clock is ahead of the store's, or a limit
	// was broken.
	TokensLate int64 `json:"tokens_late"`

	Latency latency  `json:"latency_ns"` // of the calls, without delays of the schedule
	Windows []window `json:"windows"`    // of the first windowKeys keys

	keys    int              // number of keys
	took    sim.Latency      // by each call
	spent   map[window]int64 // by window; Spent is 0 in the keys
	failure error            // the first
}

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

// windowKeys is the number of keys whose windows are recorded.
const windowKeys = 100

func newReport() *report { return &report{took: sim.NewLatency(), spent: make(map[window]int64)} }

// record counts one call; key is empty if its windows are not kept.
func (r *report) record(key string, n int64, res reservoir.Result, err error, begin time.Time, took time.Duration) {
	r.Requests++
	r.took.Note(took)
	r.Latency.Max = max(r.Latency.Max, took)
	switch {
	case err != nil:
		r.Errors++
		r.failure = cmp.Or(r.failure, err)
	case res.Allowed:
		r.Allowed++
		reset := res.Reset.UnixMilli()
		if begin.UnixMilli() > reset {
			r.TokensLate += n
		}
		if key != "" {
			r.spent[window{Key: key, Reset: reset}] += n
		}
	default:
		r.Denied++
	}
	if err == nil && res.Source.OnNetwork() { // an error may be immediate, while the circuit is open
		r.Waited++
	}
}

// merge adds what another worker saw.
func (r *report) merge(o *report) {
	r.Requests += o.Requests
	r.Allowed += o.Allowed
	r.Denied += o.Denied
	r.Errors += o.Errors
	r.Waited += o.Waited
	r.TokensLate += o.TokensLate
	r.Latency.Max = max(r.Latency.Max, o.Latency.Max)
	r.took.Merge(o.took.Histogram)
	r.failure = cmp.Or(r.failure, o.failure)
	for w, n := range o.spent {
		r.spent[w] += n
	}
}

// complete adds the limiter's counts and computes the totals. The slowest call bounds the
// quantiles, because the histogram rounds them.
func (r *report) complete(s reservoir.Stats) {
	r.StoreCalls, r.StoreCallsPerRequest = s.StoreCalls, sim.Ratio(s.StoreCalls, r.Requests)
	r.TokensTaken, r.TokensSpent, r.TokensReturned, r.TokensExpired = s.Taken, s.Spent, s.Returned, s.Expired
	r.TokensRefunded, r.TokensHeld, r.TokensUnknown = s.Refunded, s.Held, s.Unknown
	at := func(q float64) time.Duration { return min(r.took.Quantile(q), r.Latency.Max) }
	r.Latency.P50, r.Latency.P99, r.Latency.P999 = at(0.50), at(0.99), at(0.999)
	r.Windows = []window{} // an empty list in JSON, not null
	for w, n := range r.spent {
		r.Windows = append(r.Windows, window{w.Key, w.Reset, n})
	}
	slices.SortFunc(r.Windows, func(a, b window) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Reset, b.Reset)) })
	if r.failure != nil {
		r.FirstError = oneLine(r.failure)
	}
}

// verdict returns an error if the load did not run as asked.
func (r *report) verdict(closeErr error) error {
	switch {
	case r.Requests > 0 && r.Errors == r.Requests:
		return fmt.Errorf("every request failed, the first with: %s", oneLine(r.failure))
	case closeErr != nil:
		return fmt.Errorf("not all unused stock was returned: %s", oneLine(closeErr))
	}
	return nil
}

// most returns the most tokens that were spent in one window of a key.
func (r *report) most() (most int64) {
	for _, n := range r.spent {
		most = max(most, n)
	}
	return most
}

func (r *report) text(limit reservoir.Limit) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		b.WriteString(strings.TrimRight(fmt.Sprintf("%-12s "+format, append([]any{name}, args...)...), " ") + "\n")
	}
	line("requests", "%15s   %s a second for %s", table.Commas(r.Requests), table.Commas(int64(float64(r.Requests)/max(r.Seconds, 1e-9))),
		table.Duration(time.Duration(r.Seconds*float64(time.Second))))
	for _, c := range []struct {
		name string
		n    int64
		note string
	}{
		{"allowed", r.Allowed, ""}, {"denied", r.Denied, ""}, {"errors", r.Errors, r.FirstError},
		{"waited", r.Waited, "on the network"}, {"store calls", r.StoreCalls, ""},
	} {
		line(c.name, "%15s   %8s   %s", table.Commas(c.n), table.Percent(sim.Ratio(c.n, r.Requests)), c.note)
	}
	l := r.Latency
	line("latency", "p50 %v, p99 %v, p99.9 %v, max %v", table.Duration(l.P50), table.Duration(l.P99), table.Duration(l.P999), table.Duration(l.Max))
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
		line("windows", "%s%s; the most spent here in one: %s of %s", table.Commas(n), of, table.Commas(r.most()), table.Commas(limit.Tokens))
	}
	if r.NotRun != "" {
		line("stopped", "early: %s", r.NotRun)
	}
	return b.String()
}

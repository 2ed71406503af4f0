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

// report is what a load did. Each worker fills one of its own, so that counting costs
// no more than it must: about 60 ns a call and two readings of the clock.
//
// The counts of tokens are the limiter's, taken after it was closed, so that
// taken + refunded == spent + returned + expired + held and held is 0; those of windows
// are the callers', by what they were told.
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
	TokensUnknown        int64   `json:"tokens_unknown"` // of direct calls that failed and may be charged for nothing
	Seconds              float64 `json:"seconds"`
	Seed                 uint64  `json:"seed"`
	FirstError           string  `json:"first_error,omitempty"`
	NotRun               string  `json:"not_run,omitempty"` // what was left out when it was interrupted

	// TokensLate is the tokens of allowed requests whose window had ended before they
	// were even made, by this machine's clock: 0 unless that is ahead of the
	// store's, or a limit was broken.
	TokensLate int64 `json:"tokens_late"`

	Latency latency  `json:"latency_ns"` // of the calls themselves, not of the schedule they kept
	Windows []window `json:"windows"`    // of the first windowKeys keys

	keys    int              // that the load was for
	took    sim.Latency      // a call
	spent   map[window]int64 // by window, whose Spent is 0 here
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

// windowKeys is of how many keys windows are kept.
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
	if err == nil && res.Source.OnNetwork() { // an error may have come at once: nobody asks a store that is away
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

// complete adds what the limiter counted, and sums up. Quantiles are rounded as the
// histogram does, but never to more than the slowest call.
func (r *report) complete(s reservoir.Stats) {
	r.StoreCalls, r.StoreCallsPerRequest = s.StoreCalls, sim.Ratio(s.StoreCalls, r.Requests)
	r.TokensTaken, r.TokensSpent, r.TokensReturned, r.TokensExpired = s.Taken, s.Spent, s.Returned, s.Expired
	r.TokensRefunded, r.TokensHeld, r.TokensUnknown = s.Refunded, s.Held, s.Unknown
	at := func(q float64) time.Duration { return min(r.took.Quantile(q), r.Latency.Max) }
	r.Latency.P50, r.Latency.P99, r.Latency.P999 = at(0.50), at(0.99), at(0.999)
	r.Windows = []window{} // an empty list in JSON, and no null
	for w, n := range r.spent {
		r.Windows = append(r.Windows, window{w.Key, w.Reset, n})
	}
	slices.SortFunc(r.Windows, func(a, b window) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Reset, b.Reset)) })
	if r.failure != nil {
		r.FirstError = oneLine(r.failure)
	}
}

// verdict is the error of a load that did not run as asked.
func (r *report) verdict(closeErr error) error {
	switch {
	case r.Requests > 0 && r.Errors == r.Requests:
		return fmt.Errorf("every request failed, the first with: %s", oneLine(r.failure))
	case closeErr != nil:
		return fmt.Errorf("unused stock was not all handed back: %s", oneLine(closeErr))
	}
	return nil
}

// most is the most that was spent in one window of a key.
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
		short(time.Duration(r.Seconds*float64(time.Second))))
	for _, c := range []struct {
		name string
		n    int64
		note string
	}{
		{"allowed", r.Allowed, ""}, {"denied", r.Denied, ""}, {"errors", r.Errors, r.FirstError},
		{"waited", r.Waited, "on the network"}, {"store calls", r.StoreCalls, ""},
	} {
		line(c.name, "%15s   %8s   %s", table.Commas(c.n), percent(sim.Ratio(c.n, r.Requests)), c.note)
	}
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
		line("windows", "%s%s; the most spent here in one: %s of %s", table.Commas(int64(n)), of, table.Commas(r.most()), table.Commas(limit.Tokens))
	}
	if r.NotRun != "" {
		line("stopped", "early: %s", r.NotRun)
	}
	return b.String()
}

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// report is the result of a load. Each worker fills its own, so that counting is cheap.
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

	Latency   latency  `json:"latency_ns"` // of the calls, without delays of the schedule
	Windows   []window `json:"windows"`    // of the first WindowsOf keys
	Keys      int      `json:"keys"`
	WindowsOf int      `json:"windows_of_keys"`

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

const windowKeys = 100 // whose windows are recorded

func newReport() *report { return &report{took: sim.NewLatency(), spent: make(map[window]int64)} }

// record counts one call; key is empty if its windows are not kept.
func (r *report) record(key string, n int64, res reservoir.Result, err error, begin time.Time, took time.Duration) {
	r.Requests++
	r.took.Note(took)
	switch {
	case err != nil:
		r.Errors++
		r.failure = cmp.Or(r.failure, err)
		return // it may have been immediate, while the circuit is open
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
	if res.Source.OnNetwork() {
		r.Waited++
	}
}

func (r *report) merge(o *report) {
	r.Requests += o.Requests
	r.Allowed += o.Allowed
	r.Denied += o.Denied
	r.Errors += o.Errors
	r.Waited += o.Waited
	r.TokensLate += o.TokensLate
	r.took.Merge(o.took.Histogram)
	r.failure = cmp.Or(r.failure, o.failure)
	for w, n := range o.spent {
		r.spent[w] += n
	}
}

// complete adds the limiter's counts and computes the totals.
func (r *report) complete(s reservoir.Stats) {
	r.StoreCalls, r.StoreCallsPerRequest = s.StoreCalls, sim.Ratio(s.StoreCalls, r.Requests)
	r.TokensTaken, r.TokensSpent, r.TokensReturned, r.TokensExpired = s.Taken, s.Spent, s.Returned, s.Expired
	r.TokensRefunded, r.TokensHeld, r.TokensUnknown = s.Refunded, s.Held, s.Unknown
	r.Latency = latency{r.took.Quantile(0.50), r.took.Quantile(0.99), r.took.Quantile(0.999), r.took.Quantile(1)}
	r.Windows = []window{} // an empty list in JSON, not null
	for w, n := range r.spent {
		r.Windows = append(r.Windows, window{w.Key, w.Reset, n})
	}
	slices.SortFunc(r.Windows, func(a, b window) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Reset, b.Reset)) })
	if r.failure != nil {
		r.FirstError = oneLine(r.failure)
	}
}

func (r *report) text(limit reservoir.Limit) string {
	l, n := r.Latency, table.Commas[int64]
	of := func(count int64) string {
		return fmt.Sprintf("%15s   %8s", n(count), table.Percent(sim.Ratio(count, r.Requests)))
	}
	s := fmt.Sprintf(`requests     %15s   %s a second for %s
allowed      %s
denied       %s
errors       %s
waited       %s   for the store
store calls  %s
latency      p50 %v, p99 %v, p99.9 %v, max %v
tokens       %s taken + %s refunded = %s spent + %s returned + %s expired + %s held
`,
		n(r.Requests), n(int64(float64(r.Requests)/max(r.Seconds, 1e-9))),
		table.Duration(time.Duration(r.Seconds*float64(time.Second))),
		of(r.Allowed), of(r.Denied), strings.TrimRight(of(r.Errors)+"   "+r.FirstError, " "), of(r.Waited), of(r.StoreCalls),
		table.Duration(l.P50), table.Duration(l.P99), table.Duration(l.P999), table.Duration(l.Max),
		n(r.TokensTaken), n(r.TokensRefunded), n(r.TokensSpent), n(r.TokensReturned), n(r.TokensExpired), n(r.TokensHeld))
	if r.TokensLate > 0 {
		s += fmt.Sprintf("late         %s tokens, by this machine's clock\n", n(r.TokensLate))
	}
	if len(r.Windows) > 0 {
		of := ""
		if r.Keys > r.WindowsOf {
			of = fmt.Sprintf(" of the first %d keys", r.WindowsOf)
		}
		most := slices.Max(slices.Collect(maps.Values(r.spent)))
		s += fmt.Sprintf("windows      %s%s; the most spent here in one: %s of %s\n",
			table.Commas(len(r.Windows)), of, n(most), n(limit.Tokens))
	}
	if r.NotRun != "" {
		s += "stopped      early: " + r.NotRun + "\n"
	}
	return s
}

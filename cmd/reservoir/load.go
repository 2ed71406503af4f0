package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

type load struct {
	common
	traffic
	limit      reservoir.Limit
	key, batch string
	sizing     reservoir.Option
}

const loadAbout = `Drives a limiter against a store and reports what it did and what that cost. To
measure your Redis give -store: without it the store is in this process, and no
call crosses a network. It ends after -duration or -requests, whichever is first,
or on SIGINT or SIGTERM. Then it returns unused stock and reports which calls were
not made. It does nothing if no store answers at the start. The latency of each
call includes a reading of the clock. The report has the windows of the first 100
keys only.`

// Bounds of flags, so that a typing error does not fill the memory.
const (
	maxKeys    = 10_000_000
	maxWorkers = 10_000
	minRate    = 0.001
)

func loadFlags(f *flagSet) action {
	c := new(load)
	f.commonFlags(&c.common)
	f.demandFlags(&c.Shape, &c.limit)
	f.StringVar(&c.batch, "batch", "adaptive", "`how` many tokens a key fetches at a time: a policy of tune, such as adaptive,\n"+
		"direct (exactly what callers ask for), ladder (Rockset's rule), or a fixed number")
	f.IntVar(&c.workers, "workers", 8, "callers at a time")
	f.Float64Var(&c.Rate, "rate", 0, "calls per second over all workers; late calls are made up for; 0 = as fast as possible")
	f.Int64Var(&c.requests, "requests", 0, "end after this many calls; 0 = only by -duration")
	f.DurationVar(&c.Length, "duration", 10*time.Second, "end after this long; the default applies only without -requests")
	f.StringVar(&c.key, "key", "", "use one key of this `name` instead of -keys")
	f.validate = func() error { return c.validate(f) }
	return c.do
}

func (c *load) validate(f *flagSet) error {
	if err := cmp.Or(validDemand(&c.Shape, c.limit, maxKeys), kept(
		rule{c.prefix == "" || c.store != memory, "prefix", "none, because the -store is no Redis"},
		rule{!f.given("key") || !f.given("keys"), "", "want -key or -keys, not both"},
		rule{c.workers >= 1 && c.workers <= maxWorkers, "workers", upTo(maxWorkers)},
		rule{c.Rate == 0 || c.Rate >= minRate && !math.IsInf(c.Rate, 0), "rate", fmt.Sprintf("0, or %v calls a second or more", minRate)},
		rule{c.requests >= 0, "requests", "0 or more"},
	)); err != nil {
		return err
	}
	if c.requests > 0 && !f.given("duration") {
		c.Length = 0
	}
	if c.keys = []string{c.key}; !f.given("key") {
		c.keys = sim.Keys(c.Keys)
	}
	policies, err := sim.Policies([]string{c.batch}, c.limit.Tokens)
	if err != nil || len(policies) != 1 {
		return usagef("bad value for flag -batch: want a policy such as adaptive, direct or ladder, or a number of tokens")
	}
	c.sizing = policies[0].Option
	return judged("key", backend.ValidateKey(c.keys[0])) // generated keys are all alike
}

func (c *load) do(ctx context.Context, stdout io.Writer) error {
	store, err := open(c.store, c.prefix, c.workers)
	if err != nil {
		return err
	}
	defer store.close()
	if err := store.reach(ctx, c.keys[0], c.limit); err != nil {
		return err
	}
	l, err := reservoir.New(store.Store, c.limit, c.sizing, reservoir.WithMaxKeys(max(1<<20, len(c.keys))))
	if err != nil {
		return err
	}
	r, fault := c.drive(ctx, l)
	r.Store = store.name
	return errors.Join(emit(stdout, c.json, r, r.text(c.limit)), fault)
}

// traffic describes the calls of a load.
//
// The workers share nothing while they run. Worker i of w makes calls i, i+w, i+2w … With
// a rate, call n is due n/rate after the start, and a worker makes up for late calls (the
// process was stopped, the worker waited), so that the rate is right over time.
type traffic struct {
	sim.Shape // Rate 0 = as fast as possible; Length 0 = until all requests are made
	keys      []string
	workers   int   // callers at a time
	requests  int64 // calls in all; 0 = until the time is over
}

// drive makes the calls, closes the limiter and returns the report. The error says whether
// the load did not run as asked.
func (t *traffic) drive(ctx context.Context, l *reservoir.Limiter) (*report, error) {
	r := t.run(ctx, l)
	if ctx.Err() != nil {
		r.NotRun = t.notRun(r)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // for all keys together
	defer cancel()
	err := l.Close(ctx)
	r.complete(l.Stats())
	switch {
	case r.Requests > 0 && r.Errors == r.Requests:
		err = fmt.Errorf("every request failed, the first with: %s", r.FirstError)
	case err != nil:
		err = fmt.Errorf("not all unused stock was returned: %s", oneLine(err))
	}
	return r, err
}

func (t *traffic) notRun(r *report) string {
	if t.requests > 0 {
		return fmt.Sprintf("%s of %s calls were not made", table.Commas(t.requests-r.Requests), table.Commas(t.requests))
	}
	left := max(t.Length-time.Duration(r.Seconds*float64(time.Second)), 0)
	return fmt.Sprintf("%v of %v were not run", left.Round(time.Millisecond), t.Length)
}

// run makes the calls until all are made or the time is over. A call in flight then still
// gets its decision, within the fetch timeout.
func (t *traffic) run(ctx context.Context, l *reservoir.Limiter) *report {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(t.Length, math.MaxInt64))
	defer cancel()
	start, all := time.Now(), newReport()
	all.Seed = t.Seed
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range t.workers {
		wg.Go(func() {
			r := t.work(ctx, l, i, start)
			mu.Lock()
			defer mu.Unlock()
			all.merge(r)
		})
	}
	wg.Wait()
	all.Seconds = time.Since(start).Seconds()
	return all
}

// work makes one call at a time.
func (t *traffic) work(ctx context.Context, l *reservoir.Limiter, worker int, start time.Time) *report {
	r, pick := newReport(), sim.Picker(rand.New(rand.NewPCG(t.Seed, uint64(worker))), len(t.keys), t.Zipf)
	for n := int64(worker); t.requests == 0 || n < t.requests; n += int64(t.workers) {
		if t.Rate > 0 {
			wait(ctx, start.Add(time.Duration(float64(n)/t.Rate*float64(time.Second))))
		}
		if ctx.Err() != nil {
			break
		}
		i, begin := pick(), time.Now()
		result, err := l.AllowN(context.Background(), t.keys[i], t.Tokens)
		key := ""
		if i < windowKeys { // the windows of others are not kept
			key = t.keys[i]
		}
		r.record(key, t.Tokens, result, err, begin, time.Since(begin))
	}
	return r
}

// wait waits for an instant, or until ctx ends.
func wait(ctx context.Context, at time.Time) {
	if d := time.Until(at); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
	}
}

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
	Store                string  `json:"store"`             // its address, or memory

	// TokensLate counts tokens of requests that began after the end of their window, by
	// this machine's clock. It is 0 unless that clock is ahead of the store's, or a limit
	// was broken.
	TokensLate int64 `json:"tokens_late"`

	Latency latency  `json:"latency_ns"` // of the calls, without delays of the schedule
	Windows []window `json:"windows"`    // of the first windowKeys keys

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

// record counts one call; the name of the key is empty if its windows are not kept.
func (r *report) record(name string, n int64, res reservoir.Result, err error, begin time.Time, took time.Duration) {
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
		if name != "" {
			r.spent[window{Key: name, Reset: reset}] += n
		}
	default:
		r.Denied++
	}
	if res.Source == reservoir.Fetched || res.Source == reservoir.Direct {
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
	if r.Store == memory {
		s += "store        in this process, with no network: -store redis://host measures a Redis\n"
	}
	if r.TokensLate > 0 {
		s += fmt.Sprintf("late         %s tokens, by this machine's clock\n", n(r.TokensLate))
	}
	if len(r.Windows) > 0 {
		most := slices.Max(slices.Collect(maps.Values(r.spent)))
		s += fmt.Sprintf("windows      %s; the most spent here in one: %s of %s\n", table.Commas(len(r.Windows)), n(most), n(limit.Tokens))
	}
	if r.NotRun != "" {
		s += "stopped      early: " + r.NotRun + "\n"
	}
	return s
}

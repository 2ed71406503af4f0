package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// load holds the flags of "reservoir load".
type load struct {
	common
	traffic
	limit reservoir.Limit
	batch string
}

const loadAbout = `Drives a limiter against a store and reports what it did and what that cost. It
ends after -duration or -requests, whichever is first, or on SIGINT or SIGTERM.
Then it returns unused stock and reports which calls were not made. It does nothing
if no store answers at the start. The latency of each call is measured by two
readings of the clock (50 ns). The report has the windows of the first 100 keys only.`

// Bounds of flags, so that a typing error does not fill the memory.
const (
	maxKeys    = 10_000_000
	maxWorkers = 10_000
	minRate    = 0.001
)

// parseLoad reads and validates the flags, except what the library checks.
func parseLoad(args []string, stdout io.Writer) (*load, error) {
	c := new(load)
	f := newFlags("load [flags]", loadAbout)
	f.commonFlags(&c.common)
	f.demandFlags(&c.Shape, &c.limit)
	f.StringVar(&c.batch, "batch", string(sim.Adaptive), "`how` many tokens a key fetches at a time: a policy of tune, such as adaptive,\n"+
		"direct (a call for each request), ladder (Rockset's rule), or a fixed number")
	f.IntVar(&c.workers, "workers", 8, "callers at a time")
	f.Float64Var(&c.Rate, "rate", 0, "calls per second over all workers; late calls are made up for; 0 = as fast as possible")
	f.Int64Var(&c.requests, "requests", 0, "end after this many calls; 0 = only by -duration")
	f.DurationVar(&c.Length, "duration", 10*time.Second, "end after this long; the default applies only without -requests")
	key := f.String("key", "", "use one key of this `name` instead of -keys")
	if err := f.parse(args, 0, stdout); err != nil {
		return nil, err
	}
	if f.given("key") && f.given("keys") {
		return nil, usagef("want -key or -keys, not both")
	}
	if err := cmp.Or(demand(&c.Shape, c.limit, maxKeys), kept(
		rule{c.workers >= 1 && c.workers <= maxWorkers, "workers", upTo(maxWorkers)},
		rule{c.Rate == 0 || c.Rate >= minRate && !math.IsInf(c.Rate, 0), "rate", fmt.Sprintf("0, or %v calls a second or more", minRate)},
		rule{c.requests >= 0, "requests", "0 or more"},
	)); err != nil {
		return nil, err
	}
	if c.requests > 0 && !f.given("duration") {
		c.Length = 0
	}
	c.keys = []string{*key}
	if !f.given("key") {
		c.keys = sim.Keys(c.Keys)
	}
	return c, nil
}

// limiter opens the store and a limiter on it. It does no I/O, so an error is a usage
// error.
func (c *load) limiter() (*reservoir.Limiter, *opened, error) {
	if err := backend.ValidateKey(c.keys[0]); err != nil { // generated keys are all alike
		return nil, nil, usagef("bad value for flag -key: %s", oneLine(err))
	}
	policies, err := sim.Policies([]string{c.batch}, c.limit.Tokens)
	if err != nil || len(policies) != 1 {
		return nil, nil, usagef("bad value for flag -batch: want adaptive, direct, ladder or a number of tokens")
	}
	store, err := open(c.stores, c.prefix, c.workers)
	if err != nil {
		return nil, nil, err
	}
	l, err := reservoir.New(store.Store, c.limit, policies[0].Option, reservoir.WithMaxKeys(max(1<<20, len(c.keys))))
	if err != nil {
		return nil, nil, errors.Join(usagef("%s", oneLine(err)), store.Close())
	}
	return l, store, nil
}

// runLoad is "reservoir load".
func runLoad(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parseLoad(args, stdout)
	if err != nil {
		return err
	}
	l, store, err := c.limiter()
	if err != nil {
		return err
	}
	defer store.Close()
	defer l.Close(ctx) // for the early return; drive closes it, too
	if err := store.reach(ctx, c.keys[0], c.limit); err != nil {
		return err
	}
	whole := ctx
	if c.Length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Length)
		defer cancel()
	}
	r, fault := c.drive(ctx, l, "load", stderr)
	if whole.Err() != nil {
		r.NotRun = c.notRun(r)
	}
	return errors.Join(emit(stdout, c.json, r, func(int) string { return r.text(c.limit) }), fault)
}

// notRun says what an interrupted load left out.
func (c *load) notRun(r *report) string {
	if c.requests > 0 {
		return fmt.Sprintf("%s of %s calls were not made", table.Commas(c.requests-r.Requests), table.Commas(c.requests))
	}
	left := max(c.Length-time.Duration(r.Seconds*float64(time.Second)), 0)
	return fmt.Sprintf("%v of %v were not run", left.Round(time.Millisecond), c.Length)
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
	requests  int64 // calls in all; 0 = until the context ends
}

// closeTimeout bounds the return of stock, for all keys together.
const closeTimeout = 10 * time.Second

// drive makes the calls, closes the limiter and returns the report. It shows progress
// from the limiter's counts, so that the workers need not share theirs. The error says
// whether the load did not run as asked.
func (t *traffic) drive(ctx context.Context, l *reservoir.Limiter, name string, progress io.Writer) (*report, error) {
	over := follow(progress, t.requests, func() (int64, string) {
		s := l.Stats()
		done := s.Spent + s.Denied + s.Failed
		return done, fmt.Sprintf("%s: %s requests, %s store calls", name, table.Commas(done), table.Commas(s.StoreCalls))
	})
	r := t.run(ctx, l)
	over()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := l.Close(ctx)
	r.complete(l.Stats())
	return r, r.verdict(err)
}

// run makes the calls until all are made or ctx ends. A call in flight when ctx ends
// still gets its decision, within the fetch timeout.
func (t *traffic) run(ctx context.Context, l *reservoir.Limiter) *report {
	start := time.Now()
	all := make([]*report, t.workers)
	var wg sync.WaitGroup
	for i := range all {
		all[i] = newReport()
		wg.Go(func() { t.work(ctx, l, i, start, all[i]) })
	}
	wg.Wait()
	for _, other := range all[1:] {
		all[0].merge(other)
	}
	all[0].Seconds, all[0].Seed, all[0].keys = time.Since(start).Seconds(), t.Seed, len(t.keys)
	return all[0]
}

// work makes one call at a time.
func (t *traffic) work(ctx context.Context, l *reservoir.Limiter, i int, start time.Time, r *report) {
	pick := sim.Picker(rand.New(rand.NewPCG(t.Seed, uint64(i))), len(t.keys), t.Zipf)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := int64(i); t.requests == 0 || n < t.requests; n += int64(t.workers) {
		if t.Rate > 0 {
			due := start.Add(time.Duration(float64(n) / t.Rate * float64(time.Second)))
			timer.Reset(max(time.Until(due), 0))
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return
		}
		i := pick()
		key := t.keys[i]
		begin := time.Now()
		result, err := l.AllowN(context.Background(), key, t.Tokens)
		if i >= windowKeys {
			key = "" // its windows are not kept
		}
		r.record(key, t.Tokens, result, err, begin, time.Since(begin))
	}
}

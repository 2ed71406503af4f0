package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
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

const loadAbout = `Drives a limiter against a store and reports what it did and what that cost. It
ends after -duration or -requests, whichever is first, or on SIGINT or SIGTERM.
Then it returns unused stock and reports which calls were not made. It does nothing
if no store answers at the start. The latency of each call includes a
reading of the clock. The report has the windows of the first 100 keys only.`

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
		"direct (a call for each request), ladder (Rockset's rule), or a fixed number")
	f.IntVar(&c.workers, "workers", 8, "callers at a time")
	f.Float64Var(&c.Rate, "rate", 0, "calls per second over all workers; late calls are made up for; 0 = as fast as possible")
	f.Int64Var(&c.requests, "requests", 0, "end after this many calls; 0 = only by -duration")
	f.DurationVar(&c.Length, "duration", 10*time.Second, "end after this long; the default applies only without -requests")
	f.StringVar(&c.key, "key", "", "use one key of this `name` instead of -keys")
	f.validate = func() error { return c.validate(f) }
	return c.do
}

func (c *load) validate(f *flagSet) error {
	if f.given("key") && f.given("keys") {
		return usagef("want -key or -keys, not both")
	}
	if err := cmp.Or(c.demand(&c.Shape, c.limit, maxKeys), kept(
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

func (c *load) do(ctx context.Context, stdout, stderr io.Writer) error {
	store, err := open(c.stores, c.prefix, c.workers)
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
	r, fault := c.drive(ctx, l, "load", stderr)
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
	all.Seed, all.Keys, all.WindowsOf = t.Seed, len(t.keys), min(len(t.keys), windowKeys)
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
			sim.Wait(ctx, start.Add(time.Duration(float64(n)/t.Rate*float64(time.Second))))
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

const demoAbout = `250,000 requests a second ask for one key, whose limit is 40,000 in half a second:
first with batches of tokens, then with a store call for each request. The
embedded store stands in for Redis, so there is nothing to install.`

const demoRate = 250_000 // calls per second, three times the limit

var demoLimit = reservoir.Limit{Tokens: 40_000, Window: 500 * time.Millisecond}

func demoFlags(f *flagSet) action {
	duration := f.Duration("duration", 4*time.Second, "length of both runs together")
	f.validate = func() error {
		return kept(rule{*duration >= 10*time.Millisecond && *duration <= time.Hour, "duration", "10ms to 1h"})
	}
	return func(ctx context.Context, stdout, _ io.Writer) error {
		return demo(ctx, int64(duration.Seconds()/2*demoRate), stdout)
	}
}

func demo(ctx context.Context, requests int64, stdout io.Writer) error {
	intro := table.Wrap(demoAbout, widthOf(stdout)) + "\n\n"
	t := &traffic{sim.Shape{Rate: demoRate, Tokens: 1}, []string{"home page"}, 8, requests}
	for i, sizing := range []reservoir.Option{reservoir.WithBatch(reservoir.Adaptive(1, 0)), reservoir.WithDirect()} {
		title := []string{"with batches", "without batches"}[i]
		l, err := reservoir.New(memstore.New(), demoLimit, sizing, reservoir.WithFetchTimeout(time.Second)) // a busy machine is no outage
		if err != nil {
			return err
		}
		r, fault := t.drive(ctx, l, title, stdout)
		if slices.ContainsFunc(r.Windows, func(w window) bool { return w.Spent > demoLimit.Tokens }) {
			fault = errors.New("a window went over its limit")
		}
		if err := cmp.Or(write(stdout, intro+title+"\n"+r.text(demoLimit)+"\n"), fault); err != nil {
			return err
		}
		intro = ""
	}
	if ctx.Err() != nil {
		return nil // the reports say that they are of a part
	}
	return write(stdout, "The store charges tokens in batches before any is spent, and requests spend them\n"+
		"from memory. So almost no request waits for the store, and no window goes over\nits limit. Refusals come from memory in both runs.\n")
}

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

// load is what the flags of "reservoir load" say.
type load struct {
	common
	traffic
	limit reservoir.Limit
	batch string
}

const loadAbout = `Drives a limiter against a store and reports, on standard output, what it did
and what that cost. It ends after -duration or -requests, whichever is first, or
on SIGINT or SIGTERM: unused stock is handed back then, and the report is complete
and tells what was not made. If no store answers at the beginning nothing is done.
Latency is of each call, by two readings of the clock (50 ns) around it.
What was spent in each window is told of the first 100 keys only.`

// Bounds on what one process is asked for, so that a slip of the finger does not
// fill its memory.
const (
	maxKeys    = 10_000_000
	maxWorkers = 10_000
	minRate    = 0.001
)

// parseLoad reads and judges the flags. What the library checks by itself, it is left to.
func parseLoad(args []string, stdout io.Writer) (*load, error) {
	c := new(load)
	f := newFlags("load [flags]", loadAbout)
	f.commonFlags(&c.common)
	f.demandFlags(&c.Shape, &c.limit)
	f.StringVar(&c.batch, "batch", string(sim.Adaptive), "`how` many tokens a key fetches at a time: a policy as of tune, as adaptive, direct\n"+
		"(none: a call each), ladder (Rockset's rule), or a fixed number")
	f.IntVar(&c.workers, "workers", 8, "callers at a time")
	f.Float64Var(&c.Rate, "rate", 0, "calls per second over all workers, late ones made up for; 0 = as fast as they can")
	f.Int64Var(&c.requests, "requests", 0, "end after so many calls; 0 = only by -duration")
	f.DurationVar(&c.Length, "duration", 10*time.Second, "end after so long; by default only where there is no -requests")
	key := f.String("key", "", "one key of this `name` instead")
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

// limiter opens the store and a limiter on it. Neither does any I/O, so what goes
// wrong here was asked for wrongly.
func (c *load) limiter() (*reservoir.Limiter, *opened, error) {
	if err := backend.ValidateKey(c.keys[0]); err != nil { // the others are like it
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
	defer l.Close(ctx) // if nothing was done; drive closes it before
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

// notRun is what an interrupted load has left out.
func (c *load) notRun(r *report) string {
	if c.requests > 0 {
		return fmt.Sprintf("%s of %s calls were not made", table.Commas(c.requests-r.Requests), table.Commas(c.requests))
	}
	return fmt.Sprintf("%s of %s were not run", short(max(c.Length-time.Duration(r.Seconds*float64(time.Second)), 0)), short(c.Length))
}

// traffic is a load: who calls, for what, and how often.
//
// The workers share nothing while it runs. Worker i of w makes calls i, i+w, i+2w …;
// if it is paced, call n is due n/rate after the start, and calls that are late (the
// process was stopped, the worker waited) are made up for. So the rate is right over time.
type traffic struct {
	sim.Shape // a Rate of 0 = as fast as they can; a Length of 0 = until the requests are made
	keys      []string
	workers   int   // callers at a time
	requests  int64 // calls in all; 0 = until the context ends
}

// closeTimeout bounds the handing back of stock, over all keys.
const closeTimeout = 10 * time.Second

// drive makes the calls and closes the limiter. They are followed by its counts, so that the
// callers need not share theirs. It is an error if they did not run as asked.
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

// run makes the calls until there are enough of them or ctx ends. A call under
// way when ctx ends runs to its decision, which the fetch timeout bounds.
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

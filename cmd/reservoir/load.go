package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// load is what the flags of "reservoir load" say.
type load struct {
	traffic
	stores   []string
	prefix   string
	limit    reservoir.Limit
	batch    string
	duration time.Duration // 0 = until the requests are made
	json     bool
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
	stores, prefix := f.storeFlags()
	d := f.demandFlags()
	f.StringVar(&c.batch, "batch", string(sim.Adaptive), "`how` many tokens a key fetches at a time: a policy as of tune, as adaptive, direct\n"+
		"(none: a call each), ladder (Rockset's rule), or a fixed number")
	f.IntVar(&c.workers, "workers", 8, "callers at a time")
	f.Float64Var(&c.rate, "rate", 0, "calls per second over all workers, late ones made up for; 0 = as fast as they can")
	f.Int64Var(&c.requests, "requests", 0, "end after so many calls; 0 = only by -duration")
	f.DurationVar(&c.duration, "duration", 10*time.Second, "end after so long; by default only where there is no -requests")
	key := f.String("key", "", "one key of this `name` instead")
	asJSON := f.formatFlag()
	if err := f.parse(args, 0, stdout); err != nil {
		return nil, err
	}
	if f.given("key") && f.given("keys") {
		return nil, usagef("want -key or -keys, not both")
	}
	if err := cmp.Or(d.validate(maxKeys), kept(
		rule{c.workers >= 1 && c.workers <= maxWorkers, "workers", upTo(maxWorkers)},
		rule{c.rate == 0 || c.rate >= minRate && !math.IsInf(c.rate, 0), "rate", fmt.Sprintf("0, or %v calls a second or more", minRate)},
		rule{c.requests >= 0, "requests", "0 or more"},
		rule{c.duration > 0, "duration", "more than 0"},
	)); err != nil {
		return nil, err
	}
	if c.requests > 0 && !f.given("duration") {
		c.duration = 0
	}
	c.limit, c.zipf, c.tokens, c.seed = d.limit, d.zipf, d.tokens, cmp.Or(d.seed, rand.Uint64())
	c.stores, c.prefix, c.json, c.keys = *stores, *prefix, *asJSON, []string{*key}
	if !f.given("key") {
		c.keys = sim.Keys(d.keys)
	}
	if len(c.stores) == 0 {
		c.stores = []string{memory}
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
		_ = store.Close()
		return nil, nil, usagef("%s", oneLine(err))
	}
	return l, store, nil
}

// closeTimeout bounds the handing back of stock, over all keys.
const closeTimeout = 10 * time.Second

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
	defer l.Close(ctx) // if nothing was done; at its end it was closed before
	if err := store.reach(ctx, c.keys[0], c.limit); err != nil {
		return err
	}
	whole := ctx
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration)
		defer cancel()
	}
	done := followLimiter(stderr, c.requests, "load", l)
	r := c.run(ctx, l)
	done()
	closeCtx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	closeErr := l.Close(closeCtx)
	r.complete(l.Stats())
	if whole.Err() != nil {
		r.NotRun = c.notRun(r)
	}
	print := func(int) string { return r.text(c.limit) }
	return errors.Join(emit(stdout, c.json, r, print), r.verdict(closeErr))
}

// notRun is what an interrupted load has left out.
func (c *load) notRun(r *report) string {
	if c.requests > 0 {
		return fmt.Sprintf("%s of %s calls were not made", table.Commas(c.requests-r.Requests), table.Commas(c.requests))
	}
	return fmt.Sprintf("%s of %s were not run", short(max(c.duration-time.Duration(r.Seconds*float64(time.Second)), 0)), short(c.duration))
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
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
on SIGINT or SIGTERM: unused stock is handed back then, and the report is complete.
Latency is of each call, by two readings of the clock (50 ns) around it.
What was spent in each window is told of the first 100 keys only.`

// define adds the flags that say what is in c as it is.
func (c *load) define(f *flagSet) {
	f.Int64Var(&c.limit.Tokens, "limit", 10_000, "tokens per window and key")
	f.DurationVar(&c.limit.Window, "window", time.Second, "length of a window")
	f.StringVar(&c.batch, "batch", "auto", "`how` many tokens a key fetches at a time: auto, direct (none: a call each),\n"+
		"ladder (Rockset's rule, from 10 to a tenth of the limit), or a fixed number")
	f.Float64Var(&c.zipf, "zipf", 0, "`exponent`, above 1, by which the first keys are called for more often; 0 = evenly")
	f.IntVar(&c.workers, "workers", 8, "callers at a time")
	f.Int64Var(&c.tokens, "n", 1, "tokens a call asks for")
	f.Float64Var(&c.rate, "rate", 0, "calls per second over all workers, late ones made up for; 0 = as fast as they can")
	f.Int64Var(&c.requests, "requests", 0, "end after so many calls; 0 = only by -duration")
	f.DurationVar(&c.duration, "duration", 10*time.Second, "end after so long; by default only where there is no -requests")
	f.DurationVar(&c.think, "think", 0, "pause between the calls of a worker")
	f.Uint64Var(&c.seed, "seed", 0, "of the choice of keys; 0 = another each time, which the JSON report tells")
}

// parseLoad reads and judges the flags.
func parseLoad(args []string, stdout io.Writer) (*load, error) {
	c := new(load)
	f := newFlags("load [flags]", loadAbout)
	stores, prefix := f.storeFlags()
	c.define(f)
	keys := f.Int("keys", 1, "how many keys: key-0, key-1, …")
	key := f.String("key", "", "one key of this `name` instead")
	format := f.formatFlag()
	if err := f.parse(args, 0, stdout); err != nil {
		return nil, err
	}
	var err error
	if c.json, err = format(); err != nil {
		return nil, err
	}
	if f.given("key") && f.given("keys") {
		return nil, usagef("want -key or -keys, not both")
	}
	if err := c.validate(*keys); err != nil {
		return nil, err
	}
	if c.requests > 0 && !f.given("duration") {
		c.duration = 0
	}
	if c.seed == 0 {
		c.seed = rand.Uint64()
	}
	c.stores, c.prefix, c.keys = *stores, *prefix, []string{*key}
	if !f.given("key") {
		c.keys = sim.Keys(*keys)
	}
	if len(c.stores) == 0 {
		c.stores = []string{"memory"}
	}
	return c, nil
}

// Bounds on what one process is asked for, so that a slip of the finger does not
// fill its memory.
const (
	maxKeys    = 10_000_000
	maxWorkers = 10_000
	minRate    = 0.001
)

// validate names the first flag whose value makes no sense. What the library
// checks by itself, it is left to.
func (c *load) validate(keys int) error {
	switch {
	case keys < 1 || keys > maxKeys:
		return usagef("bad value for flag -keys: want 1 to %s", table.Commas(maxKeys))
	case c.workers < 1 || c.workers > maxWorkers:
		return usagef("bad value for flag -workers: want 1 to %s", table.Commas(maxWorkers))
	case c.zipf != 0 && !(c.zipf > 1 && c.zipf <= 100):
		return usagef("bad value for flag -zipf: want 0, or above 1")
	case c.rate != 0 && !(c.rate >= minRate && !math.IsInf(c.rate, 0)):
		return usagef("bad value for flag -rate: want 0, or %v calls a second or more", minRate)
	case c.requests < 0:
		return usagef("bad value for flag -requests: want 0 or more")
	case c.duration <= 0:
		return usagef("bad value for flag -duration: want more than 0")
	case c.think < 0:
		return usagef("bad value for flag -think: want 0 or more")
	case c.tokens < 1:
		return usagef("bad value for flag -n: want 1 or more")
	case c.limit.Validate() == nil && c.tokens > c.limit.Tokens:
		return usagef("bad value for flag -n: no call for more than the limit of %s tokens could be allowed", table.Commas(c.limit.Tokens))
	}
	return nil
}

// sizing is the option that -batch says.
func (c *load) sizing() (reservoir.Option, error) {
	switch c.batch {
	case "auto":
		return reservoir.WithBatch(reservoir.Adaptive(1, 0)), nil
	case "direct":
		return reservoir.WithDirect(), nil
	case "ladder":
		return reservoir.WithBatch(sim.LadderOf(c.limit.Tokens)), nil
	}
	n, err := strconv.ParseInt(c.batch, 10, 64)
	if err != nil || n < 1 {
		return nil, usagef("bad value for flag -batch: want auto, direct, ladder or a number of tokens")
	}
	return reservoir.WithBatch(reservoir.Fixed(n)), nil
}

// limiter opens the store and a limiter on it. Neither does any I/O, so what goes
// wrong here was asked for wrongly.
func (c *load) limiter() (*reservoir.Limiter, *opened, error) {
	if err := backend.ValidateKey(c.keys[0]); err != nil { // the others are like it
		return nil, nil, usagef("bad value for flag -key: %s", oneLine(err))
	}
	sizing, err := c.sizing()
	if err != nil {
		return nil, nil, err
	}
	store, err := open("store", c.stores, c.prefix, c.workers)
	if err != nil {
		return nil, nil, err
	}
	l, err := reservoir.New(store.Store, c.limit, sizing, reservoir.WithMaxKeys(max(1<<20, len(c.keys))))
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
	if c.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.duration)
		defer cancel()
	}
	bar := newProgress(stderr, !drawable(stderr), cmp.Or(c.requests, -1))
	done := bar.limiter("calls", l)
	sum := c.run(ctx, l)
	done()
	bar.end()
	closeCtx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	closeErr := l.Close(closeCtx)
	return errors.Join(c.print(stdout, newReport(&c.traffic, sum, l.Stats())), sum.verdict(closeErr))
}

func (c *load) print(w io.Writer, r *report) error {
	if c.json {
		return r.json(w)
	}
	return r.text(w, c.limit)
}

// verdict is the error of a load that did not run as asked.
func (t *tally) verdict(closeErr error) error {
	switch {
	case t.requests > 0 && t.errors == t.requests:
		return fmt.Errorf("every request failed, the first with: %s", oneLine(t.failure))
	case closeErr != nil:
		return fmt.Errorf("unused stock was not all handed back: %s", oneLine(closeErr))
	}
	return nil
}

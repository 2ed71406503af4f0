package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const tuneAbout = `Replays the same traffic under each batch policy and reports what each costs: store
calls, requests that wait, and tokens that lie in one process while another is
refused. It recommends the default, Adaptive, unless that strands more than 5 % of
the limit, refuses more than 1 % needlessly or saves less than a fifth of direct
calls, or another policy makes less than half its store calls. It gives the reason.

The traffic is described by -rate, -keys, -zipf and -duration, or read
from a -trace: CSV with a time (Unix seconds, which may have a fraction, or
RFC 3339) and a key in the first two columns. Each request asks for -n tokens and
comes to a random one of -processes, each of which is a limiter in this process.
The store is the embedded one, -delay away, or a -store. There every key has a
random prefix and expires with its window, and tune touches no other key.

On the embedded store time is virtual: an hour of traffic takes seconds, other work
on this machine does not change the result, and answers from memory take no time.
On a Redis each policy takes as long as the traffic.`

type tuning struct {
	common   // no stores = the embedded one
	shape    sim.Shape
	trace    string
	setting  sim.Setting
	names    string // of policies
	policies []sim.Policy
	report   string
	where    string // the store, for the report
}

// tuneFlags declares the flags of "reservoir tune". The default demand is one and a half
// times the limit, because only refusals show what a batch strands.
func tuneFlags(f *flagSet) action {
	c := new(tuning)
	f.demandFlags(&c.shape, &c.setting.Limit)
	f.commonFlags(&c.common)
	f.Float64Var(&c.shape.Rate, "rate", 15_000, "requests per second on average, over all keys and processes")
	f.IntVar(&c.shape.Processes, "processes", 8, "processes that share the limit")
	f.DurationVar(&c.shape.Length, "duration", 5*time.Second, "length of the described traffic")
	f.StringVar(&c.trace, "trace", "", "`file` of recorded traffic instead of a described one; - is standard input")
	f.DurationVar(&c.setting.Delay, "delay", time.Millisecond, "round trip to the embedded store")
	f.StringVar(&c.report, "report", "", "draw the result into this `file`, .html or .svg")
	f.StringVar(&c.names, "policies", "direct,fixed,ladder,adaptive,adaptive:1-100,stranding:0.02", "`list` of: direct, fixed (a thousandth, a hundredth and a tenth of the limit),\n"+
		"a number (a fixed batch of that size), ladder (Rockset's rule), adaptive (the default),\n"+
		"adaptive:min-max (batches between these bounds), stranding:share (WithStranding)")
	f.validate = func() error { return c.validate(f) }
	return c.run
}

// Bounds of tune, in addition to those of load. The delay stays well within the fetch
// timeout of 100 ms, because otherwise every call would fail.
const (
	maxTuneKeys  = 1_000_000
	maxProcesses = 1000
	maxDelay     = 80 * time.Millisecond
)

// validate returns the error of the first flag that is invalid, or has no effect beside
// others. It chooses the clock.
func (c *tuning) validate(f *flagSet) (err error) {
	for _, name := range []string{"rate", "keys", "zipf", "duration"} {
		if c.trace != "" && f.given(name) {
			return usagef("want -trace or -%s, not both", name)
		}
	}
	if len(c.stores) == 1 && c.stores[0] == memory {
		c.stores = nil
	}
	if c.setting.Virtual = len(c.stores) == 0; !c.setting.Virtual {
		if f.given("delay") {
			return usagef("want -delay or -store, not both, because -delay is for the embedded store")
		}
		c.setting.Delay = 0
	}
	if err := c.demand(&c.shape, c.setting.Limit, maxTuneKeys); err != nil {
		return err
	}
	s := c.shape
	c.setting.Seed = s.Seed
	if s.Rate*s.Length.Seconds() > 0.9*sim.MaxRequests { // the number is random
		return usagef("-rate for -duration is more than %s requests", table.Commas[int](0.9*sim.MaxRequests))
	}
	c.policies, err = sim.Policies(strings.Split(c.names, ","), c.setting.Limit.Tokens)
	_, noDir := os.Stat(filepath.Dir(c.report))
	return cmp.Or(judged("policies", err), kept(
		rule{c.trace != "" || !f.given("trace"), "trace", "a file, or -"},
		rule{c.setting.Virtual || !slices.Contains(c.stores, memory), "store", "no memory, which is no shard beside others here"},
		rule{s.Rate >= minRate && s.Rate <= 1e9, "rate", fmt.Sprintf("%v to 1e9 requests a second", minRate)},
		rule{s.Processes >= 1 && s.Processes <= maxProcesses, "processes", upTo(maxProcesses)},
		rule{c.setting.Delay >= 0 && c.setting.Delay <= maxDelay, "delay", fmt.Sprint("0 to ", maxDelay)},
		rule{!f.given("report") || noDir == nil && slices.Contains([]string{".html", ".svg"}, extension(c.report)), "report", "a file in a directory that exists, whose name ends in .html or .svg"},
	))
}

func (c *tuning) traffic() (t sim.Traffic, err error) {
	if c.trace == "" {
		if t = c.shape.Traffic(); len(t.Requests) == 0 {
			err = usagef("-rate and -duration come to no requests")
		}
		return t, err
	}
	in := os.Stdin
	if c.trace != "-" {
		if in, err = os.Open(c.trace); err == nil {
			defer in.Close()
		}
	}
	if err == nil {
		t, err = sim.ReadTrace(in, c.shape.Processes, c.shape.Seed, sim.MaxRequests)
	}
	if err != nil {
		err = usagef("the trace cannot be read: %s", oneLine(err))
	}
	t.Tokens = c.shape.Tokens
	return t, err
}

// prepare makes or reads the traffic. If ctx ends first, it returns none and leaves a
// goroutine behind, because nothing interrupts a read from a terminal or a pipe.
func (c *tuning) prepare(ctx context.Context) (sim.Traffic, error) {
	var t sim.Traffic
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		t, err = c.traffic()
	}()
	select {
	case <-done:
		return t, err
	case <-ctx.Done():
		return sim.Traffic{}, nil
	}
}

func (c *tuning) run(ctx context.Context, stdout, stderr io.Writer) error {
	t, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	all, err := c.replay(ctx, t, stderr)
	if err != nil {
		return err
	}
	r := c.newReport(t, all)
	fault := c.writeReport(r) // before standard output, which may be a pipe whose end ends the process
	return errors.Join(emit(stdout, c.json, r, r.text(widthOf(stdout))), fault)
}

// replay makes the requests under each policy. If ctx ends, it returns the complete
// outcomes, or an error if none is complete.
func (c *tuning) replay(ctx context.Context, t sim.Traffic, stderr io.Writer) (all []sim.Outcome, err error) {
	own := c.prefix + "reservoir-tune:" + rand.Text()[:12] + ":"
	for i := range c.policies {
		o, err := c.replayOne(ctx, t, i, own, stderr)
		switch {
		case ctx.Err() != nil && len(all) == 0:
			return nil, fmt.Errorf("stopped before any of %d policies was replayed", len(c.policies))
		case ctx.Err() != nil:
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// tuneConns bounds the calls to a Redis in flight. Direct calls need as many as start in
// one round trip, with room for a slow one.
const tuneConns = 256

// replayOne makes the requests under policy i, in a store that holds nothing for it.
func (c *tuning) replayOne(ctx context.Context, t sim.Traffic, i int, prefix string, stderr io.Writer) (o sim.Outcome, err error) {
	store, err := open(c.stores, prefix+strconv.Itoa(i)+":", tuneConns)
	if err != nil {
		return o, err
	}
	defer store.close()
	if err := store.reach(ctx, "ping", c.setting.Limit); err != nil {
		return o, err
	}
	if c.where = "Redis at " + strings.Join(store.names, " and "); c.setting.Virtual {
		c.where = fmt.Sprintf("the embedded store, %v away", c.setting.Delay)
	}
	p, n := c.policies[i], int64(len(t.Requests))
	r := &sim.Replay{Traffic: t, Policy: p, Setting: c.setting, Store: store.Store}
	defer follow(stderr, n*int64(len(c.policies)), func() (int64, string) { return int64(i)*n + r.Made.Load(), p.Name })()
	if o, err = r.Run(ctx); err != nil {
		err = fmt.Errorf("%s: %s", p.Name, oneLine(err))
	}
	return o, err
}

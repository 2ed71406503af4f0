package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const tuneAbout = `Replays one traffic under one batch policy after the other and tells what each
costs: store calls, requests that wait, tokens that lie in one process while
another is refused. It recommends one of them, and says why.

The traffic is described by -rate, -keys, -zipf, -burst and -duration, or read
from a -trace: CSV with a time (Unix seconds, with a fraction if need be, or
RFC 3339) and a key in the first two columns. Each request asks for one token and
comes to a random one of -processes, which are limiters of their own in this
process. The store is the embedded one, -delay away, or a -redis: there every key
has a random prefix and expires with its window, and nothing else is touched.

On the embedded store time is virtual: an hour of traffic takes seconds, and other
work on this machine disturbs nothing. Answers from memory take no time then.
With -clock real, as always on a Redis, a replay takes the traffic's time for each
policy, divided by -speed, which also divides the window and the delay. It cannot
divide the processor's work, the accuracy of timers (1 ms), the margin that
limiters have for that, their timeout, nor the way to a Redis: at a high speed all
of these weigh more than they would, and what is stranded and who waits comes out
too high. Waits are told in the traffic's time, but for those on a Redis.`

// tuning is what the flags of "reservoir tune" say.
type tuning struct {
	shape    sim.Shape
	trace    string
	setting  sim.Setting
	policies []sim.Policy
	redis    []string
	report   string
	quiet    bool
	json     bool
}

// The default demand is half as much again as the limit, so that there are
// refusals, which show what a batch strands.
func (c *tuning) define(f *flagSet) {
	f.Float64Var(&c.shape.Rate, "rate", 15_000, "requests per second on average, over all keys and processes")
	f.IntVar(&c.shape.Keys, "keys", 1, "how many keys")
	f.Float64Var(&c.shape.Zipf, "zipf", 0, "`exponent`, above 1, by which the first keys are called for more often; 0 = evenly")
	f.IntVar(&c.shape.Processes, "processes", 8, "processes that share the limit")
	f.DurationVar(&c.shape.Length, "duration", 5*time.Second, "length of the described traffic")
	f.Uint64Var(&c.shape.Seed, "seed", 0, "of all randomness, so that virtual time repeats itself; 0 = another each time, which\nthe JSON report tells")
	f.StringVar(&c.trace, "trace", "", "`file` of recorded traffic instead of a described one; - is standard input")
	f.Int64Var(&c.setting.Limit.Tokens, "limit", 10_000, "tokens per window and key")
	f.DurationVar(&c.setting.Limit.Window, "window", time.Second, "length of a window")
	f.DurationVar(&c.setting.Delay, "delay", time.Millisecond, "to the embedded store and back")
	f.Float64Var(&c.setting.Speed, "speed", 1, "with a real clock, replay so many `times` as fast; see above for what this distorts")
	f.Var((*values)(&c.redis), "redis", "`URL` of a Redis to replay on, as load's -store has it; repeated, they are shards")
	f.StringVar(&c.report, "report", "", "draw the result into this `file`, .html or .svg")
	f.BoolVar(&c.quiet, "q", false, "no progress bar, which only a terminal gets anyway")
}

// parseTune reads and judges the flags.
func parseTune(args []string, stdout io.Writer) (*tuning, error) {
	c := new(tuning)
	f := newFlags("tune [flags]", tuneAbout)
	c.define(f)
	burst := f.String("burst", "", "`on/off`, as 1s/4s: all requests come in the first second of each five")
	policies := f.String("policies", "direct,fixed,ladder,adaptive", "`list` of: direct, fixed (a thousandth, a hundredth and a tenth of the limit),\n"+
		"a number (a fixed batch of that size), ladder (Rockset's rule), adaptive")
	clock := f.String("clock", "", "virtual (the default on the embedded store) or real (on a Redis)")
	format := f.formatFlag()
	if err := f.parse(args, 0, stdout); err != nil {
		return nil, err
	}
	var err error
	if c.json, err = format(); err != nil {
		return nil, err
	}
	if c.shape.On, c.shape.Off, err = parseBurst(*burst); err != nil {
		return nil, err
	}
	if err := c.exclusive(f); err != nil {
		return nil, err
	}
	if err := c.keepTime(*clock); err != nil {
		return nil, err
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.policies, err = sim.Policies(strings.Split(*policies, ","), c.setting.Limit.Tokens); err != nil {
		return nil, usagef("bad value for flag -policies: %s", oneLine(err))
	}
	if c.shape.Seed == 0 {
		c.shape.Seed = rand.Uint64()
	}
	c.setting.Seed = c.shape.Seed
	return c, nil
}

// exclusive refuses flags that would have no effect beside others.
func (c *tuning) exclusive(f *flagSet) error {
	for _, name := range []string{"rate", "keys", "zipf", "burst", "duration"} {
		if c.trace != "" && f.given(name) {
			return usagef("want -trace or -%s, not both", name)
		}
	}
	switch {
	case c.trace == "" && f.given("trace"):
		return usagef("bad value for flag -trace: want a file, or -")
	case len(c.redis) > 0 && f.given("delay"):
		return usagef("want -redis or -delay, not both")
	case len(c.redis) > 0:
		c.setting.Delay = 0
	}
	return nil
}

// keepTime chooses the clock.
func (c *tuning) keepTime(clock string) error {
	switch {
	case clock != "" && clock != "virtual" && clock != "real":
		return usagef("bad value for flag -clock: want virtual or real")
	case clock == "virtual" && len(c.redis) > 0:
		return usagef("a Redis keeps real time: want -redis or -clock virtual, not both")
	}
	if clock == "real" || len(c.redis) > 0 {
		return nil
	}
	if c.setting.Virtual = virtually; c.setting.Speed != 1 {
		return usagef("-speed is for -clock real: virtual time needs none")
	}
	return nil
}

// Bounds of a tuning, beside those of load. The delay stays well within the fetch
// timeout of 100 ms, or every call would fail.
const (
	maxTuneKeys  = 1_000_000
	maxProcesses = 1000
	maxDelay     = 80 * time.Millisecond
	maxSpeed     = 10_000
)

// validate names the first flag whose value makes no sense.
func (c *tuning) validate() error {
	s := c.shape
	_, scaled := c.setting.Scaled()
	switch speed := c.setting.Speed; {
	case !(s.Rate >= minRate && s.Rate <= 1e9):
		return usagef("bad value for flag -rate: want %v to 1e9 requests a second", minRate)
	case s.Keys < 1 || s.Keys > maxTuneKeys:
		return usagef("bad value for flag -keys: want 1 to %s", table.Commas(maxTuneKeys))
	case s.Zipf != 0 && !(s.Zipf > 1 && s.Zipf <= 100):
		return usagef("bad value for flag -zipf: want 0, or above 1")
	case s.Processes < 1 || s.Processes > maxProcesses:
		return usagef("bad value for flag -processes: want 1 to %s", table.Commas(maxProcesses))
	case s.Length <= 0:
		return usagef("bad value for flag -duration: want more than 0")
	case s.Expected() > 0.9*sim.MaxRequests: // by chance it may be some more
		return usagef("-rate for -duration is more than %s requests", table.Commas(0.9*sim.MaxRequests))
	case c.setting.Delay < 0 || c.setting.Delay > maxDelay:
		return usagef("bad value for flag -delay: want 0 to %v", maxDelay)
	case !(speed >= 1 && speed <= maxSpeed) || math.IsInf(speed, 0):
		return usagef("bad value for flag -speed: want 1 to %s", table.Commas(maxSpeed))
	case c.report != "" && extension(c.report) == "":
		return usagef("bad value for flag -report: want a name that ends in .html or .svg")
	case errors.Is(scaled, sim.ErrSpeed):
		return usagef("bad value for flag -speed: %s", oneLine(scaled))
	case scaled != nil:
		return usagef("%s", oneLine(scaled))
	}
	return nil
}

// parseBurst reads on/off. Nothing is no bursts.
func parseBurst(s string) (on, off time.Duration, err error) {
	if s == "" {
		return 0, 0, nil
	}
	first, second, _ := strings.Cut(s, "/")
	on, err = time.ParseDuration(first)
	off, err2 := time.ParseDuration(second)
	if err != nil || err2 != nil || on < time.Microsecond || off <= 0 || on > time.Hour || off > 100*time.Hour {
		return 0, 0, usagef("bad value for flag -burst: want two durations, as 1s/4s")
	}
	return on, off, nil
}

// traffic makes or reads the requests.
func (c *tuning) traffic() (sim.Traffic, error) {
	if c.trace == "" {
		t := c.shape.Traffic()
		if len(t.Requests) == 0 {
			return t, usagef("-rate and -duration come to no requests")
		}
		return t, nil
	}
	in, err := openTrace(c.trace)
	if err != nil {
		return sim.Traffic{}, err
	}
	defer in.Close()
	t, err := sim.ReadTrace(in, c.shape.Processes, c.shape.Seed)
	if err != nil {
		return t, traceError(err)
	}
	return t, nil
}

func openTrace(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	in, err := os.Open(name)
	if err != nil {
		return nil, traceError(err)
	}
	return in, nil
}

// traceError is err without the name of the file, which may be anything.
func traceError(err error) error {
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return usagef("the trace cannot be read: %s", oneLine(err))
}

// runTune is "reservoir tune".
func runTune(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parseTune(args, stdout)
	if err != nil {
		return err
	}
	stage, err := c.stage()
	if err != nil {
		return err
	}
	defer stage.Close()
	t, err := c.traffic()
	if err != nil {
		return err
	}
	chart, err := c.createReport()
	if err != nil {
		return err
	}
	defer chart.discard()
	if err := stage.ping(ctx, c.setting.Limit); err != nil {
		return err
	}
	all, err := c.replay(ctx, t, stage, stderr)
	if err != nil {
		return err
	}
	r := c.newReport(t, all, stage.name)
	if len(all) < len(c.policies) {
		r.note("Stopped early: %d of %d policies were replayed.", len(all), len(c.policies))
	}
	return errors.Join(c.print(stdout, r), chart.write(r), r.verdict())
}

func (c *tuning) print(w io.Writer, r *tuneReport) error {
	if c.json {
		return r.json(w)
	}
	return r.text(w)
}

// replay makes the requests under each policy. When ctx ends it returns what is
// complete, if anything is.
func (c *tuning) replay(ctx context.Context, t sim.Traffic, s *stage, stderr io.Writer) ([]sim.Outcome, error) {
	var all []sim.Outcome
	bar := newProgress(stderr, c.quiet || !drawable(stderr), int64(len(t.Requests)*len(c.policies)))
	defer bar.end()
	for i, p := range c.policies {
		o, err := c.one(ctx, t, p, s, bar, i*len(t.Requests))
		switch {
		case ctx.Err() != nil && len(all) > 0:
			return all, nil
		case ctx.Err() != nil:
			return nil, errors.New("stopped before any policy was replayed")
		case err != nil:
			return nil, fmt.Errorf("%s: %s", p.Name, oneLine(err))
		}
		all = append(all, o)
	}
	return all, nil
}

// one replays the traffic under one policy, on a store that holds nothing.
func (c *tuning) one(ctx context.Context, t sim.Traffic, p sim.Policy, s *stage, bar *progress, before int) (sim.Outcome, error) {
	store, err := s.empty()
	if err != nil {
		return sim.Outcome{}, err
	}
	defer store.Close()
	if len(c.redis) == 0 {
		store.Store = nil // the replay has its own, by its own clock
	}
	r, err := sim.NewReplay(t, p, c.setting, store.Store)
	if err != nil {
		return sim.Outcome{}, err
	}
	done := bar.follow(func() (int64, string) { return int64(before) + r.Made(), fmt.Sprintf("%-12s", p.Name) })
	defer done()
	from, known := store.scriptCalls(ctx)
	o, err := r.Run(ctx)
	if to, ok := store.scriptCalls(ctx); known && ok && err == nil {
		calls := to - from
		o.ServerCalls = &calls
	}
	return o, err
}

// limitText is a limit in words.
func limitText(l reservoir.Limit) string {
	return fmt.Sprintf("%s per %v", table.Commas(l.Tokens), l.Window)
}

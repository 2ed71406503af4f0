package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const tuneAbout = `Replays the same traffic under each batch policy and reports what each costs: store
calls, requests that wait, and tokens that are unspent when a request is first
refused. It recommends the default, Adaptive, unless that strands more than 5 % of
the limit, refuses more than 1 % needlessly or saves less than a fifth of direct
calls. It gives the reason.

The traffic is described by -rate, -keys, -zipf and -duration. Each request asks for
-n tokens and comes to a random one of -processes, each of which is a limiter in this
process; with -sticky 20 a key's requests keep a process for 20 requests, as clients do.
The store is the embedded one, -delay away. Time is virtual: an hour of traffic
takes seconds, other work on this machine does not change the result, and answers
from memory take no time. "reservoir load" drives one policy against a Redis.`

type tuning struct {
	shape    sim.Shape
	setting  sim.Setting
	names    string // of policies
	policies []sim.Policy
	json     bool
}

// tuneFlags declares the flags of "reservoir tune". The default demand is one and a half
// times the limit, because only refusals show what a batch strands.
func tuneFlags(f *flagSet) action {
	c := new(tuning)
	f.demandFlags(&c.shape, &c.setting.Limit)
	f.formatFlag(&c.json)
	f.Float64Var(&c.shape.Rate, "rate", 15_000, "requests per second on average, over all keys and processes")
	f.IntVar(&c.shape.Processes, "processes", 8, "processes that share the limit")
	f.IntVar(&c.shape.Sticky, "sticky", 1, "requests for a key that come in a row to one process, before another gets as many")
	f.DurationVar(&c.shape.Length, "duration", 5*time.Second, "length of the traffic")
	f.DurationVar(&c.setting.Delay, "delay", time.Millisecond, "round trip to the embedded store")
	f.StringVar(&c.names, "policies", "direct,fixed,ladder,adaptive,adaptive:1-100", "`list` of: direct, fixed (a thousandth, a hundredth and a tenth of the limit),\n"+
		"a number (a fixed batch of that size), ladder (Rockset's rule), adaptive (the default),\n"+
		"adaptive:min-max (batches between these bounds)")
	f.validate = c.validate
	return c.run
}

// Bounds of tune, in addition to those of load. The delay stays well within the fetch
// timeout of 100 ms, because otherwise every call would fail.
const (
	maxTuneKeys  = 1_000_000
	maxProcesses = 1000
	maxDelay     = 80 * time.Millisecond
)

// validate returns the error of the first flag that is invalid.
func (c *tuning) validate() (err error) {
	if err := validDemand(&c.shape, c.setting.Limit, maxTuneKeys); err != nil {
		return err
	}
	s := c.shape
	c.setting.Seed = s.Seed
	c.policies, err = sim.Policies(strings.Split(c.names, ","), c.setting.Limit.Tokens)
	return cmp.Or(judged("policies", err), kept(
		rule{s.Rate >= minRate && s.Rate <= 1e9, "rate", fmt.Sprintf("%v to 1e9 requests a second", minRate)},
		rule{s.Rate*s.Length.Seconds() <= 0.9*sim.MaxRequests, "", // the number is random
			"-rate for -duration is more than " + table.Commas[int](0.9*sim.MaxRequests) + " requests"},
		rule{s.Processes >= 1 && s.Processes <= maxProcesses, "processes", upTo(maxProcesses)},
		rule{s.Sticky >= 1, "sticky", "1 or more"},
		rule{c.setting.Delay >= 0 && c.setting.Delay <= maxDelay, "delay", fmt.Sprint("0 to ", maxDelay)},
	))
}

func (c *tuning) run(ctx context.Context, stdout io.Writer) error {
	t := c.shape.Traffic()
	if len(t.Requests) == 0 {
		return usagef("-rate and -duration come to no requests")
	}
	all, err := c.replay(ctx, t)
	if err != nil {
		return err
	}
	r := c.newReport(t, all)
	return emit(stdout, c.json, r, r.text())
}

// replay makes the requests under each policy.
func (c *tuning) replay(ctx context.Context, t sim.Traffic) (all []sim.Outcome, err error) {
	for _, p := range c.policies {
		r := &sim.Replay{Traffic: t, Policy: p, Setting: c.setting, Store: memstore.New()}
		o, err := r.Run(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("stopped after %d of %d policies", len(all), len(c.policies))
		case err != nil:
			return nil, fmt.Errorf("%s: %s", p.Name, oneLine(err))
		}
		all = append(all, o)
	}
	return all, nil
}

type tuneReport struct {
	Traffic        trafficReport `json:"traffic"`
	Limit          int64         `json:"limit"`
	Window         time.Duration `json:"window_ns"`
	Delay          time.Duration `json:"delay_ns"` // added to each call
	Policies       []sim.Outcome `json:"policies"`
	Recommendation advice        `json:"recommendation"`
	Notes          []string      `json:"notes"`

	heading string
}

type trafficReport struct {
	Requests  int     `json:"requests"`
	Tokens    int64   `json:"tokens_per_request"`
	Keys      int     `json:"keys"`
	Processes int     `json:"processes"`
	Sticky    int     `json:"sticky"`
	Seconds   float64 `json:"seconds"`
	Seed      uint64  `json:"seed"`
}

func (c *tuning) newReport(t sim.Traffic, all []sim.Outcome) *tuneReport {
	s := c.setting
	r := &tuneReport{
		Traffic: trafficReport{len(t.Requests), t.Tokens, len(t.Keys), t.Processes, c.shape.Sticky, t.Length.Seconds(), s.Seed},
		Limit:   s.Limit.Tokens, Window: s.Limit.Window, Delay: s.Delay,
		Policies: all, Recommendation: advise(all), Notes: []string{},
	}
	processes := count(t.Processes, "process", "es")
	if c.shape.Sticky > 1 {
		processes += fmt.Sprintf(" (%d in a row at one)", c.shape.Sticky)
	}
	r.heading = fmt.Sprintf("%s in %v for %s and %s, %s each, limit %s per %v, on the embedded store, %v away",
		count(len(t.Requests), "request", "s"), t.Length.Round(time.Millisecond), count(len(t.Keys), "key", "s"),
		processes, count(int(t.Tokens), "token", "s"), table.Commas(r.Limit), r.Window, r.Delay)
	if t.Length <= s.Limit.Window {
		r.Notes = append(r.Notes, "The traffic is no longer than the first window, in which demand is not known yet. Longer traffic shows the steady state.")
	}
	return r
}

func count(n int, one, plural string) string {
	if n == 1 {
		return "1 " + one
	}
	return table.Commas(n) + " " + one + plural
}

const tuneLegend = `
    calls: to the store
a request: calls per request
   waited: share of requests that waited for the store
 stranded: share of the limit that was unspent when a request was first refused
 needless: requests refused though the limit had tokens that were never spent
     over: tokens over the limit
      p99: of the time an answer took

Recommended: `

func (r *tuneReport) text() string {
	s := r.heading + "\n\n" + table.Text(r.rows(), true) + tuneLegend + r.Recommendation.Policy + "\n"
	why := append([]string{r.Recommendation.Reason}, r.Notes...)
	return s + strings.Join(why, "\n\n") + "\n"
}

// rows is the table, with its head.
func (r *tuneReport) rows() [][]string {
	rows := [][]string{{"policy", "calls", "a request", "waited", "stranded", "refused", "needless", "over", "p99", "p50", "admitted"}}
	n := table.Commas[int64]
	for _, o := range r.Policies {
		stranded := "–" // no request was refused
		if o.StrandedWindows > 0 {
			stranded = table.Percent(o.Stranded)
		}
		rows = append(rows, []string{o.Policy, n(o.StoreCalls), table.Percent(o.CallsPerRequest), table.Percent(o.WaitedShare), stranded,
			n(o.Refused), n(o.Needless), n(o.Over), table.Duration(o.P99), table.Duration(o.P50), n(o.Admitted)})
	}
	return rows
}

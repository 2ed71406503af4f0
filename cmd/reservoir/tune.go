package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const tuneAbout = `Replays the same traffic under each batch policy and reports what each costs: store
calls, requests that wait, and tokens that lie in one process while another is
refused. It recommends the default, Adaptive, unless that strands more than 5 % of
the limit, refuses more than 1 % needlessly or saves less than a fifth of direct
calls, or another policy makes less than half its store calls. It gives the reason.

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
	report   string
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
	f.StringVar(&c.report, "report", "", "write the report with charts into this `file`, as HTML")
	f.StringVar(&c.names, "policies", "direct,fixed,ladder,adaptive,adaptive:1-100", "`list` of: direct, fixed (a thousandth, a hundredth and a tenth of the limit),\n"+
		"a number (a fixed batch of that size), ladder (Rockset's rule), adaptive (the default),\n"+
		"adaptive:min-max (batches between these bounds)")
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

// validate returns the error of the first flag that is invalid.
func (c *tuning) validate(f *flagSet) (err error) {
	if err := validDemand(&c.shape, c.setting.Limit, maxTuneKeys); err != nil {
		return err
	}
	s := c.shape
	c.setting.Seed = s.Seed
	c.policies, err = sim.Policies(strings.Split(c.names, ","), c.setting.Limit.Tokens)
	_, noDir := os.Stat(filepath.Dir(c.report))
	return cmp.Or(judged("policies", err), kept(
		rule{s.Rate >= minRate && s.Rate <= 1e9, "rate", fmt.Sprintf("%v to 1e9 requests a second", minRate)},
		rule{s.Rate*s.Length.Seconds() <= 0.9*sim.MaxRequests, "", // the number is random
			"-rate for -duration is more than " + table.Commas[int](0.9*sim.MaxRequests) + " requests"},
		rule{s.Processes >= 1 && s.Processes <= maxProcesses, "processes", upTo(maxProcesses)},
		rule{s.Sticky >= 1, "sticky", "1 or more"},
		rule{c.setting.Delay >= 0 && c.setting.Delay <= maxDelay, "delay", fmt.Sprint("0 to ", maxDelay)},
		rule{!f.given("report") || noDir == nil && c.report != "", "report", "a file in a directory that exists"},
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
	return errors.Join(emit(stdout, c.json, r, r.text()), c.writeReport(r))
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
 stranded: share of the limit that lay in processes when another was refused
 needless: requests refused though the limit had tokens that were never spent
     over: tokens over the limit
      p99: of the time an answer took

Recommended: `

func (r *tuneReport) text() string {
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
	s := r.heading + "\n\n" + table.Text(rows, true) + tuneLegend + r.Recommendation.Policy + "\n"
	notes := strings.Join(append([]string{r.Recommendation.Reason}, r.Notes...), "\n\n")
	return s + table.Wrap(notes, 80) + "\n"
}

// writeReport writes the file of -report, if any: HTML, which is XML as well, so that any
// tool can read it.
func (c *tuning) writeReport(r *tuneReport) error {
	if c.report == "" {
		return nil
	}
	data := fmt.Appendf(nil, `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"/><title>reservoir tune</title><style>pre { overflow-x: auto } svg { max-width: 100%% }</style></head>
<body><pre>%s</pre>%s</body>
</html>
`, html.EscapeString(r.text()), r.chart())
	if err := os.WriteFile(c.report, data, 0o644); err != nil {
		return errors.New("the report cannot be written: " + oneLine(err))
	}
	return nil
}

var colours = []chart.Colour{0x777777, 0xe69f00, 0xd55e00, 0x009e73, 0xcc79a7, 0x0072b2, 0x56b4e9, 0x8c6d1f, 0x994f00}

func colourOf(i int) chart.Colour { return colours[i%len(colours)] }

// chart draws store calls and stranding against batch size, and the share of requests
// that reach the store over time, as in Rockset's article.
func (r *tuneReport) chart() []byte {
	page := chart.Page{Title: "Batch policies on the same traffic", Note: r.heading, Width: 840, Height: 290}
	most := 0.0
	for i, o := range r.Policies {
		page.Legend = append(page.Legend, chart.Entry{Colour: colourOf(i), Text: o.Policy})
		most = max(most, float64(o.StoreCalls))
	}
	calls := r.bySize("Store calls", 1, most, whole, func(o sim.Outcome) (float64, bool) { return float64(o.StoreCalls), true })
	stranded := r.bySize("Share of the limit stranded at the first refusal", 1e-4, 1, table.Percent,
		func(o sim.Outcome) (float64, bool) { return o.Stranded, o.StrandedWindows > 0 })
	page.Plots = []*plot.Plot{calls, stranded, r.byTime()}
	return page.SVG()
}

func whole(v float64) string { return table.Commas(int64(math.Round(v))) }

// bySize draws each policy that has a value at its mean batch size; a direct call is a batch of
// one. Policies that coincide are rings around each other.
func (r *tuneReport) bySize(title string, least, most float64, name func(float64) string, of func(sim.Outcome) (v float64, has bool)) *plot.Plot {
	p := chart.New(title+", against batch size; policies that coincide are rings", "tokens that a call brought, on average")
	widest := 10.0
	for _, o := range r.Policies {
		widest = max(widest, o.MeanBatch)
	}
	across, up := chart.Logarithmic(&p.X, 1, widest, whole), chart.Logarithmic(&p.Y, least, max(most, least), name)
	if slices.ContainsFunc(r.Policies, func(o sim.Outcome) bool { v, has := of(o); return has && v == 0 }) {
		chart.Zero(&p.Y)
	}
	var points plotter.XYs
	var hues []chart.Colour
	for i, o := range r.Policies {
		if v, has := of(o); has {
			points, hues = append(points, plotter.XY{X: across(o.MeanBatch), Y: up(v)}), append(hues, colourOf(i))
		}
	}
	for i, at := range points {
		radius := 5.0
		for _, later := range points[i+1:] { // is drawn upon it
			if math.Hypot(p.X.Norm(at.X)-p.X.Norm(later.X), p.Y.Norm(at.Y)-p.Y.Norm(later.Y)) < 0.01 {
				radius += 3
			}
		}
		chart.Dot(p, at.X, at.Y, radius, hues[i], "", false)
	}
	return p
}

// byTime draws a curve for each policy, each thinner than the last, so that none hides another.
// The scale is logarithmic, because policies differ by orders of magnitude.
func (r *tuneReport) byTime() *plot.Plot {
	p := chart.New("Store calls as a share of requests, over time; curves that coincide lie in each other", "seconds of the traffic")
	up := chart.Logarithmic(&p.Y, 1e-4, 1, table.Percent)
	chart.Zero(&p.Y)
	p.X.Min, p.X.Max = 0, r.Traffic.Seconds
	for i, o := range r.Policies {
		var course plotter.XYs
		for j, b := range o.Timeline {
			if b.Requests > 0 {
				middle := (float64(j) + 0.5) / float64(len(o.Timeline)) * r.Traffic.Seconds
				course = append(course, plotter.XY{X: middle, Y: up(sim.Ratio(b.Calls, b.Requests))})
			}
		}
		chart.Curve(p, course, 1.2+0.7*float64(len(r.Policies)-1-i), colourOf(i))
	}
	return p
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

type tuneReport struct {
	Traffic        trafficReport `json:"traffic"`
	Limit          int64         `json:"limit"`
	Window         time.Duration `json:"window_ns"`
	Delay          time.Duration `json:"delay_ns"` // added to each call
	Store          string        `json:"store"`
	Virtual        bool          `json:"virtual_clock"`
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
	Seconds   float64 `json:"seconds"`
	Seed      uint64  `json:"seed"`
	Recorded  bool    `json:"recorded"`
}

func (c *tuning) newReport(t sim.Traffic, all []sim.Outcome) *tuneReport {
	s := c.setting
	r := &tuneReport{
		Traffic: trafficReport{len(t.Requests), t.Tokens, len(t.Keys), t.Processes, t.Length.Seconds(), s.Seed, c.trace != ""},
		Limit:   s.Limit.Tokens, Window: s.Limit.Window, Delay: s.Delay,
		Store: c.where, Virtual: s.Virtual, Policies: all, Recommendation: advise(all), Notes: []string{},
	}
	r.heading = fmt.Sprintf("%s in %v for %s and %s, %s each, limit %s per %v, on %s",
		count(len(t.Requests), "request", "s"), t.Length.Round(time.Millisecond), count(len(t.Keys), "key", "s"),
		count(t.Processes, "process", "es"), count(int(t.Tokens), "token", "s"), table.Commas(r.Limit), r.Window, r.Store)
	if len(all) < len(c.policies) {
		r.note("Stopped early: only %d of %d policies were replayed.", len(all), len(c.policies))
	}
	for _, o := range all {
		if o.Late > s.Limit.Window/50 {
			r.note("%s: one request in a hundred was made %s or more after its time. This machine is busy or cannot keep that pace: its "+
				"figures say more about the machine than about the policy. Use a lower -rate.", o.Policy, table.Duration(o.Late))
		}
		if o.Errors > 0 {
			r.note("%s: %s ended in an error of the store.", o.Policy, count(int(o.Errors), "request", "s"))
		}
	}
	if t.Length <= s.Limit.Window {
		r.note("The traffic is no longer than the first window, in which demand is not known yet. Longer traffic shows the steady state.")
	}
	return r
}

func count(n int, one, plural string) string {
	if n == 1 {
		return "1 " + one
	}
	return table.Commas(n) + " " + one + plural
}

func (r *tuneReport) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
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

func (r *tuneReport) text(width int) string {
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
	text, hidden := table.Within(rows, width)
	if hidden > 0 {
		text += fmt.Sprintf("\n%s in a wider terminal, and with -format json.\n", count(hidden, "more column", "s"))
	}
	s := r.heading + "\n\n" + text + tuneLegend + r.Recommendation.Policy + "\n"
	notes := strings.Join(append([]string{r.Recommendation.Reason}, r.Notes...), "\n\n")
	return s + table.Wrap(notes, width) + "\n"
}

func extension(name string) string { return strings.ToLower(filepath.Ext(name)) }

// writeReport writes the file of -report, if any. HTML has the text of the report too, and
// is XML as well, so that any tool can read it.
func (c *tuning) writeReport(r *tuneReport) error {
	if c.report == "" {
		return nil
	}
	data := r.chart()
	if extension(c.report) == ".html" {
		data = fmt.Appendf(nil, `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"/><title>reservoir tune</title><style>pre { overflow-x: auto } svg { max-width: 100%% }</style></head>
<body><pre>%s</pre>%s</body>
</html>
`, html.EscapeString(r.text(math.MaxInt)), data)
	}
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
	calls := r.bySize("Store calls", 1, most, whole, func(o sim.Outcome) float64 { return float64(o.StoreCalls) })
	stranded := r.bySize("Share of the limit stranded at the first refusal", 1e-4, 1, table.Percent, func(o sim.Outcome) float64 { return o.Stranded })
	page.Plots = []*plot.Plot{calls, stranded, r.byTime()}
	return page.SVG()
}

func whole(v float64) string { return table.Commas(int64(math.Round(v))) }

// bySize draws each policy at its mean batch size; a direct call is a batch of one.
func (r *tuneReport) bySize(title string, least, most float64, name func(float64) string, of func(sim.Outcome) float64) *plot.Plot {
	p := chart.New(title+", against batch size", "tokens that a call brought, on average")
	widest := 10.0
	for _, o := range r.Policies {
		widest = max(widest, o.MeanBatch)
	}
	across, up := chart.Logarithmic(&p.X, 1, widest, whole), chart.Logarithmic(&p.Y, least, max(most, least), name)
	for i, o := range r.Policies {
		chart.Dot(p, across(o.MeanBatch), up(of(o)), 5, colourOf(i), "", false)
	}
	return p
}

// byTime draws a curve for each policy. The scale is logarithmic, because policies differ
// by orders of magnitude.
func (r *tuneReport) byTime() *plot.Plot {
	p := chart.New("Store calls as a share of requests, over time", "seconds of the traffic")
	up := chart.Logarithmic(&p.Y, 1e-4, 1, table.Percent)
	p.X.Min, p.X.Max = 0, r.Traffic.Seconds
	for i, o := range r.Policies {
		var course plotter.XYs
		for j, b := range o.Timeline {
			if b.Requests > 0 {
				middle := (float64(j) + 0.5) / float64(len(o.Timeline)) * r.Traffic.Seconds
				course = append(course, plotter.XY{X: middle, Y: up(sim.Ratio(b.Calls, b.Requests))})
			}
		}
		chart.Curve(p, course, colourOf(i))
	}
	return p
}

type advice struct {
	Policy string `json:"policy"`
	Reason string `json:"reason"`
}

// Bounds on the cost of a recommended policy.
const (
	mostNeedless = 0.01 // requests refused with tokens left, per admitted request
	mostStranded = 0.05 // of the limit, at the first refusal of a window
	mostCold     = 0.1  // the same if all refusals were in first windows, before demand is known
	mostErrors   = 0.01 // of the requests
	leastSaving  = 0.2  // of direct calls, that the default must save
	clearly      = 2    // times fewer calls is clearly better
)

// advise recommends the default, or direct calls if the default wastes much of the limit
// or saves little. It recommends another policy only if that wastes little and is clearly
// better. all must not be empty.
func advise(all []sim.Outcome) advice {
	sound := slices.DeleteFunc(slices.Clone(all), func(o sim.Outcome) bool { return faults(o) != "" })
	if len(sound) == 0 {
		best := slices.MinFunc(all, func(a, b sim.Outcome) int { return cmp.Compare(waste(a), waste(b)) })
		return advice{best.Policy, fmt.Sprintf("None of the policies is without fault here. This one wastes least: it %s. %s", faults(best), cost(best))}
	}
	best := slices.MinFunc(sound, func(a, b sim.Outcome) int { return cmp.Compare(a.StoreCalls, b.StoreCalls) })
	chosen, why := usual(sound, best)
	switch {
	case chosen.Policy == "adaptive" && !slices.ContainsFunc(all, func(o sim.Outcome) bool { return o.Refused > 0 }):
		why = "It is the default, and gives back what it does not use. Nobody was refused, so what other batches strand could not be seen here."
	case clearly*best.StoreCalls < chosen.StoreCalls && best.Waited <= chosen.Waited:
		chosen, why = best, fmt.Sprintf("It wastes little of the limit and makes less than half the store calls of %s.", chosen.Policy)
	}
	why += " " + cost(chosen)
	for _, o := range all {
		switch f := faults(o); {
		case f != "" && o.StoreCalls < chosen.StoreCalls:
			why += fmt.Sprintf(" %s makes fewer calls, but it %s.", o.Policy, f)
		case f != "" && o.Policy == "adaptive":
			why += fmt.Sprintf(" %s, the default, %s.", o.Policy, f)
		}
	}
	return advice{chosen.Policy, why}
}

// usual returns the policy with which others are compared, and the reason to keep it.
func usual(sound []sim.Outcome, best sim.Outcome) (o sim.Outcome, why string) {
	i := slices.IndexFunc(sound, func(o sim.Outcome) bool { return o.Policy == "adaptive" })
	j := slices.IndexFunc(sound, func(o sim.Outcome) bool { return o.Policy == "direct" })
	switch {
	case i >= 0 && (j < 0 || float64(sound[i].StoreCalls) <= (1-leastSaving)*float64(sound[j].StoreCalls)):
		return sound[i], "It is the default: its batches follow demand, so that no size needs to be kept in step with limits and traffic. " +
			"No other policy that wastes little of the limit makes less than half its store calls."
	case j >= 0:
		return sound[j], "Batches that waste little of the limit save next to nothing here: it is too small for the number of processes, " +
			"keys are called for too seldom, or most requests are refused from memory. Direct calls are exact."
	}
	return best, "It makes the fewest store calls of the policies that waste little of the limit."
}

func cost(o sim.Outcome) string {
	s := fmt.Sprintf("It makes %s for %s (%s); %s of the requests wait for the store", count(int(o.StoreCalls), "store call", "s"),
		count(int(o.Requests), "request", "s"), table.Percent(o.CallsPerRequest), table.Percent(o.WaitedShare))
	if o.StrandedWindows > 0 {
		s += fmt.Sprintf("; when the first is refused, %s of the limit lies unspent in processes", table.Percent(o.Stranded))
	}
	return s + "."
}

// faults describes what speaks against a policy, or is empty.
func faults(o sim.Outcome) string {
	var f []string
	if float64(o.Needless) > mostNeedless*float64(o.Admitted) {
		f = append(f, fmt.Sprintf("refuses %s requests that the limit had tokens for", table.Commas(o.Needless)))
	}
	if o.Stranded > mostStranded && !o.Cold || o.Stranded > mostCold {
		f = append(f, fmt.Sprintf("strands %s of the limit", table.Percent(o.Stranded)))
	}
	if float64(o.Errors) > mostErrors*float64(o.Requests) {
		f = append(f, fmt.Sprintf("fails %s requests", table.Commas(o.Errors)))
	}
	return strings.Join(f, " and ")
}

// waste ranks policies if all of them have faults.
func waste(o sim.Outcome) int64 {
	return o.Errors + o.Needless + int64(o.Stranded*float64(o.Admitted))
}

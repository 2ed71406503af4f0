package fleet

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// group is rows that belong together: a block of the table, a column of the chart.
type group struct {
	part  string
	title string
	axis  string // what the names of the rows are
	rows  []row
}

// measure is a line of panels in the chart. Its scale is logarithmic, because
// the rules are orders of magnitude apart.
type measure struct {
	title string
	of    func(scenario, outcome) (v float64, ok bool)
	bar   func(bar) float64
}

var measures = []measure{
	{"Store calls per admitted request",
		func(_ scenario, o outcome) (float64, bool) { return o.calls, true },
		func(b bar) float64 { return b.calls }},
	{"Share of the limit stranded at the first refusal",
		func(s scenario, o outcome) (float64, bool) { return o.stranded, s.demand > 1 },
		func(b bar) float64 { return b.stranded }},
	{"Share of requests that wait for the network",
		func(_ scenario, o outcome) (float64, bool) { return o.waited, true },
		func(b bar) float64 { return b.waited }},
}

var colours = map[string]string{"direct": "#9aa0a6", "fixed": "#e69f00", "ladder": "#cc79a7", adaptive: "#0072b2"}

const barColour = "#dd0000"

// shownIn is the rules that were simulated, and legend is what they are.
func shownIn(all map[string]results) []rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return all[r.name] == nil })
}

func legend(shown []rule) (entries []chart.Entry) {
	for _, r := range shown {
		entries = append(entries, chart.Entry{Colour: colours[r.name], Text: r.name + ": " + r.what})
	}
	return entries
}

// scale is that of shares, from 0.001 % to 200 %; what is 0 lies on the ground.
func scale(p *plot.Plot) chart.Log {
	return chart.Logarithmic(&p.Y, 1e-5, 2, func(v float64) string { return fmt.Sprintf("%.4g %%", 100*v) })
}

// draw draws the results: a column of panels for each group, a line of them for
// each measure, a cluster of bars for each row and a bar for each rule.
func draw(groups []group, all map[string]results, seed uint64) []byte {
	page := chart.Page{
		Title:  "Many processes, one limit: what each rule costs",
		Note:   fmt.Sprintf("make fleet, seed %d; network 1 ms there and back", seed),
		Legend: append(legend(shownIn(all)), chart.Entry{Colour: barColour, Text: "the bar for adaptive"}),
		Width:  680, Height: 280,
	}
	for _, m := range measures {
		var row []*plot.Plot
		for _, g := range groups {
			row = append(row, m.panel(g, all))
		}
		page.Rows = append(page.Rows, row)
	}
	return page.SVG()
}

// panel is one measure of one group.
func (m measure) panel(g group, all map[string]results) *plot.Plot {
	p := chart.New(m.title+", by "+g.axis, "")
	up := scale(p)
	var names []string
	for _, r := range g.rows {
		names = append(names, table.Wrap(r.name, 12))
	}
	chart.Named(&p.X, names)
	chart.Grid(p, false, true)
	shown := shownIn(all)
	const cluster, gap = 0.84, 0.01
	width := cluster / float64(len(shown))
	for i, r := range g.rows {
		for j, rule := range shown {
			x := float64(i) + (1-cluster)/2 + width*float64(j)
			v, ok := m.of(r.scenario, all[rule.name][r.scenario])
			label, top := percent(v), up.At(v)
			if !ok {
				label, top = "–", p.Y.Min
			}
			if top > p.Y.Min {
				chart.Box(p, x, p.Y.Min, x+width-gap, top, colours[rule.name])
			}
			if most := m.bar(r.bar); rule.name == adaptive && most > 0 {
				chart.Line(p, plotter.XYs{{X: x - gap, Y: up.At(most)}, {X: x + width, Y: up.At(most)}}, barColour, 2)
				if top < up.At(most) && up.At(most)-top < 0.4 { // the number has no room between
					top = up.At(most)
				}
			}
			chart.Label(p, x+width/2, top, label, true)
		}
	}
	return p
}

// percent is v in two digits.
func percent(v float64) string {
	switch v *= 100; {
	case v == 0:
		return "0"
	case v < 0.1:
		return fmt.Sprintf("%.1g", v)
	case v < 10:
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// onTime is the fleet that drawTime shows.
var onTime = hundred(zipf, 1.5)

// courses are its panels.
var courses = []struct {
	title string
	of    func(sim.Bucket) int64
}{
	{"Store calls, as a share of the requests", func(b sim.Bucket) int64 { return b.Calls }},
	{"Requests that wait for the store", func(b sim.Bucket) int64 { return b.Waited }},
}

// drawTime draws what one fleet does over time under each rule: a panel for store
// calls, one for requests that wait for them.
func drawTime(all map[string]results, seed uint64) []byte {
	s := onTime
	page := chart.Page{
		Title: "How many requests reach the store, over time",
		Note: fmt.Sprintf("%d processes share %s tokens/%s and want %v × as many, by %s: what comes after two thirds of a window is refused. make fleet, seed %d",
			s.processes, table.Commas(s.limit.Tokens), span(s.limit.Window), s.demand, s.kind.name, seed),
		Legend: legend(shownIn(all)),
		Rows:   [][]*plot.Plot{nil}, Width: 500, Height: 270,
	}
	for _, m := range courses {
		p := chart.New(m.title, "minutes since the start; what is 0 lies on the lowest line")
		up := scale(p)
		chart.Linear(&p.X, 0, float64(s.windows)*s.limit.Window.Minutes(), s.windows, func(v float64) string { return fmt.Sprint(math.Round(v)) })
		chart.Grid(p, true, true)
		for _, r := range shownIn(all) {
			var steps plotter.XYs
			for i, b := range all[r.name][s].course {
				y := up.At(sim.Ratio(m.of(b), b.Requests))
				for _, edge := range []int{i, i + 1} {
					steps = append(steps, plotter.XY{X: p.X.Max * float64(edge) / float64(s.windows*stepsPerWindow), Y: y})
				}
			}
			chart.Line(p, steps, colours[r.name], 1.6)
		}
		page.Rows[0] = append(page.Rows[0], p)
	}
	return page.SVG()
}

package fleet

import (
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/plot"

	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// group is a set of rows that belong together: a block of the table, a column of the
// chart.
type group struct {
	part, title string
	axis        string // what the rows' names stand for
	rows        []row
}

// measures are the lines of panels in the chart. Their scale is logarithmic, because
// the rules are orders of magnitude apart.
var measures = []struct {
	title string
	of    func(outcome) float64
}{
	{"Store calls per admitted request", func(o outcome) float64 { return o.calls }},
	{"Share of the limit stranded at the first refusal", func(o outcome) float64 { return o.stranded }},
	{"Share of requests that wait for the network", func(o outcome) float64 { return o.waited }},
}

var colours = map[string]chart.Colour{"direct": 0x5f6368, "fixed": 0xe69f00, "ladder": 0xcc79a7, adaptive: 0x0072b2}

// draw draws the results: a panel for each measure and group, and in it a dot for each row
// and rule.
func draw(groups []group, all map[string]results, seed uint64) []byte {
	shown := slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return all[r.name] == nil })
	page := chart.Page{
		Title: "Many processes, one limit: what each rule costs",
		Note:  fmt.Sprintf("make fleet, seed %d; network 1 ms there and back; in percent, what is 0 is not drawn", seed),
		Width: 620, Height: 260,
	}
	for _, r := range shown {
		page.Legend = append(page.Legend, chart.Entry{Colour: colours[r.name], Text: r.name + ": " + r.what})
	}
	for _, m := range measures {
		for _, g := range groups {
			p := chart.New(m.title+", by "+g.axis, "")
			up := chart.Logarithmic(&p.Y, 1e-5, 1, func(v float64) string { return fmt.Sprintf("%.4g %%", 100*v) })
			var names []string
			for i, row := range g.rows {
				names = append(names, strings.Replace(table.Wrap(row.name, 12), " × ", " ×\n", 1))
				for j, r := range shown {
					if v := m.of(all[r.name][row.scenario]); v > 0 {
						chart.Dot(p, float64(i)+0.22*(float64(j)-1.5), up(v), 3, colours[r.name], percent(v), true)
					}
				}
			}
			chart.Named(&p.X, names)
			page.Plots = append(page.Plots, []*plot.Plot{p})
		}
	}
	return page.SVG()
}

// percent formats v with two digits, or with one if it is small.
func percent(v float64) string {
	switch v *= 100; {
	case v < 0.1:
		return fmt.Sprintf("%.1g", v)
	case v < 10:
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

package bench

import (
	"fmt"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
)

// drawing is a page of panels, a panel for each scenario and a row in it for each
// kind. The scales are logarithmic, for the kinds are orders of magnitude apart.
type drawing struct {
	file, title     string
	redis           bool    // whether the scenarios over Redis are shown, or the others
	lowest, highest float64 // of the scale
	tick            func(v float64) string
	of              func(l *line) (values []float64, label string) // the dots, the last of which has a label
}

var drawings = []drawing{
	{"peers-throughput.svg", "Admitted requests per second, with the store commands for each of them", true, 1e2, 1e8, perSecondTick,
		func(l *line) ([]float64, string) {
			v := l.median(throughput)
			return []float64{v}, fmt.Sprintf("%s  (%s)", count(v), digits(l.median(commands)))
		}},
	{"peers-latency.svg", "Latency: half, 99 % and 99.9 % of requests took no more (the larger the dot, the rarer)", true, 1e-8, 1, timeTick,
		func(l *line) (values []float64, label string) {
			h := l.latency()
			for _, q := range []float64{0.50, 0.99, 0.999} {
				values = append(values, h.Quantile(q).Seconds())
			}
			return values, short(h.Quantile(0.999))
		}},
	{"peers-process.svg", "Time per answer from memory", false, 1e-9, 1e-5, timeTick,
		func(l *line) ([]float64, string) {
			v := l.median(cost)
			return []float64{v}, short(roundNanos(v))
		}},
}

// Powers of ten need no digits after the point.
var whole = strings.NewReplacer(".00", "", ".0", "")

func perSecondTick(v float64) string { return whole.Replace(count(v)) }
func timeTick(v float64) string      { return whole.Replace(short(roundNanos(v))) }

// render draws d, two panels in a row; ok is false if there is nothing to draw.
func (d drawing) render(r results) (svg []byte, ok bool) {
	page := chart.Page{Title: d.title, Note: "[name] is a stand-in; make bench", Width: 640}
	for _, group := range r.byScenario() {
		if group[0].scenario.redis() != d.redis {
			continue
		}
		page.Height = max(page.Height, 70+19*len(group))
		if n := len(page.Rows); n > 0 && page.Rows[n-1][1] == nil {
			page.Rows[n-1][1] = d.panel(group)
		} else {
			page.Rows = append(page.Rows, []*plot.Plot{d.panel(group), nil})
		}
	}
	if len(page.Rows) == 0 {
		return nil, false
	}
	return page.SVG(), true
}

// panel draws the group's first line at the top.
func (d drawing) panel(group []*line) *plot.Plot {
	p := chart.New(group[0].scenario.title, "")
	scale := chart.Logarithmic(&p.X, d.lowest, d.highest, d.tick)
	var names []string
	for _, l := range slices.Backward(group) {
		y := float64(len(names))
		names = append(names, l.kind.name)
		var dots plotter.XYs
		values, label := d.of(l)
		for i, v := range values {
			text := ""
			if i == len(values)-1 {
				text = label
			}
			dots = append(dots, plotter.XY{X: scale.At(v), Y: y})
			chart.Dot(p, dots[i].X, y, 2.5+float64(i), colour(l.kind), text, false)
		}
		chart.Curve(p, dots, colour(l.kind))
	}
	chart.Named(&p.Y, names)
	return p
}

// colour tells the library, floors and peers apart.
func colour(k kind) string {
	switch {
	case strings.HasPrefix(k.name, "reservoir"):
		return "#0072b2"
	case strings.HasPrefix(k.name, "floor"), strings.HasPrefix(k.name, "bare"):
		return "#9aa0a6"
	}
	return "#e69f00"
}

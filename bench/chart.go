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
	file, title, note string
	lowest, highest   float64 // of the scale
	tick              func(v float64) string
	of                func(scenario) bool // whether it has a panel
	draw              func(p panel, l *line, y float64)
}

func drawings() []drawing {
	return []drawing{
		{
			file: "peers-throughput.svg", title: "Admitted requests per second", lowest: 1e2, highest: 1e8,
			note: "with the store commands for each of them; ", tick: perSecondTick, of: scenario.redis, draw: drawThroughput,
		},
		{
			file: "peers-latency.svg", title: "Latency: half, 99 % and 99.9 % of requests took no more",
			note: "the larger the dot, the rarer; ", lowest: 1e-8, highest: 1,
			tick: timeTick, of: scenario.redis, draw: drawLatency,
		},
		{
			file: "peers-process.svg", title: "Time per answer from memory", lowest: 1e-9, highest: 1e-5,
			tick: timeTick, of: func(s scenario) bool { return !s.redis() }, draw: drawCost,
		},
	}
}

// Powers of ten need no digits after the point.
var whole = strings.NewReplacer(".00", "", ".0", "")

func perSecondTick(v float64) string { return whole.Replace(count(v)) }
func timeTick(v float64) string      { return whole.Replace(short(roundNanos(v))) }

// panel is one scenario of a drawing.
type panel struct {
	*plot.Plot
	scale chart.Log
}

// render draws d, two panels in a row; ok is false if there is nothing to draw.
func (d drawing) render(ls lines) (svg []byte, ok bool) {
	page := chart.Page{Title: d.title, Note: d.note + "[name] is a stand-in; make bench", Width: 640}
	for group := range ls.byScenario() {
		if !d.of(group[0].scenario) {
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
func (d drawing) panel(group lines) *plot.Plot {
	p := panel{Plot: chart.New(group[0].scenario.title, "")}
	p.scale = chart.Logarithmic(&p.X, d.lowest, d.highest, d.tick)
	var names []string
	for _, l := range slices.Backward(group) {
		names = append(names, l.kind.name)
	}
	chart.Named(&p.Y, names)
	chart.Grid(p.Plot, true, false)
	for i := range group {
		d.draw(p, &group[i], float64(len(group)-i)-0.5)
	}
	return p.Plot
}

// bar draws v from the left end of the scale.
func (p panel) bar(l *line, y, v float64, label string) {
	chart.Box(p.Plot, p.X.Min, y-0.3, p.scale.At(v), y+0.3, colour(l.kind))
	chart.Label(p.Plot, p.scale.At(v), y, label, false)
}

func drawThroughput(p panel, l *line, y float64) {
	v := l.median(throughput)
	p.bar(l, y, v, fmt.Sprintf("%s  (%s)", count(v), digits(l.median(commands))))
}

func drawCost(p panel, l *line, y float64) {
	p.bar(l, y, l.median(cost), short(roundNanos(l.median(cost))))
}

func drawLatency(p panel, l *line, y float64) {
	h := l.latency()
	var points plotter.XYs
	for i, q := range []float64{0.50, 0.99, 0.999} {
		points = append(points, plotter.XY{X: p.scale.At(quantileOf(h, q).Seconds()), Y: y})
		chart.Dot(p.Plot, points[i].X, y, 2.5+float64(i), colour(l.kind))
	}
	chart.Line(p.Plot, points, colour(l.kind), 2)
	chart.Label(p.Plot, points[2].X, y, short(quantileOf(h, 0.99)), false)
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

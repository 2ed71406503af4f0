package bench

import (
	"math"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// draw draws a panel for each scenario over Redis, with a line for each kind. The scale
// is logarithmic, because kinds differ by orders of magnitude. ok is false if r has no
// such scenario.
func draw(r results) (svg []byte, ok bool) {
	page := chart.Page{
		Title: "Latency, and admitted requests per second",
		Note:  "dots: half, 99 % and 99.9 % of requests took no more; [name] is a stand-in; make bench", Width: 520,
	}
	for _, group := range r.groups {
		if !group[0].scenario.redis() {
			continue
		}
		page.Height = max(page.Height, 70+19*len(group))
		page.Plots = append(page.Plots, []*plot.Plot{panel(group)})
	}
	if len(page.Plots) == 0 {
		return nil, false
	}
	return page.SVG(), true
}

// panel draws the group's first line at the top.
func panel(group []*line) *plot.Plot {
	p := chart.New(group[0].scenario.title, "")
	tick := strings.NewReplacer(".00 ", " ", ".0 ", " ")
	scale := chart.Logarithmic(&p.X, 1e-8, 1, func(v float64) string { return tick.Replace(table.Duration(time.Duration(math.Round(v * 1e9)))) })
	var names []string
	for _, l := range slices.Backward(group) {
		y, hue := float64(len(names)), colour(l.kind)
		names = append(names, l.kind.name)
		h, labels := l.latency(), []string{"", "", table.Count(l.median(throughput)) + "/s"}
		var dots plotter.XYs
		for i, q := range []float64{0.50, 0.99, 0.999} {
			dots = append(dots, plotter.XY{X: scale(h.Quantile(q).Seconds()), Y: y})
			chart.Dot(p, dots[i].X, y, 2.5+float64(i), hue, labels[i], false)
		}
		chart.Curve(p, dots, hue)
	}
	chart.Named(&p.Y, names)
	return p
}

// colour distinguishes the library, floors and peers.
func colour(k kind) chart.Colour {
	switch {
	case strings.HasPrefix(k.name, "reservoir"):
		return 0x0072b2
	case strings.HasPrefix(k.name, "bare"):
		return 0x9aa0a6
	}
	return 0xe69f00
}

package main

import (
	"fmt"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// The chart of a replay: store calls and stranding against batch size, and the
// share of requests that reach the store over time, as in Rockset's article.
func (r *tuneReport) chart() []byte {
	page := chart.Page{Title: "Batch policies on the same traffic", Note: r.heading, Width: 840, Height: 290}
	colours := r.colours()
	for i, o := range r.Policies {
		page.Legend = append(page.Legend, chart.Entry{Colour: colours[i], Text: o.Policy})
	}
	for _, p := range []*plot.Plot{r.callsBySize(colours), r.strandedBySize(colours), r.callsByTime(colours)} {
		page.Rows = append(page.Rows, []*plot.Plot{p})
	}
	return page.SVG()
}

// colours are one for each policy: the same for a kind, of which only Fixed has many.
func (r *tuneReport) colours() []string {
	kinds := map[sim.Kind]string{sim.Direct: "#777777", sim.Ladder: "#cc79a7", sim.Adaptive: "#0072b2"}
	sizes := []string{"#e69f00", "#d55e00", "#009e73", "#8c6d1f", "#56b4e9", "#994f00"}
	var list []string
	for i, o := range r.Policies {
		colour, ok := kinds[o.Kind]
		if !ok {
			colour = sizes[i%len(sizes)]
		}
		list = append(list, colour)
	}
	return list
}

// power is the power of ten that is not below v, and at least ten.
func power(v float64) float64 { return math.Pow(10, math.Ceil(math.Log10(max(v, 10)))) }

func whole(v float64) string { return table.Commas(int64(math.Round(v))) }

func percentTick(v float64) string { return fmt.Sprintf("%.3g %%", 100*v) }

const belowSizes = "tokens that a call brought, on average"

func (r *tuneReport) callsBySize(colours []string) *plot.Plot {
	p := chart.New("Store calls against batch size", belowSizes)
	up := chart.Logarithmic(&p.Y, 1, power(r.most(func(o sim.Outcome) float64 { return float64(o.StoreCalls) })), whole)
	r.points(p, colours, func(o sim.Outcome) (float64, bool) { return up.At(float64(o.StoreCalls)), true })
	return p
}

func (r *tuneReport) strandedBySize(colours []string) *plot.Plot {
	p := chart.New("Share of the limit stranded at the first refusal, against batch size", belowSizes)
	chart.Linear(&p.Y, 0, max(r.most(func(o sim.Outcome) float64 { return o.Stranded }), 0.01), 4, percentTick)
	r.points(p, colours, func(o sim.Outcome) (float64, bool) { return o.Stranded, o.StrandedWindows > 0 })
	return p
}

// most is the most of a figure.
func (r *tuneReport) most(of func(sim.Outcome) float64) (most float64) {
	for _, o := range r.Policies {
		most = max(most, of(o))
	}
	return most
}

// points draws a policy each, where its batches are; a direct call is a batch of one.
// Those of one size, in the order of their sizes, are joined, so that the eye has a
// curve to compare the others with.
func (r *tuneReport) points(p *plot.Plot, colours []string, of func(sim.Outcome) (float64, bool)) {
	across := chart.Logarithmic(&p.X, 1, power(r.most(func(o sim.Outcome) float64 { return o.MeanBatch })), whole)
	chart.Grid(p, false, true)
	var curve plotter.XYs
	for i, o := range r.Policies {
		if v, ok := of(o); ok {
			x := across.At(o.MeanBatch)
			if o.Kind == sim.Fixed {
				curve = append(curve, plotter.XY{X: x, Y: v})
			}
			chart.Dot(p, x, v, 4, colours[i])
			chart.Label(p, x, v, o.Policy, false)
		}
	}
	chart.Line(p, curve, "#e6c27a", 1.5)
}

// callsByTime goes from 0.01 % to 100 %, for the policies are orders of magnitude
// apart. A part of the time without requests breaks a course.
func (r *tuneReport) callsByTime(colours []string) *plot.Plot {
	p := chart.New("Store calls as a share of requests, over time", "seconds of the traffic")
	up := chart.Logarithmic(&p.Y, 1e-4, 1, percentTick)
	chart.Linear(&p.X, 0, r.Traffic.Seconds, 4, func(v float64) string { return fmt.Sprintf("%.3g", v) })
	chart.Grid(p, false, true)
	for i, o := range r.Policies {
		var course plotter.XYs
		for j, b := range o.Timeline {
			if b.Requests == 0 {
				chart.Line(p, course, colours[i], 1.5)
				course = nil
				continue
			}
			middle := (float64(j) + 0.5) / float64(len(o.Timeline)) * r.Traffic.Seconds
			course = append(course, plotter.XY{X: middle, Y: up.At(sim.Ratio(b.Calls, b.Requests))})
		}
		chart.Line(p, course, colours[i], 1.5)
	}
	return p
}

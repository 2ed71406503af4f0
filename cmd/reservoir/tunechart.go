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

var colours = []string{"#777777", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#0072b2", "#56b4e9", "#8c6d1f", "#994f00"}

func colourOf(i int) string { return colours[i%len(colours)] }

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
	stranded := r.bySize("Share of the limit stranded at the first refusal", 1e-4, 1, percentTick, func(o sim.Outcome) float64 { return o.Stranded })
	for _, p := range []*plot.Plot{calls, stranded, r.byTime()} {
		page.Rows = append(page.Rows, []*plot.Plot{p})
	}
	return page.SVG()
}

func whole(v float64) string { return table.Commas(int64(math.Round(v))) }

func percentTick(v float64) string { return fmt.Sprintf("%.3g %%", 100*v) }

// bySize draws a policy each, where its batches are; a direct call is a batch of one.
func (r *tuneReport) bySize(title string, least, most float64, name func(float64) string, of func(sim.Outcome) float64) *plot.Plot {
	p := chart.New(title+", against batch size", "tokens that a call brought, on average")
	widest := 10.0
	for _, o := range r.Policies {
		widest = max(widest, o.MeanBatch)
	}
	across, up := chart.Logarithmic(&p.X, 1, widest, whole), chart.Logarithmic(&p.Y, least, max(most, least), name)
	for i, o := range r.Policies {
		chart.Dot(p, across.At(o.MeanBatch), up.At(of(o)), 4, colourOf(i), o.Policy, false)
	}
	return p
}

// byTime goes from 0.01 % to 100 %, for the policies are orders of magnitude
// apart. A part of the time without requests breaks a course.
func (r *tuneReport) byTime() *plot.Plot {
	p := chart.New("Store calls as a share of requests, over time", "seconds of the traffic")
	up := chart.Logarithmic(&p.Y, 1e-4, 1, percentTick)
	p.X.Min, p.X.Max = 0, r.Traffic.Seconds
	for i, o := range r.Policies {
		var course plotter.XYs
		for j, b := range o.Timeline {
			if b.Requests == 0 {
				chart.Curve(p, course, colourOf(i))
				course = nil
				continue
			}
			middle := (float64(j) + 0.5) / float64(len(o.Timeline)) * r.Traffic.Seconds
			course = append(course, plotter.XY{X: middle, Y: up.At(sim.Ratio(b.Calls, b.Requests))})
		}
		chart.Curve(p, course, colourOf(i))
	}
	return p
}

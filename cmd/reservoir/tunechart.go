package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// The chart of a replay: store calls and stranding against batch size, and the
// share of requests that reach the store over time, as in Rockset's article.

// The layout, in pixels.
const (
	chartWidth  = 860
	panelWidth  = 700
	panelHeight = 220
	panelLeft   = 90
	panelTop    = 110 // heading and legend
	panelGap    = 90
)

// chart draws the report as SVG.
func (r *tuneReport) chart() []byte {
	c := newCanvas(chartWidth, panelTop+3*(panelHeight+panelGap))
	c.text(16, 26, "start", "#111", 15, "Batch policies on the same traffic")
	c.text(16, 46, "start", "#555", 11, r.heading)
	colours := r.colours()
	r.legend(c, colours)
	at := func(i int) float64 { return panelTop + float64(i)*(panelHeight+panelGap) }
	sizes := r.sizes()
	calls := panel{c, at(0), "Store calls against batch size", "tokens that a call brought, on average", sizes, r.callScale()}
	calls.frame()
	calls.points(r.Policies, colours, func(o sim.Outcome) (float64, bool) { return float64(o.StoreCalls), true })
	strands := panel{c, at(1), "Share of the limit stranded at the first refusal, against batch size", calls.below, sizes, r.strandScale()}
	strands.frame()
	strands.points(r.Policies, colours, func(o sim.Outcome) (float64, bool) { return o.Stranded, o.StrandedWindows > 0 })
	time := panel{c, at(2), "Store calls as a share of requests, over time", "seconds of the traffic",
		linear(0, r.Traffic.Seconds, func(v float64) string { return fmt.Sprintf("%.3g", v) }), shares()}
	time.frame()
	for i, o := range r.Policies {
		time.course(o.Timeline, r.Traffic.Seconds, colours[i])
	}
	return c.end()
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

func (r *tuneReport) legend(c *canvas, colours []string) {
	x, y := 16.0, 60.0
	for i, o := range r.Policies {
		width := 36 + 6.5*float64(len(o.Policy))
		if x+width > chartWidth {
			x, y = 16, y+16
		}
		c.rect(x, y, 11, 11, colours[i])
		c.text(x+16, y+10, "start", "#333", 12, o.Policy)
		x += width
	}
}

// size is where a policy stands on the axis of batch sizes. A direct call is a
// batch of one.
func size(o sim.Outcome) float64 { return max(o.MeanBatch, 1) }

func (r *tuneReport) sizes() scale {
	most := 10.0
	for _, o := range r.Policies {
		most = max(most, size(o))
	}
	return logarithmic(1, most)
}

func (r *tuneReport) callScale() scale {
	least, most := math.Inf(1), 10.0
	for _, o := range r.Policies {
		calls := float64(max(o.StoreCalls, 1))
		least, most = min(least, calls), max(most, calls)
	}
	return logarithmic(least, most)
}

func (r *tuneReport) strandScale() scale {
	most := 0.01
	for _, o := range r.Policies {
		most = max(most, o.Stranded)
	}
	return linear(0, most, percentTick)
}

func percentTick(v float64) string { return fmt.Sprintf("%.3g %%", 100*v) }

// scale maps values to 0…1 and has some to be marked.
type scale struct {
	at    func(v float64) float64
	ticks []float64
	name  func(v float64) string
}

func linear(from, to float64, name func(float64) string) scale {
	s := scale{at: func(v float64) float64 { return clamp((v - from) / (to - from)) }, name: name}
	for i := range 5 {
		s.ticks = append(s.ticks, from+(to-from)*float64(i)/4)
	}
	return s
}

// logarithmic goes from a power of ten to another, with both values in between.
func logarithmic(least, most float64) scale {
	from := math.Floor(math.Log10(least))
	to := max(math.Ceil(math.Log10(most)), from+1)
	s := scale{
		at:   func(v float64) float64 { return clamp((math.Log10(max(v, 1e-9)) - from) / (to - from)) },
		name: func(v float64) string { return commas(int64(math.Round(v))) },
	}
	for e := from; e <= to; e++ {
		s.ticks = append(s.ticks, math.Pow(10, e))
	}
	return s
}

// shares go from 0.01 % to 100 %, for the policies are orders of magnitude apart.
// What is less lies on the ground.
func shares() scale {
	s := logarithmic(1e-4, 1)
	s.name = percentTick
	return s
}

func clamp(v float64) float64 { return min(max(v, 0), 1) }

// panel is one of the diagrams.
type panel struct {
	*canvas
	top          float64
	title, below string
	across, up   scale
}

func (p panel) x(v float64) float64 { return panelLeft + panelWidth*p.across.at(v) }
func (p panel) y(v float64) float64 { return p.top + panelHeight*(1-p.up.at(v)) }

// frame draws all but the values.
func (p panel) frame() {
	p.text(panelLeft, p.top-10, "start", "#111", 13, p.title)
	for _, v := range p.up.ticks {
		p.line(panelLeft, p.y(v), panelLeft+panelWidth, p.y(v), "#ddd")
		p.text(panelLeft-8, p.y(v)+4, "end", "#666", 11, p.up.name(v))
	}
	for _, v := range p.across.ticks {
		p.line(p.x(v), p.top+panelHeight, p.x(v), p.top+panelHeight+4, "#888")
		p.text(p.x(v), p.top+panelHeight+17, "middle", "#666", 11, p.across.name(v))
	}
	p.line(panelLeft, p.top+panelHeight, panelLeft+panelWidth, p.top+panelHeight, "#888")
	p.text(panelLeft+panelWidth/2, p.top+panelHeight+36, "middle", "#555", 11, p.below)
}

// points draws a policy each. Those of one size, in the order of their sizes, are
// joined, so that the eye has a curve to compare the others with.
func (p panel) points(all []sim.Outcome, colours []string, of func(sim.Outcome) (float64, bool)) {
	var curve []point
	for i, o := range all {
		v, ok := of(o)
		if !ok {
			continue
		}
		at := point{p.x(size(o)), p.y(v)}
		if o.Kind == sim.Fixed {
			curve = append(curve, at)
		}
		p.circle(at, 4, colours[i])
		p.text(at.x+7, at.y-5, "start", "#333", 10, o.Policy)
	}
	p.polyline(curve, "#e6c27a")
}

// course draws a policy's share of calls over time. A part of the time without
// requests breaks it.
func (p panel) course(parts []sim.Bucket, seconds float64, colour string) {
	var curve []point
	for i, b := range parts {
		if b.Requests == 0 {
			p.polyline(curve, colour)
			curve = nil
			continue
		}
		middle := (float64(i) + 0.5) / float64(len(parts)) * seconds
		curve = append(curve, point{p.x(middle), p.y(float64(b.Calls) / float64(b.Requests))})
	}
	p.polyline(curve, colour)
}

type point struct{ x, y float64 }

// canvas writes the few elements of SVG that the chart is made of.
type canvas struct{ bytes.Buffer }

func newCanvas(width, height int) *canvas {
	c := new(canvas)
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif">`+"\n",
		width, height, width, height)
	c.rect(0, 0, float64(width), float64(height), "#fff")
	return c
}

func (c *canvas) end() []byte {
	c.WriteString("</svg>\n")
	return c.Bytes()
}

func (c *canvas) rect(x, y, width, height float64, fill string) {
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, width, height, fill)
}

func (c *canvas) circle(at point, r float64, fill string) {
	fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`+"\n", at.x, at.y, r, fill)
}

func (c *canvas) line(x1, y1, x2, y2 float64, stroke string) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, stroke)
}

func (c *canvas) polyline(points []point, stroke string) {
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(c, `<polyline fill="none" stroke="%s" stroke-width="1.5" points="`, stroke)
	for _, p := range points {
		fmt.Fprintf(c, "%.1f,%.1f ", p.x, p.y)
	}
	c.WriteString(`"/>` + "\n")
}

// text writes s at a point that is its start, middle or end.
func (c *canvas) text(x, y float64, anchor, fill string, size int, s string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" font-size="%d">`, x, y, anchor, fill, size)
	_ = xml.EscapeText(c, []byte(s)) // to a buffer, which never fails
	c.WriteString("</text>\n")
}

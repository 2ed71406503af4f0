package main

import (
	"bytes"
	"fmt"
	"html"
	"math"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// The page is narrow, so that its text can be read on a phone.
const (
	width, height = 560, 420
	left, right   = 62, 550 // of both diagrams
)

// panel is a diagram: bars over time, between two heights on the page.
type panel struct {
	top, bottom float64
	most        float64 // the value at the top
	until       float64 // the time at the right end
}

func (p panel) x(t float64) float64 { return left + (right-left)*min(t/p.until, 1) }
func (p panel) y(v float64) float64 { return p.bottom - (p.bottom-p.top)*v/p.most }

// style has the colours for light pages and for dark ones.
const style = `
svg { color-scheme: light dark; font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; font-size: 16px; fill: #1f2328; }
.title { font-size: 21px; font-weight: 600; }
.axis { stroke: #d1d9e0; }
.fault { stroke: #1f2328; stroke-dasharray: 4 3; }
.away { fill: #818b98; opacity: .18; }
.admitted { fill: #0969da; } .refused { fill: #b3bcc6; } .failed { fill: #cf222e; } .calls { fill: #bc4c00; }
@media (prefers-color-scheme: dark) {
svg { fill: #f0f6fc; }
.axis { stroke: #3d444d; }
.fault { stroke: #f0f6fc; }
.admitted { fill: #4493f8; } .refused { fill: #656c76; } .failed { fill: #f85149; } .calls { fill: #db6d28; }
}
`

// canvas is an SVG being written.
type canvas struct{ bytes.Buffer }

func (c *canvas) text(x, y float64, class, anchor, format string, args ...any) {
	fmt.Fprintf(c, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, html.EscapeString(fmt.Sprintf(format, args...)))
}

func (c *canvas) rect(x, y, w, h float64, class string) {
	if h > 0 {
		fmt.Fprintf(c, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>\n", x, y, w, h, class)
	}
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(c, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

// draw draws a record of the demo.
func draw(data []byte) ([]byte, error) {
	r, err := parse(data)
	if err != nil {
		return nil, err
	}
	c := new(canvas)
	fmt.Fprintf(c, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"title\">\n", width*5/4, height*5/4, width, height)
	fmt.Fprintf(c, "<title id=\"title\">%s</title>\n<style>%s</style>\n", question, style)
	c.text(8, 26, "title", "start", question)
	c.text(8, 52, "", "start", "Three processes share a limit of %s in %.0f s. For %s requests", table.Commas(r.Limit), r.Window, table.Commas(r.Total.Requests))
	c.text(8, 74, "", "start", "they made %s Redis calls. No window admitted more than %s.", table.Commas(r.Total.Calls), table.Commas(r.Most))
	requests := panel{150, 264, 0, r.Seconds}
	calls := panel{320, 384, 0, r.Seconds}
	for _, s := range r.Samples {
		requests.most, calls.most = max(requests.most, float64(s.sum().Requests)), max(calls.most, float64(s.sum().Calls))
	}
	requests.most, calls.most = round(requests.most), round(calls.most)
	c.text(8, 108, "", "start", "Requests in a second:")
	at := 176.0
	for _, part := range []struct {
		class, words string
		room         float64
	}{{"admitted", "admitted", 100}, {"refused", "refused", 92}, {"failed", "error (or your choice)", 0}} {
		c.rect(at, 96, 13, 13, part.class)
		c.text(at+18, 108, "", "start", "%s", part.words)
		at += part.room
	}
	r.faults(c, requests, calls)
	requests.axis(c)
	c.rect(8, 292, 13, 13, "calls")
	c.text(26, 304, "", "start", "Redis calls in a second")
	calls.axis(c)
	before := 0.0
	for _, s := range r.Samples {
		sum := s.sum()
		requests.stack(c, before, s.At, []int64{sum.Admitted, sum.Refused, sum.Failed}, []string{"admitted", "refused", "failed"})
		calls.stack(c, before, s.At, []int64{sum.Calls}, []string{"calls"})
		before = s.At
	}
	for t := 0.0; t < r.Seconds-5; t += 10 {
		c.text(calls.x(t), 404, "", "middle", "%.0f", t)
	}
	c.text(right, 404, "", "end", "%.0f s", r.Seconds)
	c.WriteString("</svg>\n")
	return c.Bytes(), nil
}

const question = "What if a process dies, and then Redis?"

// faults draws what happened behind both diagrams, and says it above the first.
func (r record) faults(c *canvas, requests, calls panel) {
	for _, p := range []panel{requests, calls} {
		c.rect(p.x(r.DownAt), p.top, p.x(r.UpAt)-p.x(r.DownAt), p.bottom-p.top, "away")
		c.line(p.x(r.KilledAt), p.top, p.x(r.KilledAt), p.bottom, "fault")
	}
	c.text(requests.x(r.KilledAt), requests.top-8, "", "middle", "a process is killed")
	c.text(requests.x((r.DownAt+r.UpAt)/2), requests.top-8, "", "middle", "Redis is gone")
}

// axis draws the base line, and the value at the top.
func (p panel) axis(c *canvas) {
	c.line(left, p.top, right, p.top, "axis")
	c.line(left, p.bottom, right, p.bottom, "axis")
	c.text(left-6, p.top+5, "", "end", "%s", table.Commas(int64(p.most)))
	c.text(left-6, p.bottom+5, "", "end", "0")
}

// stack draws the bar of a sample, by the second. A sample is about a second long, but the last
// one may be too short for a bar.
func (p panel) stack(c *canvas, from, to float64, parts []int64, classes []string) {
	if to-from < 0.1 {
		return
	}
	x, w := p.x(from), p.x(to)-p.x(from)-1
	sum := 0.0
	for i, part := range parts {
		next := sum + float64(part)/(to-from)
		next = min(next, p.most)
		c.rect(x, p.y(next), max(w, 1), p.y(sum)-p.y(next), classes[i])
		sum = next
	}
}

// round returns the least value above v with one or two digits.
func round(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(max(v, 1))))
	return math.Ceil(v/unit*2) / 2 * unit
}

package fleet

import (
	"fmt"
	"math"
)

// onTime is the fleet that timeChart shows.
var onTime = hundred(zipf, 1.5)

// courses are the panels of the chart.
var courses = []struct {
	title string
	of    func(moment) float64
}{
	{"Store calls, as a share of the requests", func(m moment) float64 { return m.calls }},
	{"Requests that wait for the store", func(m moment) float64 { return m.waited }},
}

// The layout of the chart, in pixels.
const (
	courseWidth = 440
	courseTop   = 112 // heading, what is shown, legend
)

// timeChart draws what one fleet does over time under each rule: a panel for store
// calls, one for requests that wait for them. The scale is logarithmic; what is 0
// lies on the ground.
func timeChart(all map[string]results, seed uint64) []byte {
	width, height := marginLeft+len(courses)*(courseWidth+gapX), courseTop+panelHeight+62
	c := newCanvas(width, height)
	s := onTime
	c.text(16, 26, "start", "#111", 17, "How many requests reach the store, over time")
	c.text(16, 46, "start", "#555", 12, fmt.Sprintf("%d processes share %s tokens/%s and want %v × as many; the limit lasts two thirds of a window, and what comes then is refused",
		s.processes, thousands(s.limit.Tokens), span(s.limit.Window), s.demand))
	x := 16.0
	for _, r := range shownIn(all) {
		c.rect(x, 60, 11, 11, colours[r.name])
		c.text(x+16, 70, "start", "#333", 12, r.name+": "+r.what)
		x += 40 + 5.9*float64(len(r.name+r.what))
	}
	for i, m := range courses {
		p := panel{canvas: c, x: marginLeft + float64(i*(courseWidth+gapX)), y: courseTop}
		p.text(p.x, p.y-10, "start", "#111", 13, m.title)
		p.over(s, i == 0)
		for _, r := range shownIn(all) {
			p.curve(all[r.name][s].course, s, m.of, colours[r.name])
		}
	}
	c.text(float64(width-gapX), float64(height-8), "end", "#666", 11, fmt.Sprintf("what is 0 lies on the lowest line; make fleet, seed %d; %s; network 1 ms there and back", seed, s.kind.name))
	return c.end()
}

// over draws the grid: powers of ten, and windows.
func (p panel) over(s scenario, named bool) {
	p.axis(courseWidth, named)
	for i := range s.windows + 1 {
		x := p.x + courseWidth*float64(i)/float64(s.windows)
		p.line(x, p.y, x, p.y+panelHeight, "#ccc", 1)
		p.text(x, p.y+panelHeight+16, "middle", "#666", 11, fmt.Sprint(float64(i)*s.limit.Window.Minutes()))
	}
	p.text(p.x+courseWidth/2, p.y+panelHeight+34, "middle", "#555", 11, "minutes since the start")
}

// curve draws one rule, in steps.
func (p panel) curve(course []moment, s scenario, of func(moment) float64, colour string) {
	steps := s.windows * stepsPerWindow
	var points []point
	for i, m := range course[:min(len(course), steps)] {
		y := p.level(max(of(m), math.SmallestNonzeroFloat64))
		for _, edge := range []int{i, i + 1} {
			points = append(points, point{p.x + courseWidth*float64(edge)/float64(steps), y})
		}
	}
	p.polyline(points, colour)
}

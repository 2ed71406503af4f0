package fleet

import (
	"fmt"
	"math"
	"slices"
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

// The layout, in pixels.
const (
	panelWidth  = 620
	panelHeight = 190
	marginLeft  = 64
	marginTop   = 84 // heading and legend
	gapX        = 36
	gapY        = 92 // a panel's title and the names below the one above
	marginEnd   = 66
)

// The scale, in powers of ten: from 0.001 % to 200 %.
const (
	lowest  = -5
	highest = 0.31
)

var colours = map[string]string{"direct": "#9aa0a6", "fixed": "#e69f00", "ladder": "#cc79a7", adaptive: "#0072b2"}

// chart draws the results: a column of panels for each group, a line of them for
// each measure, a cluster of bars for each row and a bar for each rule.
func chart(groups []group, all map[string]results, seed uint64) []byte {
	shown := shownIn(all)
	width := marginLeft + len(groups)*(panelWidth+gapX)
	height := marginTop + len(measures)*(panelHeight+gapY) + marginEnd - gapY
	c := newCanvas(width, height)
	c.text(16, 26, "start", "#111", 17, "Many processes, one limit: what each rule costs")
	legend(c, shown)
	source := fmt.Sprintf("make fleet, seed %d; network 1 ms there and back", seed)
	c.text(float64(width-gapX), 26, "end", "#666", 11, source)
	for x, g := range groups {
		for y, m := range measures {
			p := panel{canvas: c, x: marginLeft + float64(x*(panelWidth+gapX)), y: marginTop + float64(y*(panelHeight+gapY))}
			p.draw(m, g, shown, all, x == 0)
		}
	}
	return c.end()
}

// shownIn is the rules that were simulated.
func shownIn(all map[string]results) []rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return all[r.name] == nil })
}

func legend(c *canvas, shown []rule) {
	x := 16.0
	for _, r := range shown {
		c.rect(x, 40, 11, 11, colours[r.name])
		c.text(x+16, 50, "start", "#333", 12, r.name+": "+r.what)
		x += 40 + 5.9*float64(len(r.name+r.what))
	}
	c.line(x, 46, x+14, 46, "#d00", 2)
	c.text(x+20, 50, "start", "#333", 12, "the bar for adaptive")
}

// panel is one measure of one group.
type panel struct {
	*canvas
	x, y float64
}

func (p panel) draw(m measure, g group, shown []rule, all map[string]results, named bool) {
	p.text(p.x, p.y-10, "start", "#111", 13, m.title+", by "+g.axis)
	p.axis(panelWidth, named)
	slot := panelWidth / float64(len(g.rows))
	bars := slot * 0.84
	for i, r := range g.rows {
		left := p.x + slot*float64(i) + (slot-bars)/2
		for j, rule := range shown {
			width := bars / float64(len(shown))
			v, ok := m.of(r.scenario, all[rule.name][r.scenario])
			x := left + width*float64(j)
			most := 0.0
			if rule.name == adaptive {
				most = m.bar(r.bar)
			}
			p.bar(x, width, v, ok, most, colours[rule.name])
		}
		for k, part := range wrapped(r.name, 12) {
			p.text(left+bars/2, p.y+panelHeight+16+13*float64(k), "middle", "#333", 11, part)
		}
	}
}

// axis draws the grid, a line for each power of ten.
func (p panel) axis(width float64, named bool) {
	for e := lowest; float64(e) <= highest; e++ {
		y := p.level(math.Pow10(e))
		p.line(p.x, y, p.x+width, y, "#ddd", 1)
		if named {
			p.text(p.x-8, y+4, "end", "#666", 11, fmt.Sprintf("%.4g %%", math.Pow10(e+2)))
		}
	}
	p.line(p.x, p.y+panelHeight, p.x+width, p.y+panelHeight, "#888", 1)
}

// bar draws v with its number, and what it should not be above. What is 0 has no
// place on the scale, and what has no meaning no bar.
func (p panel) bar(x, width, v float64, ok bool, most float64, colour string) {
	const gap = 1.5
	bottom := p.y + panelHeight
	top, label := bottom, percent(v)
	if !ok {
		label = "–"
	} else if v > 0 {
		top = p.level(v)
		p.rect(x, top, width-gap, bottom-top, colour)
	}
	if most > 0 {
		y := p.level(most)
		p.line(x-2, y, x+width+2, y, "#d00", 2)
		if y < top && top-y < 12 { // the number has no room between
			top = y
		}
	}
	p.text(x+(width-gap)/2, top-3, "middle", "#444", 8, label)
}

// level is the height of v on the scale.
func (p panel) level(v float64) float64 {
	part := (math.Log10(v) - lowest) / (highest - lowest)
	return p.y + panelHeight*(1-min(max(part, 0), 1))
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

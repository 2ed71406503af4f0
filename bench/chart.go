package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/go-reservoir/reservoir/bench/internal/svg"
)

// chart is a page of panels, a panel for each scenario and a row in it for each
// kind. The scales are logarithmic, for the kinds are orders of magnitude apart.
type chart struct {
	file, title, note string
	lowest, highest   float64 // of the scale
	tick              func(v float64) string
	of                func(scenario) bool // whether it has a panel
	draw              func(p *panel, l *line, y float64)
}

func charts() []chart {
	return []chart{
		{
			file: "peers-throughput.svg", title: "Admitted requests per second", lowest: 1e2, highest: 1e8,
			note: "with the store commands for each of them", tick: perSecondTick, of: scenario.redis, draw: drawThroughput,
		},
		{
			file: "peers-latency.svg", title: "Latency: half, 99 % and 99.9 % of requests took no more",
			note: "the larger the dot, the rarer", lowest: 1e-8, highest: 1,
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

// The layout, in pixels.
const (
	nameWidth  = 190
	plotWidth  = 330
	labelWidth = 110
	rowHeight  = 19
	headHeight = 56
	tailHeight = 44
	panelGap   = 24
)

// panel is one scenario of a chart.
type panel struct {
	*svg.Canvas
	chart
	x, y float64 // of the plot's upper left corner
}

const columns = 2 // of panels

// render draws c; ok is false if there is nothing to draw.
func (c chart) render(ls lines) (drawing []byte, ok bool) {
	groups := c.groups(ls)
	tops := tops(groups)
	width := float64(columns*(nameWidth+plotWidth+labelWidth) + panelGap)
	canvas := svg.New(width, tops[len(tops)-1])
	canvas.Text(16, 24, "start", "#111", 17, c.title)
	note := strings.TrimPrefix(c.note+"; [name] is a stand-in; make bench", "; ")
	canvas.Text(width-16, 24, "end", "#666", 11, note)
	for i, g := range groups {
		x := float64(i%columns*(nameWidth+plotWidth+labelWidth)) + nameWidth
		(&panel{canvas, c, x, tops[i/columns]}).fill(g)
	}
	return canvas.Bytes(), len(groups) > 0
}

// groups are the lines of each scenario that has a panel.
func (c chart) groups(ls lines) (groups [][]*line) {
	for i := range ls {
		l, n := &ls[i], len(groups)
		switch {
		case !c.of(l.scenario):
		case n > 0 && groups[n-1][0].scenario.name == l.scenario.name:
			groups[n-1] = append(groups[n-1], l)
		default:
			groups = append(groups, []*line{l})
		}
	}
	return groups
}

// tops are where the plots of each row of panels begin, and where the last ends.
func tops(groups [][]*line) []float64 {
	all := []float64{headHeight}
	for row := range slices.Chunk(groups, columns) {
		most := 0
		for _, g := range row {
			most = max(most, len(g))
		}
		all = append(all, all[len(all)-1]+float64(most*rowHeight+tailHeight+panelGap))
	}
	return all
}

func (p *panel) fill(group []*line) {
	bottom := p.y + float64(len(group)*rowHeight) + 4
	p.Text(p.x, p.y-8, "start", "#111", 13, group[0].scenario.title)
	for v := p.lowest; v <= p.highest*1.001; v *= 10 {
		x := p.at(v)
		p.Line(x, p.y, x, bottom, "#ddd", 1)
		p.Text(x, bottom+14, "middle", "#666", 10, p.tick(v))
	}
	for i, l := range group {
		y := p.y + (float64(i)+0.5)*rowHeight + 2
		p.Text(p.x-8, y+4, "end", "#222", 11, l.kind.name)
		p.draw(p, l, y)
	}
}

// at is where v is on the scale.
func (p *panel) at(v float64) float64 {
	part := math.Log(v/p.lowest) / math.Log(p.highest/p.lowest)
	return p.x + plotWidth*min(max(part, 0), 1)
}

// bar draws v from the left end of the scale.
func (p *panel) bar(l *line, y, v float64, label string) {
	p.Rect(p.x, y-6, p.at(v)-p.x, 12, colour(l.kind))
	p.Text(p.at(v)+5, y+4, "start", "#444", 10, label)
}

func drawThroughput(p *panel, l *line, y float64) {
	v := l.median(throughput)
	p.bar(l, y, v, fmt.Sprintf("%s  (%s)", count(v), digits(l.median(commands))))
}

func drawCost(p *panel, l *line, y float64) {
	v := l.median(cost)
	p.bar(l, y, v, short(roundNanos(v)))
}

func drawLatency(p *panel, l *line, y float64) {
	h := l.latency()
	qs := []float64{0.50, 0.99, 0.999}
	p.Line(p.at(h.quantile(qs[0]).Seconds()), y, p.at(h.quantile(qs[2]).Seconds()), y, colour(l.kind), 2)
	for i, q := range qs {
		p.Dot(p.at(h.quantile(q).Seconds()), y, 2.5+float64(i), colour(l.kind))
	}
	p.Text(p.at(h.quantile(qs[2]).Seconds())+9, y+4, "start", "#444", 10, short(h.quantile(qs[1])))
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

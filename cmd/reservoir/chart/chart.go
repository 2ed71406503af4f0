// Package chart draws pages of diagrams as SVG, for "reservoir tune" and the module
// bench. The diagrams are those of gonum/plot; a logarithmic scale has the logarithms
// on a linear axis, for what is 0 shall lie on the ground.
package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Page is diagrams in rows of equally many, below a heading. nil is a gap.
type Page struct {
	Title, Note   string
	Legend        []Entry
	Rows          [][]*plot.Plot
	Width, Height int // of a diagram with its axes, in pixels
}

// Entry explains a colour.
type Entry struct{ Colour, Text string }

const (
	margin = 14
	line   = 18 // of the heading
)

// SVG draws the page.
func (p Page) SVG() []byte {
	width := vg.Length(p.Width*len(p.Rows[0]) + 2*margin)
	head := vg.Length(line*(len(p.Legend)+3) + margin)
	height := vg.Length(p.Height*len(p.Rows)) + head
	svg := vgsvg.New(width, height)
	c := draw.New(svg)
	c.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	c.FillText(style(16, "#111", 0), vg.Point{X: margin, Y: height - line - 4}, p.Title)
	c.FillText(style(11, "#666", 0), vg.Point{X: margin, Y: height - 2*line - 4}, p.Note)
	legend := plot.NewLegend()
	legend.Left, legend.Top, legend.ThumbnailWidth, legend.Padding, legend.TextStyle = true, true, 10, 8, style(11, "#333", 0)
	for _, e := range p.Legend {
		legend.Add(e.Text, e)
	}
	legend.Draw(draw.Crop(c, margin, 0, 0, -2.5*line))
	tiles := draw.Tiles{
		Rows: len(p.Rows), Cols: len(p.Rows[0]), PadX: margin, PadY: 2 * margin,
		PadTop: head, PadBottom: margin, PadLeft: margin, PadRight: margin,
	}
	for i, row := range plot.Align(p.Rows, tiles, c) {
		for j, tile := range row {
			if p.Rows[i][j] != nil {
				p.Rows[i][j].Draw(tile)
			}
		}
	}
	var b bytes.Buffer
	_, err := svg.WriteTo(&b) // a buffer
	must(err)
	_, drawing, _ := bytes.Cut(b.Bytes(), []byte("<svg ")) // which stands in an HTML page, too
	drawing = append([]byte("<svg "), drawing...)
	return bytes.ReplaceAll(drawing, []byte("font-family:Liberation Sans;"), []byte("font-family:Helvetica, Arial, Liberation Sans, sans-serif;"))
}

// Thumbnail implements plot.Thumbnailer.
func (e Entry) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(Colour(e.Colour), []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}

// New returns an empty diagram.
func New(title, below string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle, p.Title.Padding = title, style(12, "#111", -0.5), 6
	p.X.Label.Text, p.X.Label.TextStyle = below, style(10, "#555", -0.5)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color, a.Tick.LineStyle.Color, a.Padding = Colour("#888"), Colour("#888"), 0
		a.Tick.Label.Font, a.Tick.Label.Color = style(10, "#666", 0).Font, Colour("#666")
	}
	return p
}

// Grid draws a line at each mark of the axes.
func Grid(p *plot.Plot, vertical, horizontal bool) {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = Colour("#ddd"), Colour("#ddd")
	if !vertical {
		g.Vertical.Width = 0
	}
	if !horizontal {
		g.Horizontal.Width = 0
	}
	p.Add(g)
}

// Linear makes a scale with so many parts.
func Linear(a *plot.Axis, from, to float64, parts int, name func(v float64) string) {
	var marks plot.ConstantTicks
	for i := range parts + 1 {
		v := from + (to-from)*float64(i)/float64(parts)
		marks = append(marks, plot.Tick{Value: v, Label: name(v)})
	}
	a.Min, a.Max, a.Tick.Marker = from, to, marks
}

// Named makes a scale with a name in the middle of each unit.
func Named(a *plot.Axis, names []string) {
	var marks plot.ConstantTicks
	for i, name := range names {
		marks = append(marks, plot.Tick{Value: float64(i) + 0.5, Label: name})
	}
	a.Min, a.Max, a.Tick.Marker, a.Tick.Length = 0, float64(len(names)), marks, 0
}

// Log is a logarithmic scale.
type Log struct{ from, to float64 } // powers of ten

// Logarithmic makes a scale between two values, with a mark for each power of ten.
func Logarithmic(a *plot.Axis, least, most float64, name func(v float64) string) Log {
	l := Log{math.Log10(least), math.Log10(most)}
	var marks plot.ConstantTicks
	for e := math.Ceil(l.from - 1e-9); e <= l.to+1e-9; e++ {
		marks = append(marks, plot.Tick{Value: e, Label: name(math.Pow(10, e))})
	}
	a.Min, a.Max, a.Tick.Marker = l.from, l.to, marks
	return l
}

// At is where v is on the scale, at one of its ends if it is outside.
func (l Log) At(v float64) float64 {
	return min(max(math.Log10(max(v, math.SmallestNonzeroFloat64)), l.from), l.to)
}

// Box fills a rectangle.
func Box(p *plot.Plot, x0, y0, x1, y1 float64, colour string) {
	b, err := plotter.NewPolygon(plotter.XYs{{X: x0, Y: y0}, {X: x1, Y: y0}, {X: x1, Y: y1}, {X: x0, Y: y1}})
	must(err)
	b.Color, b.LineStyle.Width = Colour(colour), 0
	p.Add(b)
}

// Line joins points, of which there may be none.
func Line(p *plot.Plot, points plotter.XYs, colour string, width float64) {
	if len(points) == 0 {
		return
	}
	l, err := plotter.NewLine(points)
	must(err)
	l.Color, l.Width = Colour(colour), vg.Length(width)
	p.Add(l)
}

// Dot fills a circle.
func Dot(p *plot.Plot, x, y, radius float64, colour string) {
	s, err := plotter.NewScatter(plotter.XYs{{X: x, Y: y}})
	must(err)
	s.GlyphStyle = draw.GlyphStyle{Color: Colour(colour), Radius: vg.Length(radius), Shape: draw.CircleGlyph{}}
	p.Add(s)
}

// Label writes text beside a point: right of it, or above.
func Label(p *plot.Plot, x, y float64, text string, above bool) {
	l, err := plotter.NewLabels(plotter.XYLabels{XYs: plotter.XYs{{X: x, Y: y}}, Labels: []string{text}})
	must(err)
	l.TextStyle[0], l.Offset = style(9, "#444", 0), vg.Point{X: 6, Y: -3}
	if above {
		l.TextStyle[0], l.Offset = style(8, "#444", -0.5), vg.Point{Y: 2}
	}
	p.Add(l)
}

// must is for what the plotters refuse: no points, NaN and infinity. A buffer refuses nothing.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// style is a font; align is 0 for text that begins at its place, -0.5 for the middle.
func style(size float64, colour string, align text.XAlignment) text.Style {
	return text.Style{
		Color: Colour(colour), Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)},
		XAlign: align, Handler: plot.DefaultTextHandler,
	}
}

// Colour reads #rgb or #rrggbb.
func Colour(s string) color.Color {
	c := color.RGBA{A: 0xff}
	if len(s) == 4 {
		s = string([]byte{'#', s[1], s[1], s[2], s[2], s[3], s[3]})
	}
	_, err := fmt.Sscanf(s, "#%02x%02x%02x", &c.R, &c.G, &c.B)
	must(err)
	return c
}

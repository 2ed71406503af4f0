// Package chart draws pages of diagrams as SVG, for "reservoir tune" and the module
// test: dots and curves of gonum/plot.
package chart

import (
	"bytes"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Page is a heading and diagrams below one another, so that it can be read on a phone.
type Page struct {
	Title, Note   string
	Legend        []Entry
	Plots         []*plot.Plot
	Width, Height int // of a diagram with its axes, in points
}

// Entry explains a colour.
type Entry struct {
	Colour Colour
	Text   string
}

// Colour is a colour such as 0x0072b2.
type Colour uint32

// RGBA implements color.Color.
func (c Colour) RGBA() (r, g, b, a uint32) {
	return color.RGBA{byte(c >> 16), byte(c >> 8), byte(c), 0xff}.RGBA()
}

const (
	margin = 14
	line   = 18 // height of a line of the heading
)

// SVG draws the page.
func (p Page) SVG() []byte {
	width := vg.Length(p.Width + 2*margin)
	head := vg.Length(line*(len(p.Legend)+3) + margin)
	height := vg.Length(p.Height*len(p.Plots)) + head
	svg := vgsvg.New(width, height)
	c := draw.New(svg)
	c.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	c.FillText(style(16, 0), vg.Point{X: margin, Y: height - line - 4}, p.Title)
	c.FillText(style(11, 0), vg.Point{X: margin, Y: height - 2*line - 4}, p.Note)
	for i, e := range p.Legend {
		at := vg.Point{X: margin, Y: height - vg.Length(line*(i+3)) - 4}
		c.FillPolygon(e.Colour, []vg.Point{at, {X: at.X + 10, Y: at.Y}, {X: at.X + 10, Y: at.Y + 10}, {X: at.X, Y: at.Y + 10}})
		c.FillText(style(11, 0), vg.Point{X: margin + 16, Y: at.Y}, e.Text)
	}
	tiles := draw.Tiles{Rows: len(p.Plots), Cols: 1, PadY: 2 * margin, PadTop: head, PadBottom: margin, PadLeft: margin, PadRight: margin}
	for i, row := range plot.Align(slices.Collect(slices.Chunk(p.Plots, 1)), tiles, c) {
		p.Plots[i].Draw(row[0])
	}
	var b bytes.Buffer
	must(svg.WriteTo(&b))                                  // a buffer accepts everything
	_, drawing, _ := bytes.Cut(b.Bytes(), []byte("<svg ")) // without the XML header, for HTML pages
	drawing = append([]byte("<svg "), drawing...)
	return bytes.ReplaceAll(drawing, []byte("font-family:Liberation Sans;"), []byte("font-family:Helvetica, Arial, Liberation Sans, sans-serif;"))
}

// New returns an empty diagram with its title, a label below it and a line at each tick.
func New(title, below string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Title.TextStyle, p.Title.Padding = title, style(12, -0.5), 6
	p.X.Label.Text, p.X.Label.TextStyle = below, style(10, -0.5)
	p.X.Tick.Label.Font, p.Y.Tick.Label.Font, p.X.Padding, p.Y.Padding = style(10, 0).Font, style(10, 0).Font, 0, 0
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = Colour(0xdddddd), Colour(0xdddddd)
	p.Add(g)
	return p
}

// Named labels the whole numbers of an axis, from 0, with names.
func Named(a *plot.Axis, names []string) {
	var marks plot.ConstantTicks
	for i, name := range names {
		marks = append(marks, plot.Tick{Value: float64(i), Label: name})
	}
	a.Min, a.Max, a.Tick.Marker, a.Tick.Length = -0.5, float64(len(names))-0.5, marks, 0
}

// Logarithmic makes a scale between powers of ten, with a tick for each. The returned
// function moves v, which may be 0, to the nearest point on the scale, and to the tick of
// [Zero] only if it is 0.
func Logarithmic(a *plot.Axis, least, most float64, name func(v float64) string) (at func(v float64) float64) {
	from, to := math.Floor(math.Log10(least)+1e-9), math.Ceil(math.Log10(most)-1e-9)
	to = max(to, from+1)
	var marks plot.ConstantTicks
	for e := from; e <= to; e++ {
		marks = append(marks, plot.Tick{Value: math.Pow(10, e), Label: name(math.Pow(10, e))})
	}
	a.Min, a.Max, a.Tick.Marker, a.Scale = math.Pow(10, from), math.Pow(10, to), marks, plot.LogScale{}
	least = a.Min
	return func(v float64) float64 {
		if v > 0 {
			v = max(v, least)
		}
		return min(max(v, a.Min), a.Max)
	}
}

// Zero gives a logarithmic scale a tick for 0, below its least power of ten.
func Zero(a *plot.Axis) {
	a.Min /= 10
	a.Tick.Marker = append(plot.ConstantTicks{{Value: a.Min, Label: "0"}}, a.Tick.Marker.(plot.ConstantTicks)...)
}

// Curve joins points by a line of a width in points. It draws nothing without points, and
// panics on NaN and infinity.
func Curve(p *plot.Plot, points plotter.XYs, width float64, hue Colour) {
	if len(points) == 0 {
		return
	}
	l := must(plotter.NewLine(points))
	l.Color, l.Width = hue, vg.Length(width)
	p.Add(l)
}

// Dot fills a circle of a radius in points and writes text beside it, to the right or
// above. What lies above a logarithmic scale becomes a triangle at its end. It panics on NaN and
// infinity.
func Dot(p *plot.Plot, x, y, radius float64, hue Colour, text string, above bool) {
	shape := draw.GlyphDrawer(draw.CircleGlyph{})
	if _, fixed := p.Y.Scale.(plot.LogScale); fixed && y > 1.005*p.Y.Max { // more than 100 %, as a label rounds
		y, radius, shape = p.Y.Max, 1.4*radius, draw.PyramidGlyph{}
	}
	at := plotter.XYs{{X: x, Y: y}}
	s := must(plotter.NewScatter(at))
	s.GlyphStyle = draw.GlyphStyle{Color: hue, Radius: vg.Length(radius), Shape: shape}
	l := must(plotter.NewLabels(plotter.XYLabels{XYs: at, Labels: []string{text}}))
	l.TextStyle[0], l.Offset = style(9, 0), vg.Point{X: 7, Y: -3}
	if above {
		l.TextStyle[0], l.Offset = style(8, -0.5), vg.Point{Y: 4}
	}
	p.Add(s, l)
}

// must panics if a plotter rejects its data, which is a mistake of the caller.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// style returns a font of a size in points. align is 0 for text that begins at its place
// and -0.5 for centred text.
func style(size float64, align text.XAlignment) text.Style {
	return text.Style{
		Color: Colour(0x333333), Font: font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)},
		XAlign: align, Handler: plot.DefaultTextHandler,
	}
}

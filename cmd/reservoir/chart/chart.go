// Package chart draws pictures as SVG, for "reservoir tune" and the module test. They have
// large letters on a narrow page, for phones, and colours for light and for dark screens.
package chart

import (
	"bytes"
	"fmt"
	"html"
)

// Width is that of every picture, in the units of its coordinates.
const Width = 560

// Class is what a shape or a text looks like: a colour, or a rule below.
type Class string

// The classes. Blue is for reservoir, grey for what it is compared with.
const (
	Plain  Class = ""
	Title  Class = "title"
	Small  Class = "small"
	Axis   Class = "axis"  // of lines: thin
	Mark   Class = "mark"  // of lines: dashed
	Shade  Class = "shade" // behind something
	Blue   Class = "blue"
	Grey   Class = "grey"
	Red    Class = "red"
	Orange Class = "orange"
)

// The page has a colour of its own, because it may lie on a dark page in a browser that prefers light ones.
const style = `
svg { color-scheme: light dark; font-family: system-ui, -apple-system, "Segoe UI", "Noto Sans", Helvetica, Arial, sans-serif; font-size: 16px; fill: #1f2328; }
.page { fill: #fff; } .title { font-size: 21px; font-weight: 600; } .small { font-size: 14px; }
.axis { stroke: #d1d9e0; } .mark { stroke: #1f2328; stroke-dasharray: 4 3; } .shade { fill: #818b98; opacity: .18; }
.blue { fill: #0969da; } .grey { fill: #b3bcc6; } .red { fill: #cf222e; } .orange { fill: #bc4c00; }
@media (prefers-color-scheme: dark) {
svg { fill: #f0f6fc; } .page { fill: #0d1117; }
.axis { stroke: #3d444d; } .mark { stroke: #f0f6fc; }
.blue { fill: #4493f8; } .grey { fill: #656c76; } .red { fill: #f85149; } .orange { fill: #db6d28; }
}
`

// Canvas is a picture being drawn. Its coordinates begin at the top left.
type Canvas struct{ b bytes.Buffer }

// New begins a picture. The title, a question that the picture answers, is drawn at its top.
func New(title string, height int) *Canvas {
	c := new(Canvas)
	fmt.Fprintf(&c.b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>%s</title>\n<style>%s</style>\n",
		Width*5/4, height*5/4, Width, height, html.EscapeString(title), style)
	c.Rect(0, 0, Width, float64(height), "page")
	c.Text(8, 26, Title, "start", "%s", title)
	return c
}

// Text writes formatted text whose base line is at y. It begins, is centred or ends at x:
// anchor is start, middle or end.
func (c *Canvas) Text(x, y float64, class Class, anchor, format string, args ...any) {
	fmt.Fprintf(&c.b, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, class, anchor, html.EscapeString(fmt.Sprintf(format, args...)))
}

// Rect fills a rectangle, if it has a height.
func (c *Canvas) Rect(x, y, w, h float64, class Class) {
	if h > 0 {
		fmt.Fprintf(&c.b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>\n", x, y, w, h, class)
	}
}

// Line draws a line.
func (c *Canvas) Line(x1, y1, x2, y2 float64, class Class) {
	fmt.Fprintf(&c.b, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

// SVG ends the picture and returns it. It may stand in an HTML page.
func (c *Canvas) SVG() []byte {
	c.b.WriteString("</svg>\n")
	return c.b.Bytes()
}

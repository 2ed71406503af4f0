package picture

// The picture has large letters on a narrow page, for phones, and colours for light and for dark screens.

import (
	"bytes"
	"fmt"
	"html"
)

// width is that of every picture, in the units of its coordinates.
const width = 560

// class is what a shape or a text looks like: a colour, or a rule below.
type class string

// The classes. blue is for reservoir, grey for what it is compared with.
const (
	plain  class = ""
	title  class = "title"
	small  class = "small"
	axis   class = "axis"  // of lines: thin
	mark   class = "mark"  // of lines: dashed
	shade  class = "shade" // behind something
	blue   class = "blue"
	grey   class = "grey"
	red    class = "red"
	orange class = "orange"
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

// canvas is a picture being drawn. Its coordinates begin at the top left.
type canvas struct{ b bytes.Buffer }

// newCanvas begins a picture. The title, a question that the picture answers, is drawn at its top.
func newCanvas(heading string, height int) *canvas {
	c := new(canvas)
	fmt.Fprintf(&c.b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>%s</title>\n<style>%s</style>\n",
		width*5/4, height*5/4, width, height, html.EscapeString(heading), style)
	c.rect(0, 0, width, float64(height), "page")
	c.text(8, 26, title, "start", "%s", heading)
	return c
}

// text writes formatted text whose base line is at y. It begins, is centred or ends at x:
// anchor is start, middle or end.
func (c *canvas) text(x, y float64, look class, anchor, format string, args ...any) {
	fmt.Fprintf(&c.b, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n", x, y, look, anchor, html.EscapeString(fmt.Sprintf(format, args...)))
}

// rect fills a rectangle, if it has a height.
func (c *canvas) rect(x, y, w, h float64, look class) {
	if h > 0 {
		fmt.Fprintf(&c.b, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"/>\n", x, y, w, h, look)
	}
}

// line draws a line.
func (c *canvas) line(x1, y1, x2, y2 float64, look class) {
	fmt.Fprintf(&c.b, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, look)
}

// svg ends the picture and returns it. It may stand in an HTML page.
func (c *canvas) svg() []byte {
	c.b.WriteString("</svg>\n")
	return c.b.Bytes()
}

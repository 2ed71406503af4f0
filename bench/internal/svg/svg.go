// Package svg writes the few elements of SVG that charts of bars and dots are
// made of.
package svg

import (
	"bytes"
	"encoding/xml"
	"fmt"
)

// Canvas is a drawing under way. Lengths are in pixels.
type Canvas struct{ buf bytes.Buffer }

// New returns a white canvas.
func New(width, height float64) *Canvas {
	c := new(Canvas)
	fmt.Fprintf(&c.buf, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %.0f %.0f"`+
		` font-family="Helvetica, Arial, sans-serif">`+"\n", width, height, width, height)
	c.Rect(0, 0, width, height, "#fff")
	return c
}

// Bytes ends the drawing and returns it.
func (c *Canvas) Bytes() []byte {
	c.buf.WriteString("</svg>\n")
	return c.buf.Bytes()
}

// Rect fills a rectangle.
func (c *Canvas) Rect(x, y, width, height float64, fill string) {
	fmt.Fprintf(&c.buf, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, width, height, fill)
}

// Line draws a line.
func (c *Canvas) Line(x1, y1, x2, y2 float64, stroke string, width float64) {
	fmt.Fprintf(&c.buf, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%.1f"/>`+"\n",
		x1, y1, x2, y2, stroke, width)
}

// Dot fills a circle.
func (c *Canvas) Dot(x, y, radius float64, fill string) {
	fmt.Fprintf(&c.buf, `<circle cx="%.1f" cy="%.1f" r="%.1f" fill="%s"/>`+"\n", x, y, radius, fill)
}

// Text writes s at a point that is its start, middle or end.
func (c *Canvas) Text(x, y float64, anchor, fill string, size int, s string) {
	fmt.Fprintf(&c.buf, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" font-size="%d">`, x, y, anchor, fill, size)
	_ = xml.EscapeText(&c.buf, []byte(s)) // to a buffer, which never fails
	c.buf.WriteString("</text>\n")
}

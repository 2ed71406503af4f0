package fleet

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"unicode/utf8"
)

// canvas writes the few elements of SVG that the chart is made of.
type canvas struct{ bytes.Buffer }

func newCanvas(width, height int) *canvas {
	c := new(canvas)
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d"`+
		` font-family="Helvetica, Arial, sans-serif">`+"\n", width, height, width, height)
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

func (c *canvas) line(x1, y1, x2, y2 float64, stroke string, width int) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="%d"/>`+"\n",
		x1, y1, x2, y2, stroke, width)
}

type point struct{ x, y float64 }

func (c *canvas) polyline(points []point, stroke string) {
	fmt.Fprintf(c, `<polyline fill="none" stroke="%s" stroke-width="1.6" points="`, stroke)
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

// wrapped breaks s between words into lines of at most so many letters.
func wrapped(s string, most int) (lines []string) {
	for _, word := range strings.Fields(s) {
		if n := len(lines); n > 0 && utf8.RuneCountInString(lines[n-1]+" "+word) <= most {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

package chart

import (
	"strings"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// Bars is a picture of bars below one another. Each has its name and its value above it, so
// that names may be long. Within a group all bars have one scale, which begins at 0.
type Bars struct {
	Title  string // a question
	Note   string // below the title: what a bar is, and its unit
	Groups []Group
}

// Group is a group of bars with a heading, which may be empty.
type Group struct {
	Name string
	Bars []Bar
}

// Bar is one bar. Its length is Value, 0 or more, and Text says that in words.
type Bar struct {
	Name  string
	Value float64
	Text  string
	Class Class
}

// SVG draws the picture.
func (b Bars) SVG() []byte {
	const margin, line, row, thick = 8, 22, 38, 10
	const perLine = 64 // characters of the note that surely have room
	notes := strings.Split(table.Wrap(b.Note, perLine), "\n")
	y := float64(26 + line*len(notes))
	height := y + 16
	for _, g := range b.Groups {
		height += float64(row * len(g.Bars))
		if g.Name != "" {
			height += row
		}
	}
	c := New(b.Title, int(height))
	for i, note := range notes {
		c.Text(margin, float64(26+line*(i+1)), Plain, "start", "%s", note)
	}
	for _, g := range b.Groups {
		if g.Name != "" {
			y += row
			c.Line(margin, y-18, Width-margin, y-18, Axis)
			c.Text(margin, y+2, Plain, "start", "%s", g.Name)
		}
		longest := 0.0
		for _, bar := range g.Bars {
			longest = max(longest, bar.Value)
		}
		for _, bar := range g.Bars {
			y += row
			c.Text(margin, y-10, Small, "start", "%s", bar.Name)
			c.Text(Width-margin, y-10, Small, "end", "%s", bar.Text)
			c.Rect(margin, y-5, max((Width-2*margin)*bar.Value/max(longest, 1e-300), 1), thick, bar.Class)
		}
	}
	return c.SVG()
}

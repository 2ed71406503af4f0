package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// shapes reads a picture and returns the attributes of its elements of a name, in order. Each
// number is a number, and nothing lies outside of the page.
func shapes(t *testing.T, picture []byte, name string) (all []map[string]string) {
	t.Helper()
	height := 0.0
	for in := xml.NewDecoder(bytes.NewReader(picture)); ; {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attrs := map[string]string{}
		for _, a := range e.Attr {
			attrs[a.Name.Local] = a.Value
		}
		number := func(name string) float64 {
			v, err := strconv.ParseFloat(attrs[name], 64)
			require.NoError(t, err, "%s %v", e.Name.Local, attrs)
			require.GreaterOrEqual(t, v, 0.0)
			return v
		}
		switch e.Name.Local {
		case "svg":
			height = number("height") * 4 / 5
		case "text":
			require.LessOrEqual(t, number("y"), height)
			require.LessOrEqual(t, number("x"), float64(Width))
		case "rect":
			require.LessOrEqual(t, number("x")+number("width"), float64(Width))
			require.LessOrEqual(t, number("y")+number("height"), height+1)
		}
		if e.Name.Local == name {
			all = append(all, attrs)
		}
	}
}

var sample = Bars{
	Title: `How "many" <calls> & why?`,
	Note:  "calls for 100 requests, and so many words more that two lines are needed",
	Groups: []Group{
		{Name: "one", Bars: []Bar{{"a", 100, "100 of them", Grey}, {"b & c", 50, "50", Blue}, {"none", 0, "0", Red}}},
		{Name: "", Bars: []Bar{{"d", 2, "2", Orange}, {"e", 1, "1", Grey}}},
		{Name: "nothing", Bars: []Bar{{"f", 0, "0", Grey}}},
		{Name: "no bars"},
	},
}

// A bar is as long as its value, in the scale of its group, and visible if that is 0.
func TestBars(t *testing.T) {
	picture := sample.SVG()
	var widths []string
	for _, r := range shapes(t, picture, "rect") {
		widths = append(widths, r["width"])
	}
	require.Equal(t, []string{"560.0", "544.0", "272.0", "1.0", "544.0", "272.0", "1.0"}, widths)
	require.Len(t, shapes(t, picture, "text"), 1+2+3+2*6, "title, notes, headings, and two at each bar")
	require.Equal(t, sample.SVG(), picture, "the same bars, the same text")
}

func TestNothingIsDrawnWithoutHeight(t *testing.T) {
	c := New("", 100)
	c.Rect(1, 2, 3, 0, Blue)
	c.Line(0, 1, 2, 3, Axis)
	picture := c.SVG()
	require.Len(t, shapes(t, picture, "rect"), 1, "the page")
	require.Len(t, shapes(t, picture, "line"), 1)
}

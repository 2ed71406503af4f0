package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

func TestPageIsXML(t *testing.T) {
	p := New(`"<&>"`, "below")
	up := Logarithmic(&p.Y, 1e-3, 1, func(v float64) string { return fmt.Sprint(v) })
	Curve(p, plotter.XYs{{X: 0, Y: up(0)}, {X: 1, Y: up(5)}}, 1, 0xdd0000)
	Curve(p, nil, 1, 0xdd0000)
	Dot(p, 1, up(1), 3, 0x0072b2, "a & b", true)
	named := New("", "")
	Named(&named.Y, []string{"one", "two"})
	page := Page{Title: "<title>", Note: "<note>", Plots: []*plot.Plot{p, named, p}, Width: 300, Height: 200}
	for i := range 20 {
		page.Legend = append(page.Legend, Entry{0xffffff, fmt.Sprint("policy & ", i)})
	}
	drawing := page.SVG()
	require.True(t, bytes.HasPrefix(drawing, []byte("<svg ")))
	in, elements := xml.NewDecoder(bytes.NewReader(drawing)), map[string]int{}
	for {
		token, err := in.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok {
			elements[e.Name.Local]++
		}
	}
	require.Equal(t, 1, elements["svg"])
	require.Greater(t, elements["path"], 20)
	require.NotContains(t, string(drawing), "NaN")
	require.NotContains(t, string(drawing), "Inf")
	require.Equal(t, drawing, page.SVG(), "the same page, the same text")
}

// On a scale with a tick for 0, only 0 is there.
func TestZero(t *testing.T) {
	p := New("", "")
	at := Logarithmic(&p.Y, 0.1, 1000, func(v float64) string { return fmt.Sprint(v) })
	Zero(&p.Y)
	ticks := p.Y.Tick.Marker.Ticks(0, 0)
	require.Equal(t, plot.Tick{Value: p.Y.Min, Label: "0"}, ticks[0])
	require.Len(t, ticks, 6)
	for v, want := range map[float64]float64{0: p.Y.Min, 1e-9: 0.1, 0.1: 0.1, 5: 5, 1e9: 1000} {
		require.InDelta(t, want, at(v), 1e-9)
	}
}

// What lies above the scale is a triangle at its end.
func TestDotAboveTheScale(t *testing.T) {
	circles := func(y float64) int {
		p := New("", "")
		Named(&p.X, []string{"a", "b"})
		Logarithmic(&p.Y, 1e-3, 1, func(v float64) string { return fmt.Sprint(v) })
		Dot(p, 0, 1, 3, 0x0072b2, "", true)
		Dot(p, 1, y, 3, 0x0072b2, "", true)
		require.EqualValues(t, 1, p.Y.Max)
		return bytes.Count(Page{Plots: []*plot.Plot{p}, Width: 300, Height: 200}.SVG(), []byte("A3,3 0 1 1")) / 2
	}
	require.Equal(t, 2, circles(1))
	require.Equal(t, 1, circles(1.16))
}

func TestLogKeepsToItsEnds(t *testing.T) {
	p := New("", "")
	at := Logarithmic(&p.X, 0.1, 1000, func(v float64) string { return fmt.Sprint(v) })
	require.Len(t, p.X.Tick.Marker.Ticks(0, 0), 5)
	for v, want := range map[float64]float64{0: 0.1, -1: 0.1, 0.01: 0.1, 1: 1, 100: 100, 1e9: 1000, math.Inf(1): 1000} {
		require.InDelta(t, want, at(v), 1e-9)
	}
}

package fleet

import (
	"bytes"
	"encoding/xml"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var example = group{part: "bars", axis: "size & shape", rows: []row{
	{"<one>", small(equal, 1.5), bar{calls: 0.02, stranded: 0.01, waited: 0.001, admitted: 0.99}},
	{"below", small(equal, 0.5), bar{refusesNone: true}},
}}

func TestChartIsXML(t *testing.T) {
	all := map[string]results{
		"direct": {small(equal, 1.5): {means: means{calls: 1.2, waited: 1}}},
		adaptive: {small(equal, 1.5): {means: means{calls: 0.015, stranded: 0.02, waited: 1e-9}}},
	}
	in := xml.NewDecoder(bytes.NewReader(chart([]group{example}, all, 1)))
	bars := map[string]int{}
	for {
		token, err := in.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "rect" {
			for _, a := range e.Attr {
				require.NotContains(t, a.Value, "N") // NaN, Inf
				if a.Name.Local == "fill" {
					bars[a.Value]++
				}
			}
		}
	}
	require.Equal(t, 1+2, bars[colours["direct"]], "the legend, and what is not 0")
	require.Equal(t, 1+3, bars[colours[adaptive]])
	require.Zero(t, bars[colours["ladder"]])
}

func TestTimeChartIsXML(t *testing.T) {
	o := outcome{course: []moment{{calls: 1, waited: 0.5}, {calls: 0.01}}}
	all := map[string]results{"fixed": {onTime: o}, adaptive: {onTime: o}}
	in := xml.NewDecoder(bytes.NewReader(timeChart(all, 1)))
	curves := map[string]int{}
	for {
		token, err := in.Token()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		e, ok := token.(xml.StartElement)
		if !ok || e.Name.Local != "polyline" {
			continue
		}
		for _, a := range e.Attr {
			require.NotContains(t, a.Value, "N") // NaN, Inf
			switch a.Name.Local {
			case "stroke":
				curves[a.Value]++
			case "points":
				require.Len(t, strings.Fields(a.Value), 2*len(o.course))
			}
		}
	}
	require.Equal(t, map[string]int{colours["fixed"]: 2, colours[adaptive]: 2}, curves, "a curve in each panel")
}

func TestTableMarksTheBars(t *testing.T) {
	o := outcome{
		means:    means{calls: 0.019, stranded: 0.011, waited: 0.001},
		cold:     means{calls: 0.03, stranded: 0.02, waited: 0.01},
		admitted: 0.98, refused: 1, requests: 3,
	}
	require.Equal(t,
		"1.90 % (3.00 %) ≤ 2 % ✓\t1.10 % (2.00 %) ≤ 1 % ✗\t0.100 % (1.00 %) ≤ 0.1 % ✓\t98.00 % ≥ 99 % ✗\t0\t33.33 %",
		cells(example.rows[0].scenario, o, example.rows[0].bar))
	require.Equal(t,
		"1.90 % (3.00 %)\t–\t0.100 % (1.00 %)\t–\t0\t33.33 % none ✗",
		cells(example.rows[1].scenario, o, example.rows[1].bar))

	res := results{example.rows[0].scenario: o, example.rows[1].scenario: o}
	require.NotContains(t, table(rules[0], "", example.rows, res), "✗", "the bars are for adaptive")
	require.Contains(t, table(rules[3], "", example.rows, res), "12,000/min")
}

func TestWrapped(t *testing.T) {
	require.Equal(t, []string{"1,000 × 60 s"}, wrapped("1,000 × 60 s", 12))
	require.Equal(t, []string{"one hot", "process"}, wrapped("one hot process", 12))
	require.Empty(t, wrapped("", 12))
}

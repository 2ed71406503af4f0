package fleet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var example = group{part: "bars", axis: "size & shape", rows: []row{
	{"<one>", small(equal, 1.5), bar{calls: 0.02, stranded: 0.01, waited: 0.001, admitted: 0.99}},
	{"below", small(equal, 0.5), bar{refusesNone: true}},
}}

// marks counts the shapes of a drawing in a rule's colour.
func marks(drawing []byte, rule string) int {
	return strings.Count(string(drawing), fmt.Sprintf("fill:#%06X", uint32(colours[rule])))
}

func TestChart(t *testing.T) {
	drawing := draw([]group{example}, map[string]results{
		"direct": {"<one>": {means: means{calls: 1.2, waited: 1}}},
		adaptive: {"<one>": {means: means{calls: 0.015, stranded: 0.02, waited: 1e-9}}},
	}, 1)
	require.Equal(t, 1+2, marks(drawing, "direct"), "the legend, and what is not 0")
	require.Equal(t, 1+3, marks(drawing, adaptive))
	require.Zero(t, marks(drawing, "ladder"))
	require.NotContains(t, string(drawing), "NaN")
}

func TestTableMarksTheBars(t *testing.T) {
	o := outcome{
		means:    means{calls: 0.019, stranded: 0.011, waited: 0.001},
		cold:     means{calls: 0.03, stranded: 0.02, waited: 0.01},
		admitted: 0.98, refused: 1, requests: 3,
	}
	require.Equal(t,
		"1.90 % (3.00 %) ≤ 2 % ✓\t1.10 % (2.00 %) ≤ 1 % ✗\t0.100 % (1.00 %) ≤ 0.1 % ✓\t98.00 % ≥ 99 % ✗\t0\t33.33 %",
		strings.Join(figures(example.rows[0].scenario, o, example.rows[0].bar), "\t"))
	require.Equal(t,
		"1.90 % (3.00 %)\t–\t0.100 % (1.00 %)\t–\t0\t33.33 % none ✗",
		strings.Join(figures(example.rows[1].scenario, o, example.rows[1].bar), "\t"))

	res := results{"<one>": o, "below": o}
	require.NotContains(t, tableOf(rules[0], "", example.rows, res), "✗", "the bars are for adaptive")
	require.Contains(t, tableOf(rules[3], "", example.rows, res), "6,000/min")
}

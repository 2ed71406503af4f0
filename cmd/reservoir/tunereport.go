package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"strings"

	"github.com/go-reservoir/reservoir/cmd/reservoir/chart"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// writeReport writes the file of -report, if any: HTML, which is XML as well, so that any
// tool can read it. The recommendation is first, then a picture for each of two costs, and then the table.
func (c *tuning) writeReport(r *tuneReport) error {
	if c.report == "" {
		return nil
	}
	if err := os.WriteFile(c.report, r.page(), 0o644); err != nil {
		return errors.New("the report cannot be written: " + oneLine(err))
	}
	return nil
}

const tuneStyle = `:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 1rem auto; padding: 0 .7rem; }
svg { width: 100%; height: auto; margin: .6rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; }
th, td { padding: .15rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8886; }
th:first-child, td:first-child { text-align: left; }
pre { font-size: 14px; white-space: pre-wrap; }`

func (r *tuneReport) page() []byte {
	var b strings.Builder
	text := html.EscapeString
	fmt.Fprintf(&b, `<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/><title>reservoir tune</title><style>%s</style></head>
<body>
<h1>Recommended: %s</h1>
`, tuneStyle, text(r.Recommendation.Policy))
	for _, paragraph := range r.advice() {
		fmt.Fprintf(&b, "<p>%s</p>\n", text(paragraph))
	}
	b.Write(r.calls())
	b.Write(r.waited())
	b.WriteString("<h2>All figures</h2>\n<p>" + text(r.heading) + ".</p>\n<div class=\"wide\"><table>\n")
	for i, row := range r.rows() {
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		b.WriteString("<tr>")
		for _, value := range row {
			fmt.Fprintf(&b, "<%s>%s</%[1]s>", cell, text(value))
		}
		b.WriteString("</tr>\n")
	}
	legend, _, _ := strings.Cut(tuneLegend, "\n\n")
	b.WriteString("</table></div>\n<pre>" + text(strings.Trim(legend, "\n")) + "</pre>\n</body>\n</html>\n")
	return []byte(b.String())
}

func (r *tuneReport) calls() []byte {
	bars := chart.Bars{Title: "How many requests call the store?", Note: "Store calls for 100 requests"}
	bars.Groups = r.bars(func(o sim.Outcome) (value float64, text string) {
		return o.CallsPerRequest, table.Digits(100 * o.CallsPerRequest)
	})
	return bars.SVG()
}

func (r *tuneReport) waited() []byte {
	bars := chart.Bars{Title: "How many requests wait for the store?", Note: "Percent of the requests. Memory answers the others."}
	bars.Groups = r.bars(func(o sim.Outcome) (value float64, text string) { return o.WaitedShare, table.Percent(o.WaitedShare) })
	return bars.SVG()
}

// bars has a bar for each policy. That of the recommended one is blue.
func (r *tuneReport) bars(of func(sim.Outcome) (value float64, text string)) []chart.Group {
	var g chart.Group
	for _, o := range r.Policies {
		value, text := of(o)
		bar := chart.Bar{Name: o.Policy, Value: value, Text: text, Class: chart.Grey}
		if o.Policy == r.Recommendation.Policy {
			bar.Class, bar.Name = chart.Blue, o.Policy+", recommended"
		}
		g.Bars = append(g.Bars, bar)
	}
	return []chart.Group{g}
}

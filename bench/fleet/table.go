package fleet

import (
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const heading = `Many processes share one limit. The limiters are real, the clock is virtual, the
network takes 1 ms there and back, and who is refused does not come again.
Seed %d.

calls      store calls per admitted request
stranded   share of the limit that lies in some process when another is first refused
           in a window, on average
waited     share of the requests that wait for the network
           These three are of all windows but the first; in brackets those of the
           first, which is cold: nobody's demand is known yet.
admitted   share of the limit that is admitted, in the worst window
over       tokens admitted above the limit, in the worst window
refused    share of the requests that are refused
`

var columns = []string{"", "processes", "limit", "demand", "windows", "calls", "stranded", "waited", "admitted", "over", "refused"}

// results are the outcomes of one rule.
type results map[scenario]outcome

// tableOf is a rule's rows as text. The bars are those of the rule adaptive.
func tableOf(r rule, title string, rows []row, res results) string {
	cells := [][]string{columns}
	for _, line := range rows {
		b := line.bar
		if r.name != adaptive {
			b = bar{}
		}
		s := line.scenario
		cells = append(cells, append([]string{
			line.name, table.Commas(int64(s.processes)), table.Commas(s.limit.Tokens) + "/" + span(s.limit.Window),
			fmt.Sprintf("%v × L", s.demand), fmt.Sprint(s.windows),
		}, figures(s, res[s], b)...))
	}
	return fmt.Sprintf("\n%s: %s. %s\n", r.name, r.what, title) + table.Text(cells, false)
}

// figures are the measures of a row, with their bars. What is stranded or not
// admitted means nothing where there is enough for all.
func figures(s scenario, o outcome, b bar) []string {
	stranded, admitted := "–", "–"
	if s.demand > 1 {
		stranded = fmt.Sprintf("%.2f %% (%.2f %%)", 100*o.stranded, 100*o.cold.stranded) + most(o.stranded, b.stranded)
		admitted = fmt.Sprintf("%.2f %%", 100*o.admitted) + least(o.admitted, b.admitted)
	}
	refused := fmt.Sprintf("%.2f %%", 100*sim.Ratio(o.refused, o.requests))
	if b.refusesNone {
		refused += " none " + mark(o.refused == 0)
	}
	return []string{
		fmt.Sprintf("%.2f %% (%.2f %%)", 100*o.calls, 100*o.cold.calls) + most(o.calls, b.calls),
		stranded,
		fmt.Sprintf("%.3f %% (%.2f %%)", 100*o.waited, 100*o.cold.waited) + most(o.waited, b.waited),
		admitted,
		fmt.Sprint(o.over),
		refused,
	}
}

// most is a bar that v must not be above, and whether it is met; "" for none.
func most(v, bar float64) string {
	if bar == 0 {
		return ""
	}
	return fmt.Sprintf(" ≤ %.4g %% %s", 100*bar, mark(v <= bar))
}

func least(v, bar float64) string {
	if bar == 0 {
		return ""
	}
	return fmt.Sprintf(" ≥ %.4g %% %s", 100*bar, mark(v >= bar))
}

func mark(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

// span is the name of a whole second, minute or hour.
func span(d time.Duration) string {
	switch d {
	case time.Second:
		return "s"
	case time.Minute:
		return "min"
	case time.Hour:
		return "h"
	}
	return d.String()
}

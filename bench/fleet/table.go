package fleet

import (
	"fmt"
	"strings"
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

// results are the outcomes of one rule.
type results map[scenario]outcome

// tableOf is a rule's rows as text. The bars are those of the rule adaptive.
func tableOf(r rule, title string, rows []row, res results) string {
	cells := [][]string{{"", "processes", "limit", "demand", "windows", "calls", "stranded", "waited", "admitted", "over", "refused"}}
	for _, line := range rows {
		if r.name != adaptive {
			line.bar = bar{}
		}
		s := line.scenario
		cells = append(cells, append([]string{
			line.name, table.Commas(int64(s.processes)), table.Commas(s.limit.Tokens) + "/" + span(s.limit.Window),
			fmt.Sprintf("%v × L", s.demand), fmt.Sprint(s.windows),
		}, figures(s, res[s], line.bar)...))
	}
	return fmt.Sprintf("\n%s: %s. %s\n", r.name, r.what, title) + table.Text(cells, false)
}

// figures are the measures of a row, with their bars. What is stranded or not
// admitted means nothing where there is enough for all.
func figures(s scenario, o outcome, b bar) []string {
	stranded, admitted := "–", "–"
	if s.demand > 1 {
		stranded = fmt.Sprintf("%.2f %% (%.2f %%)", 100*o.stranded, 100*o.cold.stranded) + judged("≤", b.stranded, o.stranded <= b.stranded)
		admitted = fmt.Sprintf("%.2f %%", 100*o.admitted) + judged("≥", b.admitted, o.admitted >= b.admitted)
	}
	refused := fmt.Sprintf("%.2f %%", 100*sim.Ratio(o.refused, o.requests))
	if b.refusesNone {
		refused += " none " + mark(o.refused == 0)
	}
	return []string{
		fmt.Sprintf("%.2f %% (%.2f %%)", 100*o.calls, 100*o.cold.calls) + judged("≤", b.calls, o.calls <= b.calls),
		stranded,
		fmt.Sprintf("%.3f %% (%.2f %%)", 100*o.waited, 100*o.cold.waited) + judged("≤", b.waited, o.waited <= b.waited),
		admitted,
		fmt.Sprint(o.over),
		refused,
	}
}

// judged is a bar, and whether it is met; "" for none.
func judged(sign string, bar float64, ok bool) string {
	if bar == 0 {
		return ""
	}
	return fmt.Sprintf(" %s %.4g %% %s", sign, 100*bar, mark(ok))
}

func mark(ok bool) string {
	if ok {
		return "✓"
	}
	return "✗"
}

// span is the name of a whole second, minute or hour.
func span(d time.Duration) string {
	return strings.NewReplacer("1h0m0s", "h", "1m0s", "min", "1s", "s").Replace(d.String())
}

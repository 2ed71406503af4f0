package fleet

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// row is a line of the table, with the bar for the rule adaptive.
type row struct {
	name string
	scenario
	bar bar
}

// bar is the maximum of each measure, and the minimum of admitted. 0 = no bar.
type bar struct {
	calls, stranded, waited, admitted float64
	refusesNone                       bool
}

// shapes is one fleet under every shape of demand, and a larger one.
var shapes = []row{
	{"equal", hundred(equal, 1.5), bar{calls: 0.019, stranded: 0.006, waited: 0.0005, admitted: 0.999}},
	{"zipf 1.2", hundred(zipf, 1.5), bar{calls: 0.014, stranded: 0.006, waited: 0.0005, admitted: 0.999}},
	{"one hot process", hundred(oneHot, 1.5), bar{calls: 0.005, stranded: 0.007, waited: 0.0001, admitted: 0.997}},
	{"hot set moves", hundred(moves, 1.5), bar{calls: 0.018, stranded: 0.01, waited: 0.0005, admitted: 0.999}},
	{"bursts", hundred(bursts, 1.5), bar{calls: 0.03, stranded: 0.01, waited: 0.0015, admitted: 0.999}},
	{"sticky clients", hundred(nil, 1.5), bar{calls: 0.03, stranded: 0.001, waited: 0.02, admitted: 0.999}},
	{"sticky, 300 for 20", scenario{nil, 20, reservoir.PerMinute(300), 1.5, 10}, bar{calls: 0.48, stranded: 0.001, waited: 0.2, admitted: 0.999}},
	{"below the limit", hundred(equal, 0.5), bar{calls: 0.012, waited: 0.0002, refusesNone: true}},
	{"zipf 1.2, 1,000 processes", scenario{zipf, 1000, reservoir.PerMinute(600_000), 1.5, 5}, bar{calls: 0.012, stranded: 0.01, waited: 0.0002, admitted: 0.999}},
}

func hundred(k kind, demand float64) scenario {
	return scenario{k, 100, reservoir.PerMinute(60_000), demand, 5}
}

// sizes returns rows of zipf demand in fleets and windows of three sizes. The limit is
// 600 per process and minute; in windows of an hour it is 600 per process and hour,
// because ten million requests would show nothing new.
func sizes() (rows []row) {
	for _, span := range []struct {
		name    string
		window  time.Duration
		tokens  int64 // per process
		windows int
	}{{"1 s", time.Second, 10, 30}, {"60 s", time.Minute, 600, 5}, {"1 h", time.Hour, 600, 3}} {
		for _, n := range []int{10, 100, 1000} {
			limit := reservoir.Limit{Tokens: span.tokens * int64(n), Window: span.window}
			rows = append(rows, row{
				name:     table.Commas(n) + " × " + span.name,
				scenario: scenario{zipf, n, limit, 1.5, span.windows},
			})
		}
	}
	return rows
}

const heading = `Many processes share one limit. The limiters are real, the clock is virtual, the
network takes 1 ms there and back, and who is refused does not come again.
Seed %d.

calls      store calls per admitted request
stranded   share of the limit that is unspent when a request is first refused in a
           window, on average
waited     share of the requests that wait for the network
           These three are of all windows but the first; in brackets those of the
           first, which is cold: nobody's demand is known yet.
admitted   share of the limit that is admitted, in the worst window
over       tokens admitted above the limit, in the worst window
refused    share of the requests that are refused
`

// results are the outcomes of one rule, by the rows' names.
type results map[string]outcome

// tableOf formats a rule's rows as a table. The bars apply only to the rule adaptive.
func tableOf(r rule, title string, rows []row, res results) string {
	cells := [][]string{{"", "processes", "limit", "demand", "windows", "calls", "stranded", "waited", "admitted", "over", "refused"}}
	per := strings.NewReplacer("1h0m0s", "h", "1m0s", "min", "1s", "s")
	for _, line := range rows {
		if r.name != adaptive {
			line.bar = bar{}
		}
		s := line.scenario
		cells = append(cells, append([]string{
			line.name, table.Commas(s.processes), table.Commas(s.limit.Tokens) + "/" + per.Replace(s.limit.Window.String()),
			fmt.Sprintf("%v × L", s.demand), fmt.Sprint(s.windows),
		}, figures(s, res[line.name], line.bar)...))
	}
	return fmt.Sprintf("\n%s: %s. %s\n", r.name, r.what, title) + table.Text(cells, false)
}

// figures formats the measures of a row, with their bars. Stranded and admitted have no
// meaning if the limit is above the demand.
func figures(s scenario, o outcome, b bar) []string {
	stranded, admitted := "–", "–"
	if s.demand > 1 {
		stranded = fmt.Sprintf("%.2f %% (%.2f %%)", 100*o.stranded, 100*o.cold.stranded) + judged("≤", b.stranded, o.stranded <= b.stranded)
		admitted = fmt.Sprintf("%.2f %%", 100*o.admitted) + judged("≥", b.admitted, o.admitted >= b.admitted)
	}
	refused := fmt.Sprintf("%.2f %%", 100*sim.Ratio(o.refused, o.requests))
	if b.refusesNone {
		refused += " none " + mark[o.refused == 0]
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

// judged formats a bar and whether it is met, or returns "" without a bar.
func judged(sign string, bar float64, ok bool) string {
	if bar == 0 {
		return ""
	}
	return fmt.Sprintf(" %s %.4g %% %s", sign, 100*bar, mark[ok])
}

var mark = map[bool]string{true: "✓", false: "✗"}

// group is a set of rows that belong together: a block of the table.
type group struct {
	part, title string
	rows        []row
}

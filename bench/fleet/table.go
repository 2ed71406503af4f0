package fleet

import (
	"bytes"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
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

const columns = "\tprocesses\tlimit\tdemand\twindows\tcalls\tstranded\twaited\tadmitted\tover\trefused\n"

// results are the outcomes of one rule.
type results map[scenario]outcome

// table is a rule's rows as text. The bars are those of the rule adaptive.
func table(r rule, title string, rows []row, res results) string {
	var text bytes.Buffer
	fmt.Fprintf(&text, "\n%s: %s. %s\n", r.name, r.what, title)
	w := tabwriter.NewWriter(&text, 0, 0, 3, ' ', 0)
	fmt.Fprint(w, columns)
	for _, line := range rows {
		b := line.bar
		if r.name != adaptive {
			b = bar{}
		}
		s := line.scenario
		fmt.Fprintf(w, "%s\t%s\t%s/%s\t%v × L\t%d\t%s\n", line.name, thousands(int64(s.processes)),
			thousands(s.limit.Tokens), span(s.limit.Window), s.demand, s.windows, cells(s, res[s], b))
	}
	w.Flush() // to a bytes.Buffer, which never fails
	return trimmed(text.String())
}

// cells is the measures of a row, with their bars. What is stranded or not
// admitted means nothing where there is enough for all.
func cells(s scenario, o outcome, b bar) string {
	stranded, admitted := "–", "–"
	if s.demand > 1 {
		stranded = fmt.Sprintf("%.2f %% (%.2f %%)", 100*o.stranded, 100*o.cold.stranded) + most(o.stranded, b.stranded)
		admitted = fmt.Sprintf("%.2f %%", 100*o.admitted) + least(o.admitted, b.admitted)
	}
	refused := fmt.Sprintf("%.2f %%", 100*ratio(o.refused, o.requests))
	if b.refusesNone {
		refused += " none " + mark(o.refused == 0)
	}
	return strings.Join([]string{
		fmt.Sprintf("%.2f %% (%.2f %%)", 100*o.calls, 100*o.cold.calls) + most(o.calls, b.calls),
		stranded,
		fmt.Sprintf("%.3f %% (%.2f %%)", 100*o.waited, 100*o.cold.waited) + most(o.waited, b.waited),
		admitted,
		fmt.Sprint(o.over),
		refused,
	}, "\t")
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

// thousands writes n in groups of three digits.
func thousands(n int64) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
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

// trimmed is text without blanks at the ends of its lines.
func trimmed(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

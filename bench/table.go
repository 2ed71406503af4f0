package bench

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const notes = `
ops/s     answers as they should be, in a second; median of %d rounds of %v (in process: half), in which the peers take turns
p50 …     latency over all rounds; what takes nanoseconds is timed rarely, and includes reading the clock, about %v
commands  sent to Redis per admitted request, by INFO commandstats
allocs    per request, of the whole process; one is the key's where each is used once; with a proxy in it none are counted
wrong     refusals at a limit that is not reached, and errors
[name]    a stand-in of our own for what could not be had, by its published behaviour
`

// tables are the results, one for each scenario.
func tables(r results, d *driver) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %d cores, GOMAXPROCS %d\n", runtime.Version(), runtime.NumCPU(), runtime.GOMAXPROCS(0))
	fmt.Fprintf(&s, notes, d.rounds, d.slice, clockCost())
	for _, group := range r.byScenario() {
		rows := [][]string{{"", "ops/s", "p50", "p99", "p99.9", "commands", "allocs", "wrong"}}
		for _, l := range group {
			rows = append(rows, l.cells())
		}
		fmt.Fprintf(&s, "\n%s (%s)\n%s", group[0].scenario.title, group[0].scenario.name, table.Text(rows, false))
	}
	if len(r.memory) > 0 {
		rows := [][]string{{"", "B/key", "one GC"}}
		for _, m := range r.memory {
			rows = append(rows, []string{m.kind.name, fmt.Sprintf("%.0f", m.bytes), short(m.gc)})
		}
		fmt.Fprintf(&s, "\nIdle keys of 20 bytes, used once (memory)\n%s", table.Text(rows, false))
	}
	return s.String()
}

// cells is a row.
func (l *line) cells() []string {
	h := l.latency()
	perAdmitted, perRequest, wrongs := "–", "–", ""
	if l.kind.sends != nil {
		perAdmitted = digits(l.median(commands))
	}
	if l.scenario.delay == 0 {
		perRequest = fmt.Sprintf("%.2f", l.median(allocs))
	}
	if v := l.median(wrong); v > 0 {
		wrongs = digits(100*v) + " %"
	}
	return []string{l.kind.name, count(l.median(throughput)), short(h.Quantile(0.50)), short(h.Quantile(0.99)), short(h.Quantile(0.999)),
		perAdmitted, perRequest, wrongs}
}

// digits is v in about three of them.
func digits(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v < 0.1:
		return fmt.Sprintf("%.2g", v)
	case v < 10:
		return fmt.Sprintf("%.2f", v)
	case v < 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// count is v in three digits, thousands or millions.
func count(v float64) string {
	switch {
	case v >= 999_500:
		return digits(v/1e6) + " M"
	case v >= 1_000:
		return digits(v/1e3) + " k"
	}
	return digits(v)
}

// short is d in three digits.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return digits(d.Seconds()) + " s"
	case d >= time.Millisecond:
		return digits(d.Seconds()*1e3) + " ms"
	case d >= time.Microsecond:
		return digits(d.Seconds()*1e6) + " µs"
	}
	return fmt.Sprintf("%d ns", d.Nanoseconds())
}

// clockCost is what a timed request has on top of its own time.
func clockCost() time.Duration {
	const n = 10_000
	begin := time.Now()
	for range n {
		_ = time.Since(begin)
	}
	return time.Since(begin) / n
}

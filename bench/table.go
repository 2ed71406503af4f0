package bench

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const notes = `
ops/s     answers as they should be, in a second; median of %d rounds of %v (in process: half), in which the peers take turns
p50 …     latency over all rounds; what takes nanoseconds is timed rarely, and includes reading the clock, about %v
commands  sent to Redis per admitted request, by INFO commandstats
allocs    per request, of the whole process; one is the key's where each is used once; with a proxy in it none are counted
wrong     refusals at a limit that is not reached, and errors
[name]    a stand-in of our own for what could not be had, by its published behaviour
`

// table is the results, a block for each scenario.
func table(r results, d *driver) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %d cores, GOMAXPROCS %d\n", runtime.Version(), runtime.NumCPU(), runtime.GOMAXPROCS(0))
	fmt.Fprintf(&s, notes, d.rounds, d.slice, clockCost())
	for i := range r.lines {
		l := &r.lines[i]
		if i == 0 || r.lines[i-1].scenario.name != l.scenario.name {
			fmt.Fprintf(&s, "\n%s (%s)\n  %-30s %9s %9s %9s %9s %9s %8s %7s\n",
				l.scenario.title, l.scenario.name, "", "ops/s", "p50", "p99", "p99.9", "commands", "allocs", "wrong")
		}
		fmt.Fprintf(&s, "  %s\n", row(l))
	}
	if len(r.memory) > 0 {
		fmt.Fprintf(&s, "\nIdle keys of 20 bytes, used once (memory)\n  %-30s %9s %9s\n", "", "B/key", "one GC")
	}
	for _, m := range r.memory {
		fmt.Fprintf(&s, "  %s %9.0f %9s\n", padded(m.kind.name, 30), m.bytes, short(m.gc))
	}
	return s.String()
}

func row(l *line) string {
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
	return strings.TrimRight(fmt.Sprintf("%s %9s %9s %9s %9s %9s %8s %7s", padded(l.kind.name, 30), count(l.median(throughput)),
		short(h.quantile(0.50)), short(h.quantile(0.99)), short(h.quantile(0.999)), perAdmitted, perRequest, wrongs), " ")
}

// padded counts letters, not bytes.
func padded(s string, n int) string {
	return s + strings.Repeat(" ", max(n-utf8.RuneCountInString(s), 0))
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

// sheet is every sample, as CSV.
func sheet(r results) []byte {
	var buf bytes.Buffer
	w := csv.NewWriter(&buf)
	_ = w.Write([]string{ // to a buffer, which never fails
		"scenario", "limiter", "goroutines", "round", "asked", "good", "seconds", "p50_ns", "p99_ns", "p999_ns", "commands", "mallocs",
	})
	for i := range r.lines {
		l := &r.lines[i]
		for round := range l.samples {
			s := &l.samples[round]
			_ = w.Write(append([]string{l.scenario.name, l.kind.name},
				numbers(int64(l.scenario.goroutines), int64(round), s.asked, s.good, s.elapsed.Seconds(),
					s.latency.quantile(0.50).Nanoseconds(), s.latency.quantile(0.99).Nanoseconds(), s.latency.quantile(0.999).Nanoseconds(),
					s.commands, int64(s.mallocs))...))
		}
	}
	w.Flush()
	return buf.Bytes()
}

func numbers(all ...any) (text []string) {
	for _, v := range all {
		switch v := v.(type) {
		case int64:
			text = append(text, strconv.FormatInt(v, 10))
		case float64:
			text = append(text, strconv.FormatFloat(v, 'g', 6, 64))
		}
	}
	return text
}

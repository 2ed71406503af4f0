package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// print prints lines. If nobody reads them, the record and the exit status remain.
func (d *drive) print(text string) { fmt.Fprintln(d.out, text) }

// head explains the rows.
func (d *drive) head() string {
	return fmt.Sprintf(`Three processes share one limit, %s requests in %v.
They are asked for %s in each window, and count in
%s.

   time  requests  refused   errors  Redis calls  admitted of %[1]s`, commas(limit), d.plan.window, commas(demand*limit), d.Server)
}

// row is what happened since the last row.
func (d *drive) row() string {
	const width = 20
	c := d.total().minus(d.shown)
	admitted := "no window: Redis is away"
	if n := d.windows[d.open]; d.open != 0 {
		full := int(min(n, limit) * width / limit)
		admitted = fmt.Sprintf("%s%s %7s", strings.Repeat("█", full), strings.Repeat("░", width-full), commas(n))
	}
	return fmt.Sprintf("%5.1f s %9s %8s %8s %12s  %s", d.at(), commas(c.Requests), commas(c.Refused), commas(c.Failed), commas(c.Calls), admitted)
}

// event prints what was done to the processes or to Redis.
func (d *drive) event(format string, args ...any) {
	d.print(fmt.Sprintf("%5.1f s  → ", d.at()) + fmt.Sprintf(format, args...))
}

// summary says what the run showed, in lines of less than 80 columns.
func (r *record) summary() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	t, own := r.Total, ""
	if r.Counted > 0 {
		own = fmt.Sprintf("\nRedis itself counted %s", commas(r.Counted))
		if lost := t.Calls - r.Counted; lost > 0 {
			own += fmt.Sprintf("; %s met no Redis", commas(lost))
		}
		own += "."
	}
	say("\n%s requests made %s Redis calls: %.2f for 100 requests.%s", commas(t.Requests), commas(t.Calls), percent(t.Calls, t.Requests), own)
	whileUp := ""
	if r.AdmittedAt > 0 {
		up := t.minus(r.Away)
		whileUp = fmt.Sprintf(" (%.2f %% while it was up)", percent(up.Waited, up.Requests))
	}
	say("%.2f %% of the requests waited for Redis%s.\nThe others got their answer at once.", percent(t.Waited, t.Requests), whileUp)
	say("The most that any window admitted: %s of %s.", commas(r.Most), commas(r.Limit))
	if r.KilledAt > 0 {
		say("\nThe killed process held %s tokens, %.1f %% of a limit. Nobody could use them\nuntil their window ended. It was not started again: the other two took its\nrequests.", commas(r.Held), percent(r.Held, r.Limit))
	}
	if a := r.Away; r.AdmittedAt > 0 {
		say("\nRedis was away for %.1f s, and %.2f s later each process admitted again. Of the\n%s requests of that time %s were answered; %s got the failure\npolicy's answer, by default an error.",
			r.UpAt-r.DownAt, r.AdmittedAt-r.UpAt, commas(a.Requests), commas(a.Requests-a.Failed), commas(a.Failed))
	} else {
		say("\nIt was stopped after %.1f s, before all had happened.", r.Seconds)
	}
	if r.Error != "" {
		say("\n%s requests failed while Redis was up; this machine may be busy. First:\n%.79s", commas(t.Failed-r.Away.Failed), r.Error)
	}
	say("\nNext: docs/getting-started.md")
	return b.String()
}

func percent(part, of int64) float64 { return 100 * float64(part) / float64(max(of, 1)) }

// commas writes n, which is not negative, with thousands separators.
func commas(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// write writes the record into a file.
func (r *record) write(file string) error {
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

package torture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a run tells people.
func report(list []*outcome, v *verdict) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	totals(w, list)
	survived(w, list)
	fmt.Fprintln(w, "\npromise\tmeasured\tbar\t")
	for _, p := range v.list {
		verdict := ""
		if !p.Kept {
			verdict = "BROKEN"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, p.Measured, p.Bar, verdict)
	}
	_ = w.Flush() // to memory
	grievances(&b, list)
	for _, p := range v.list {
		for _, why := range p.Why {
			fmt.Fprintf(&b, "BROKEN: %s: %s\n", p.Name, why)
		}
	}
	return b.String()
}

func totals(w *tabwriter.Writer, list []*outcome) {
	var requests, allowed, denied, failed, tokens, calls int64
	for _, o := range list {
		for _, s := range o.Lines {
			requests += s.Requests
			allowed += s.Allowed
			denied += s.Denied
			failed += s.Failed
			tokens += s.Spent
			calls += s.Calls
		}
	}
	fmt.Fprintf(w, "\n%d requests: %d admitted, %d refused, %d failed; %d tokens, %d store calls\n\n",
		requests, allowed, denied, failed, tokens, calls)
	fmt.Fprintln(w, "topology\tfor\tprocesses\tfaults\ttokens\t")
	for _, o := range list {
		var tokens int64
		for _, s := range o.Lines {
			tokens += s.Spent
		}
		fmt.Fprintf(w, "%v\t%v\t%d\t%d\t%d\t\n", o.Scenario.Topology, o.Elapsed.Round(time.Second), o.Scenario.Fleet, len(o.Events), tokens)
	}
}

// survived lists the faults by kind.
func survived(w *tabwriter.Writer, list []*outcome) {
	fmt.Fprintln(w, "\nfault\ttimes\ttook effect\trequests failed\tslowest recovery\tover\t")
	for k := calm; k < kinds; k++ {
		var times, active, failed int64
		var slowest time.Duration
		for _, o := range list {
			for _, e := range kindsIn(o, k) {
				times++
				active += e.Active
				failed += e.Failed
				slowest = max(slowest, e.Recovery)
			}
		}
		if times > 0 || k == calm {
			over := fmt.Sprint(overDuring(list, k))
			if k.fault().loses == timeline {
				over = "" // windows cannot be told apart by their times
			}
			fmt.Fprintf(w, "%v\t%d\t%d\t%d\t%v\t%s\t\n", k, times, active, failed, slowest.Round(time.Millisecond), over)
		}
	}
}

// overDuring is by how much the windows in which the kind was on exceeded the
// limit; for calm, those without any fault. Where a server's clock was set, nobody
// can tell when a window was.
func overDuring(list []*outcome, k kind) (over int64) {
	for _, o := range list {
		if o.times() {
			continue
		}
		for id, s := range o.Lines {
			d := demandOf(id.Role, int64(o.Parts), o.Scenario.Pace)
			for _, g := range s.groups(d.limit.Window) {
				if o.with(g, k) {
					over += max(g.spent-d.limit.Tokens, 0)
				}
			}
		}
	}
	return over
}

func (o *outcome) with(g group, k kind) bool {
	quiet := true
	for i := range o.Events {
		if e := &o.Events[i]; g.during(e) {
			if quiet = false; e.Kind == k {
				return true
			}
		}
	}
	return quiet && k == calm
}

// grievances lists the errors that requests ended in, the most frequent of each
// kind of fault.
func grievances(b *strings.Builder, list []*outcome) {
	fmt.Fprintln(b, "\nerrors of requests:")
	for k := calm; k < kinds; k++ {
		count := make(map[string]int64)
		for _, o := range list {
			for text, n := range o.Errors[k] {
				count[text] += n
			}
		}
		texts := slices.SortedFunc(maps.Keys(count), func(x, y string) int { return cmp.Compare(count[y], count[x]) })
		for _, text := range texts[:min(len(texts), 4)] {
			fmt.Fprintf(b, "%v: %d × %s\n", k, count[text], text)
		}
	}
}

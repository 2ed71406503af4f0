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
		if p.Why != nil {
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
	var all sums
	tokens := make(map[*outcome]int64)
	for _, at := range lines(list...) {
		all.Requests += at.Requests
		all.Allowed += at.Allowed
		all.Denied += at.Denied
		all.Failed += at.Failed
		all.Spent += at.Spent
		all.Calls += at.Calls
		tokens[at.outcome] += at.Spent
	}
	fmt.Fprintf(w, "\n%d requests: %d admitted, %d refused, %d failed; %d tokens, %d store calls\n\n",
		all.Requests, all.Allowed, all.Denied, all.Failed, all.Spent, all.Calls)
	fmt.Fprintln(w, "topology\tfor\tprocesses\tfaults\ttokens\t")
	for _, o := range list {
		fmt.Fprintf(w, "%v\t%v\t%d\t%d\t%d\t\n", o.Scenario.Topology, o.Elapsed.Round(time.Second), o.Scenario.Fleet, len(o.Events), tokens[o])
	}
}

// survived lists the faults by kind.
func survived(w *tabwriter.Writer, list []*outcome) {
	fmt.Fprintln(w, "\nfault\ttimes\ttook effect\trequests failed\tslowest recovery\tover\t")
	for k := calm; k < kinds; k++ {
		var times, active, failed int64
		var slowest time.Duration
		for _, e := range events(list...) {
			if e.Kind == k {
				times++
				active += e.Active
				failed += e.Failed
				slowest = max(slowest, e.Recovery)
			}
		}
		over := fmt.Sprint(overDuring(list, k))
		if k.fault().loses == timeline {
			over = "" // windows cannot be told apart by their times
		}
		if times > 0 || k == calm {
			fmt.Fprintf(w, "%v\t%d\t%d\t%d\t%v\t%s\t\n", k, times, active, failed, slowest.Round(time.Millisecond), over)
		}
	}
}

// overDuring is by how much the windows in which the kind was on exceeded the
// limit; for calm, those without any fault. Where a server's clock was set, nobody
// can tell when a window was.
func overDuring(list []*outcome, k kind) (over int64) {
	for _, at := range lines(list...) {
		limit := at.demand().limit
		for _, g := range at.groups(limit.Window) {
			quiet, on := true, false
			for i := range at.Events {
				if e := &at.Events[i]; g.during(e) {
					quiet, on = false, on || e.Kind == k
				}
			}
			if at.losses(timeline) == 0 && (on || quiet && k == calm) {
				over += max(g.spent-limit.Tokens, 0)
			}
		}
	}
	return over
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

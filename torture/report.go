package torture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// mostErrors is how many errors of requests are told, the most frequent.
const mostErrors = 20

// report is what a run tells people.
func report(v *verdict) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\npromise\tmeasured\tbar\t")
	for _, p := range v.list {
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", p.Name, cmp.Or(p.Measured, fmt.Sprint(p.sum)), p.Bar)
	}
	_ = w.Flush() // to memory
	fmt.Fprintln(&b, "\nerrors of requests:")
	count := make(map[string]int64)
	for _, o := range v.all {
		for text, n := range o.Errors {
			count[text] += n
		}
	}
	texts := slices.SortedFunc(maps.Keys(count), func(x, y string) int { return cmp.Compare(count[y], count[x]) })
	for _, text := range texts[:min(len(texts), mostErrors)] {
		fmt.Fprintf(&b, "%d × %s\n", count[text], text)
	}
	for _, p := range v.list {
		for _, why := range p.Why {
			fmt.Fprintf(&b, "BROKEN: %s: %s\n", p.Name, why)
		}
	}
	return b.String()
}

package fleet

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const everydayHeading = `Everyday limits: processes/limit/shape, then the window if it is not a minute, and the way to the
store if it is not 1 ms. Demand is %v times the limit. %d seeds from %d; the same seeds give the same table.

calls     store calls, in a hundred requests
first     of the limit, spent at a window's first refusal, %%; worst is that of one window. A refusal
          of n tokens is true if fewer are left, and counts as all spent then
needless  requests refused while tokens enough were unspent, %%
waited    requests that waited for the store, %%
late      requests a window that waited for longer than a round trip; longest in ms
used      tokens that requests used, %% of the limit

Shapes: random processes; bursts of 10 at one process at one instant; crowds of 10 at random processes; sticky, 20 in a row
at one process; mixed, 1, 2, 5 or 10 tokens; large, 1, 1, 1 or 50 tokens; settle, 10 tokens, of which 3 turn out to be used;
moves, nine in ten at a tenth of the processes, a twelfth of the window; near, every other at one process 1 ms away, and the
others farther; pauses, 1.3 windows with requests and 1.7 without.
Rolling limits: a spent token counts for 1.05 windows, and each window's time has a first refusal.
`

const restHeading = `Idle at rest: tokens that a process holds after a visit of 10, 20 or 50 requests at one instant, if one of these was
admitted, when nobody waits and no call is under way: the mean, and the most. Limit/window/round trip; 5 processes have
4 visits each a window.
`

// column is a figure of each row. A change is marked if it is more than the margin and, unless the figure
// is a share, more than a part of the figure, which a flag says.
type column struct {
	name   string
	digits int
	margin float64
	share  bool
}

var rowColumns = []column{
	{"calls", 1, 0.5, false}, {"first", 2, 0.005, true}, {"worst", 1, 0.05, true}, {"needless", 2, 0.005, true}, {"waited", 1, 1, true},
	{"late", 1, 2, false}, {"longest", 1, 2, false}, {"used", 1, 0.5, true},
}

var restColumns = []column{
	{"mean 10", 1, 1, false}, {"most 10", 0, 2, false}, {"mean 20", 1, 1, false}, {"most 20", 0, 2, false}, {"mean 50", 1, 1, false}, {"most 50", 0, 2, false},
}

const calls, first, worst, needless, waited, late, longest, used = 0, 1, 2, 3, 4, 5, 6, 7 // of rowColumns

// block is a part of the table: the rows of a policy.
type block struct {
	name, what string
	columns    []column
	names      []string // of the rows, in order
	rows       map[string][]float64
}

// blocks are the empty parts of the table.
func blocks() (all []block) {
	for _, p := range policies {
		all = append(all, block{name: p.name, what: p.what, columns: rowColumns, names: rowsOf(p), rows: map[string][]float64{}})
	}
	for _, p := range restPolicies {
		b := block{name: "rest-" + p.name, what: "idle at rest, " + p.what, columns: restColumns, rows: map[string][]float64{}}
		for _, limit := range []int64{10, 60, 300, 1000, 6000, 60_000} {
			for _, window := range []time.Duration{time.Second, time.Minute} {
				for _, away := range []time.Duration{time.Millisecond / 2, 25 * time.Millisecond} {
					b.names = append(b.names, idle(limit, window, away, 1).name)
				}
			}
		}
		all = append(all, b)
	}
	return all
}

var (
	restPolicies = []policy{policies[0], policies[3]}
	visits       = []int{10, 20, 50}
)

// figures are the columns of a row.
func (s sums) figures() []float64 {
	spent, least := math.NaN(), math.NaN()
	if s.Refusing > 0 {
		spent, least = 100*s.First/float64(s.Refusing), 100*s.Worst
	}
	percent := func(n int64) float64 { return 100 * sim.Ratio(n, s.Requests) }
	return rounded(rowColumns, []float64{
		percent(s.Calls), spent, least, percent(s.Needless), percent(s.Waited),
		sim.Ratio(s.Late, s.Windows), float64(s.Longest) / float64(time.Millisecond), 100 * sim.Ratio(s.Used, s.Tokens),
	})
}

// rest are two columns of a row of what processes hold at rest.
func (s sums) rest() []float64 { return []float64{sim.Ratio(s.Held, s.Rests), float64(s.Most)} }

// rounded returns the values as they are printed, so that what is read again is equal.
func rounded(columns []column, values []float64) []float64 {
	for i, v := range values {
		values[i], _ = strconv.ParseFloat(columns[i].text(v), 64)
	}
	return values
}

func (c column) text(v float64) string {
	if math.IsNaN(v) {
		return "NaN"
	}
	return strconv.FormatFloat(v, 'f', c.digits, 64)
}

// text writes a block. Beside a figure stands that of the committed table in brackets, if it is another,
// with a mark if it is beyond the margin.
func (b block) text(then block, margin float64) string {
	heads := []string{""}
	for _, c := range b.columns {
		heads = append(heads, strings.ReplaceAll(c.name, " ", "-"))
	}
	cells := [][]string{heads}
	for _, name := range b.names {
		line := []string{name}
		for i, c := range b.columns {
			cell := c.text(b.rows[name][i])
			if was := then.rows[name]; was != nil && c.text(was[i]) != cell {
				cell += " (" + c.text(was[i]) + ")"
				if c.changed(was[i], b.rows[name][i], margin) {
					cell += "!"
				}
			}
			line = append(line, cell)
		}
		cells = append(cells, line)
	}
	heading := ""
	if b.name == "rest-"+restPolicies[0].name {
		heading = "\n" + restHeading
	}
	return heading + fmt.Sprintf("\n%s: %s\n", b.name, b.what) + table.Text(cells, false)
}

// changed reports whether a figure is to be marked.
func (c column) changed(then, now, margin float64) bool {
	if c.share {
		margin = 0
	}
	if math.IsNaN(then) || math.IsNaN(now) {
		return math.IsNaN(then) != math.IsNaN(now)
	}
	return math.Abs(now-then) > max(c.margin, margin*math.Abs(then))
}

// parse reads the figures of a table without brackets, by block and row.
func parse(text string) map[string]block {
	all := map[string]block{}
	var b block
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch name, _, ok := strings.Cut(line, ":"); {
		case len(fields) == 0:
		case ok && slices.ContainsFunc(blocks(), func(b block) bool { return b.name == name }):
			b = block{name: name, rows: map[string][]float64{}}
			all[name] = b
		case b.rows != nil && strings.Contains(fields[0], "/"):
			for _, f := range fields[1:] {
				v, _ := strconv.ParseFloat(f, 64)
				b.rows[fields[0]] = append(b.rows[fields[0]], v)
			}
		}
	}
	return all
}

// verdict is what a table is judged by, if then is the committed one. Exact need is that of the
// committed table if it was not measured.
func verdict(now, then map[string]block) string {
	text := "\nJudged:\n"
	say := func(what string, missed []string) {
		mark := "✓"
		if n := len(missed); n > 20 {
			mark = fmt.Sprintf("✗ %d: %s, …", n, strings.Join(missed[:5], ", "))
		} else if n > 0 {
			mark = fmt.Sprintf("✗ %d: %s", n, strings.Join(missed, ", "))
		}
		text += "  " + what + " " + mark + "\n"
	}
	base, exact := now["default"], now["exact"]
	if exact.rows == nil {
		exact = then["exact"]
	}
	sum := func(b block) (sum float64) {
		for _, name := range classic() {
			if row := b.rows[name]; row != nil {
				sum += row[calls]
			}
		}
		return sum
	}
	if whole := classic(); base.rows[whole[0]] != nil && base.rows[whole[len(whole)-1]] != nil {
		text += fmt.Sprintf("  sum of the calls of the first 84 rows: %.1f; committed %.1f, exact need %.1f; bar 2100\n", sum(base), sum(then["default"]), sum(exact))
	}
	missing := func(b block, other map[string][]float64, format string, i int, beyond func(name string, v, other float64) bool) (missed []string) {
		for _, name := range b.names {
			if o := other[name]; o != nil && beyond(name, b.rows[name][i], o[i]) {
				missed = append(missed, fmt.Sprintf(format, name, b.rows[name][i], o[i]))
			}
		}
		return missed
	}
	than := "%s %.1f (%.1f)"
	say("calls at most 2 above exact need, 6 for several tokens:", missing(base, exact.rows, than, calls, func(name string, v, o float64) bool {
		return v > o+allowance(name)+1e-9
	}))
	say("calls at most 5 above the committed table, and 1.5 times, or 1.7 at 1 s and 50 ms:", missing(base, then["default"].rows, than, calls, func(name string, v, o float64) bool {
		times := 1.5
		if strings.HasSuffix(name, "/1s/25ms") {
			times = 1.7
		}
		return v > o+5+1e-9 || v > times*o+0.1
	}))
	say("waits at most 2 points above exact need's:", missing(base, exact.rows, than, waited, func(_ string, v, o float64) bool { return v > o+2+1e-9 }))
	for _, b := range []block{base, now["direct"], now["rolling"]} {
		if b.rows == nil {
			continue
		}
		alone := func(what, format string, i int, bad func(v float64) bool) {
			say(b.name+": "+what, missing(b, b.rows, format, i, func(_ string, v, _ float64) bool { return bad(v) }))
		}
		alone("first refusal at 100:", "%s %.2[2]f", first, func(v float64) bool { return v < 100 })
		alone("in the worst window at 99.9:", "%s %.1[2]f", worst, func(v float64) bool { return v < 99.9 })
		alone("none needless:", "%s %.2[2]f", needless, func(v float64) bool { return v > 0 })
	}
	for _, p := range restPolicies {
		b := now["rest-"+p.name]
		if b.rows == nil {
			continue
		}
		var missed []string
		for _, name := range b.names {
			limit, _ := strconv.ParseFloat(name[:strings.Index(name, "/")], 64)
			if most := slices.Max(b.rows[name]); most > max(limit/10, 3) {
				missed = append(missed, fmt.Sprintf("%s %.0f", name, most))
			}
		}
		say(b.name+": at most a tenth of the limit, or three requests:", missed)
	}
	return text
}

// allowance is how many calls in a hundred a row may make above exact need.
func allowance(name string) float64 {
	if m := manners[strings.Split(name, "/")[2]]; m.sizes != nil {
		return 6
	}
	return 2
}

package bench

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/testnet"
)

// cases are limits as readers of the first page have them. Real processes measure all but the
// one whose windows take an hour, which is simulated. Requests come to random processes.
var cases = []shared{
	{name: "60,000 a minute for all together", title: "%d processes", limit: reservoir.PerMinute(60_000), users: 1},
	{name: "1,000 an hour for each user", title: "%d processes", limit: reservoir.PerHour(1000), users: 20},
	{name: "60 a minute for each user", title: "%d processes", limit: reservoir.PerMinute(60), users: 200},
	{name: "10 a second for each user", title: "%d processes", limit: reservoir.PerSecond(10), users: 20},
}

// simulated reports whether the load runs on a virtual clock.
func (s shared) simulated() bool { return s.limit.Window > time.Minute }

const (
	usual    = 0.5 // the demand of a normal day, in limits a window
	distance = time.Millisecond
)

// steady is what came of one way to limit, by the time that counts.
type steady struct {
	requests, failed, calls int64
	latency                 sim.Latency
	held                    held
}

// steadyOf counts the requests that began in the windows that count, by the clock.
func (s shared) steadyOf(r told, begin time.Time) steady {
	from := begin.Add(time.Duration(s.warm) * s.limit.Window).UnixNano()
	to := from + int64(s.windows)*int64(s.limit.Window)
	y := steady{latency: sim.NewLatency(), held: r.Held}
	for _, a := range r.Answers {
		switch {
		case a.Begin < from || a.Begin >= to:
		case a.Failed:
			y.failed++
		default:
			y.requests++
			y.latency.Note(a.Took)
		}
	}
	return y
}

// A request counts at its beginning, from the first window that counts to the last.
func TestSteady(t *testing.T) {
	s, begin := shared{limit: reservoir.PerSecond(1), warm: 1, windows: 2}, time.Now()
	var r told
	for ms := range int64(4000) {
		r.Answers = append(r.Answers, answer{Begin: begin.UnixNano() + ms*1e6, Took: time.Duration(ms), Failed: ms%10 == 0})
	}
	y := s.steadyOf(r, begin)
	require.Equal(t, []int64{1800, 200}, []int64{y.requests, y.failed})
	require.InDelta(t, 2000, y.latency.Quantile(0.5), 20)
}

// What a sample says is what the store has charged and nobody has spent, which is what a crash
// costs.
func TestHeldIsLostByACrash(t *testing.T) {
	const asked = 300
	store, ctx := memstore.New(), t.Context()
	l := openLimiter(store, reservoir.PerMinute(1000))
	defer l.Close(context.Background())
	for range asked {
		r, err := l.Allow(ctx, "k")
		require.NoError(t, err)
		require.True(t, r.Allowed)
	}
	var h held
	require.Eventually(t, func() bool { // a fetch ahead of need may be under way
		h = held{}
		h.sample(l)
		in, err := store.Inspect(ctx, "k")
		return err == nil && len(in) == 1 && h.Tokens == in[0].Used-asked
	}, 10*time.Second, time.Millisecond)
	require.Positive(t, h.Tokens)
	require.Equal(t, h.Tokens, h.Most, "of the only user")
}

// caseLine is what came of a case.
type caseLine struct {
	shared
	way string
	steady
}

// TestCases measures the table of the first page, and prints it:
//
//	make cases              # ten minutes
//	make cases SIZE=quick   # five
func TestCases(t *testing.T) {
	size, ok := sizes[*sizeFlag]
	require.True(t, ok, "-size=%s: want tiny, quick or full", *sizeFlag)
	var all []caseLine
	for _, processes := range []int{3, 20} {
		var real []shared
		for _, demand := range []float64{usual, overload} {
			for _, s := range cases {
				s.processes, s.demand, s.ways = processes, demand, []sharer{ourSharer, callingSharer}
				switch {
				case s.simulated():
					s.warm, s.windows = 1, max(size.minutes, 1)
					if size.minutes == 0 {
						s.processes, s.users = min(processes, size.processes), 2
					}
					all = append(all, caseLine{s, ourSharer.name, s.simulate(t)})
				case size.minutes == 0:
					s.warm = 1
					real = append(real, s.scaled(size.window, size.windows, size.processes))
				default:
					s.warm = int(time.Minute / s.limit.Window)
					s.windows = size.minutes * s.warm
					real = append(real, s)
				}
			}
		}
		progress("%d processes …", processes)
		for _, g := range requireBounded(t, run(t, real...)) {
			for _, l := range g.lines {
				all = append(all, caseLine{g.shared, l.name, l.steady})
			}
		}
	}
	text := firstPage(all) + "\n" + besideCalls(all, usual) + "\n" + besideCalls(all, overload) + caseNotes + caseTables(all)
	if *sizeFlag != "tiny" {
		fmt.Print(text)
	}
	if *dirFlag != "" {
		require.NoError(t, os.WriteFile(filepath.Join(*dirFlag, "cases.txt"), []byte(text), 0o666))
	}
}

// simulate runs the load on a virtual clock: real limiters, a store in memory, and a network
// in which a call takes the distance. An answer from memory takes no time.
func (s shared) simulate(t *testing.T) (y steady) {
	defer chance.Seed(1)()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		net, begin := testnet.Far(distance/2), time.Now()
		var all told
		var mu sync.Mutex
		var wg sync.WaitGroup
		p := s.part(ourSharer, "", 0)
		for i := range s.processes {
			o := asLimiter(openLimiter(net.Port(i, 0), s.limit))
			defer o.close()
			wg.Go(func() {
				r, err := p.run(t.Context(), o, i, begin)
				mu.Lock()
				defer mu.Unlock()
				require.NoError(t, err)
				all.Answers = append(all.Answers, r.Answers...)
				all.Held.add(r.Held)
			})
		}
		time.Sleep(p.Warm)
		before := net.Count("")
		time.Sleep(time.Duration(s.windows) * s.limit.Window)
		calls := net.Count("") - before
		wg.Wait()
		y = s.steadyOf(all, begin)
		y.calls = int64(calls)
	})
	return y
}

func callsFor100(l caseLine) string { return table.Digits(100 * sim.Ratio(l.calls, l.requests)) }

// took writes a quantile of the time that requests took. Simulated ones take no time, or that
// of calls.
func took(q float64) func(l caseLine) string {
	return func(l caseLine) string {
		d := l.latency.Quantile(q)
		switch calls := math.Round(float64(d) / float64(distance)); {
		case !l.simulated():
			return table.Duration(d)
		case calls == 0:
			return "memory"
		case calls == 1:
			return "a\u00a0call"
		default:
			return fmt.Sprintf("%.0f\u00a0calls", calls)
		}
	}
}

// idle is the part of the limits that lies in a process, on average.
func (l caseLine) idle() string {
	if l.held.Samples == 0 {
		return "–"
	}
	return table.Percent(sim.Ratio(l.held.Tokens, l.held.Samples*int64(l.users)*l.limit.Tokens))
}

// most is the largest part of one user's limit that lay in a process.
func (l caseLine) most() string {
	if l.held.Samples == 0 {
		return "–"
	}
	return table.Percent(sim.Ratio(l.held.Most, l.limit.Tokens))
}

const caseNotes = `
The tables above are those of README.md and docs/performance.md. Requests come to random processes.
A case with windows of an hour is simulated on a virtual clock, on which a call takes 1 ms and memory
no time.

demand  in limits a window
calls   to the store for 100 requests, by INFO commandstats
idle    part of the limit that lies in one process and is lost if that is killed: on average
most    the same, at any time, of any user
`

func caseTables(all []caseLine) string {
	var b strings.Builder
	for _, s := range cases {
		rows := [][]string{{"", "processes", "demand", "calls", "p50", "p99", "p99.9", "idle", "most", "requests", "failed"}}
		for _, l := range all {
			if l.name != s.name {
				continue
			}
			rows = append(rows, []string{l.way, fmt.Sprint(l.processes), fmt.Sprintf("%g × L", l.demand), callsFor100(l),
				took(0.5)(l), took(0.99)(l), took(0.999)(l), l.idle(), l.most(), table.Commas(l.requests), table.Commas(l.failed)})
		}
		fmt.Fprintf(&b, "\n%s\n%s", s.name, table.Text(rows, false))
	}
	return b.String()
}

// firstPage is the table of the first page, with two digits. A cell has the figures of the
// fewest and of the most processes, at the usual demand; what a killed process loses is the worse of
// both demands.
func firstPage(all []caseLine) string {
	rows := [][]string{{"your limit", "Redis calls for 100 requests", "median", "99.9 %", "a killed process loses"}}
	for _, s := range cases {
		ours, loaded := linesOf(all, s.name, ourSharer, usual), linesOf(all, s.name, ourSharer, overload)
		rows = append(rows, []string{"**" + s.name + "**", pair(ours, callsFor100), pair(ours, took(0.5)), pair(ours, took(0.999)),
			pair(worse(ours, loaded), caseLine.most)})
	}
	var calling []caseLine // by processes
	for _, l := range all {
		if l.way == callingSharer.name && l.demand == usual {
			calling = append(calling, l)
		}
	}
	rows = append(rows, []string{"a call for each request (redis_rate)", "100" + slash + "100", ranges(calling, 0.5), ranges(calling, 0.999), "0" + slash + "0"})
	for _, row := range rows[1:] {
		for i := range row[1:] {
			row[i+1] = number.ReplaceAllStringFunc(row[i+1], twoDigits)
		}
	}
	return markdown(rows)
}

// number is a figure of a cell, with its unit.
var number = regexp.MustCompile(`\d+(\.\d+)?( (ns|µs|ms|s|%))?`)

// twoDigits rounds a figure.
func twoDigits(figure string) string {
	number, unit, _ := strings.Cut(figure, " ")
	v, _ := strconv.ParseFloat(number, 64) // of three digits
	if magnitude := math.Pow(10, math.Floor(math.Log10(v))-1); v > 0 {
		v = math.Round(v/magnitude) * magnitude
	}
	digits := 0
	for digits < 4 && math.Abs(v-math.Round(v*math.Pow10(digits))/math.Pow10(digits)) > v/1000 {
		digits++
	}
	return strings.TrimSpace(strconv.FormatFloat(v, 'f', digits, 64) + " " + unit)
}

func TestTwoDigits(t *testing.T) {
	for figure, want := range map[string]string{
		"0.033": "0.033", "29.3": "29", "99.6": "100", "6.51": "6.5", "2.10 µs": "2.1 µs", "132 µs": "130 µs", "0 %": "0 %", "655 µs": "660 µs", "5.00 %": "5 %", "0": "0",
	} {
		require.Equal(t, want, twoDigits(figure))
	}
}

// besideCalls is a table of all cases beside a call for each request.
func besideCalls(all []caseLine, demand float64) string {
	rows := [][]string{{"limit", "Redis calls for 100 requests", "median", "of a call", "99.9 %", "of a call", "most held by a process"}}
	for _, s := range cases {
		ours, calls := linesOf(all, s.name, ourSharer, demand), linesOf(all, s.name, callingSharer, demand)
		rows = append(rows, []string{s.name, pair(ours, callsFor100), pair(ours, took(0.5)), pair(calls, took(0.5)),
			pair(ours, took(0.999)), pair(calls, took(0.999)), pair(ours, caseLine.most)})
	}
	return markdown(rows)
}

// linesOf returns the lines of a case, by processes.
func linesOf(all []caseLine, name string, way sharer, demand float64) (some []caseLine) {
	for _, l := range all {
		if l.name == name && l.way == way.name && l.demand == demand {
			some = append(some, l)
		}
	}
	return some
}

// pair writes a figure of each line.
func pair(lines []caseLine, say func(l caseLine) string) string {
	var all []string
	for _, l := range lines {
		all = append(all, say(l))
	}
	return cmp.Or(strings.Join(all, slash), "–")
}

// ranges writes, for each number of processes, the lowest and the highest of a quantile.
func ranges(lines []caseLine, q float64) string {
	var all []string
	for len(lines) > 0 {
		fleet := slices.IndexFunc(lines, func(l caseLine) bool { return l.processes != lines[0].processes })
		if fleet < 0 {
			fleet = len(lines)
		}
		var times []time.Duration
		for _, l := range lines[:fleet] {
			times = append(times, l.latency.Quantile(q))
		}
		low, high := table.Duration(slices.Min(times)), table.Duration(slices.Max(times))
		if number, unit, _ := strings.Cut(low, " "); strings.HasSuffix(high, " "+unit) {
			low = number
		}
		all, lines = append(all, low+"–"+high), lines[fleet:]
	}
	return strings.Join(all, slash)
}

// worse returns, for each number of processes, the line of two loads in which a process held
// more. What a crash costs matters on the worst day.
func worse(a, b []caseLine) (all []caseLine) {
	for i := range min(len(a), len(b)) {
		if b[i].held.Most > a[i].held.Most {
			all = append(all, b[i])
		} else {
			all = append(all, a[i])
		}
	}
	return all
}

func TestWorse(t *testing.T) {
	line := func(most int64) caseLine { return caseLine{steady: steady{held: held{Most: most}}} }
	require.Equal(t, []caseLine{line(5), line(4)}, worse([]caseLine{line(2), line(4)}, []caseLine{line(5), line(1)}))
}

const slash = "\u00a0/ " // before which no line breaks

func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		if i > 0 { // a figure and its unit stay on a line
			for j := range row[1:] {
				row[j+1] = number.ReplaceAllStringFunc(row[j+1], func(s string) string { return strings.ReplaceAll(s, " ", "\u00a0") })
			}
		}
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return b.String()
}

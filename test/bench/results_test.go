package bench

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

const notes = `
ops/s     answers as they should be, in a second: median of %d rounds of %v (in process: half), in which the peers take turns
p50 …     latency over all rounds; what takes nanoseconds is timed rarely, and includes reading the clock
          Of these the median of %d runs, and the lowest and highest run. Of the rest the highest run:
commands  sent to Redis per admitted request, by INFO commandstats
each      time of Redis for each of these commands, by the same; other load on the machine makes it longer
allocs    per request, of the whole process; one is the key's where each is used once; with a proxy in it none are counted
wrong     refusals at a limit that is not reached, and errors
[name]    a stand-in of our own for what could not be had, by its published behaviour
`

// tables formats the results, with a table for each scenario.
func tables(r results, d *driver) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s, %d cores, GOMAXPROCS %d\n", runtime.Version(), runtime.NumCPU(), runtime.GOMAXPROCS(0))
	fmt.Fprintf(&s, notes, d.rounds, d.slice, r.runs)
	if len(r.shares) > 0 {
		fmt.Fprintf(&s, sharedNotes, overload)
	}
	for _, shared := range r.shares {
		s.WriteString(shared.table())
	}
	for _, group := range r.groups {
		rows := [][]string{{"", "ops/s", "lowest", "highest", "p50", "p99.9", "lowest", "highest", "commands", "each", "allocs", "wrong"}}
		for _, l := range group {
			rows = append(rows, l.cells())
		}
		fmt.Fprintf(&s, "\n%s (%s)\n%s", group[0].scenario.title, group[0].scenario.name, table.Text(rows, false))
	}
	if len(r.memory) > 0 {
		rows := [][]string{{"", "B/key", "one GC"}}
		for _, m := range r.memory {
			rows = append(rows, []string{m.kind.name, fmt.Sprintf("%.0f", m.bytes), table.Duration(m.gc)})
		}
		fmt.Fprintf(&s, "\nIdle keys of 20 bytes, used once (memory)\n%s", table.Text(rows, false))
	}
	return s.String()
}

func (l *line) cells() []string {
	perAdmitted, each, perRequest, wrongs := "–", "–", "–", ""
	if l.kind.sends != nil {
		perAdmitted = table.Digits(l.of(byRound(commands)).highest())
	}
	if l.kind.calls && slices.Equal(l.kind.sends, scripts) {
		each = table.Duration(duration(l.of(byRound(busy)).highest()))
	}
	if l.scenario.delay == 0 {
		perRequest = fmt.Sprintf("%.2f", l.of(byRound(allocs)).highest())
	}
	if v := l.of(byRound(wrong)).highest(); v > 0 {
		wrongs = table.Percent(v)
	}
	ops, slow := l.of(byRound(throughput)), l.of(overall(0.999))
	return []string{l.kind.name, count(ops.median()), count(ops.lowest()), count(ops.highest()),
		table.Duration(duration(l.of(overall(0.50)).median())),
		table.Duration(duration(slow.median())), table.Duration(duration(slow.lowest())), table.Duration(duration(slow.highest())),
		perAdmitted, each, perRequest, wrongs}
}

// bar is a bound on a figure of a run.
type bar struct {
	figure string
	of     func(results) spread // by run; empty if it was not measured
	sign   string               // ≤ or ≥
	bound  float64
	unit   string
}

var bars = []bar{
	{"Key.Allow, one core, to x/time/rate", ratio("core-1", ourKey, xTime, cost), "≤", 0.5, " ×"},
	{"Allow, one hot key, to x/time/rate", ratio("core-1", ourAllow, xTime, cost), "≤", 0.65, " ×"},
	{"Allow, one hot key, to sync.Map + clock + CAS", ratio("core-1", ourAllow, bareMap, cost), "≤", 1.3, " ×"},
	{"Allow, 10,000 keys, to sync.Map + x/time/rate", ratio("core-1-keys-10k", ourAllow, xTimes, cost), "≤", 0.6, " ×"},
	{"Allow, 10,000 keys, to sethvargo/go-limiter", ratio("core-1-keys-10k", ourAllow, goLimiter, cost), "≤", 1, " ×"},
	{"Key.Allow, two cores, 128 goroutines, to x/time/rate", ratio("core-2", ourKey, xTime, cost), "≤", 1, " ×"},
	{"Allow, the same", ratio("core-2", ourAllow, xTime, cost), "≤", 1, " ×"},
	{"cached refusal by key, to an admission", ratio("core-1", ourRefusal, ourAllow, cost), "≤", 1.1, " ×"},
	{"cached refusal by handle, to an admission", ratio("core-1", ourNo, ourKey, cost), "≤", 1.1, " ×"},
	{"hot-64: throughput to redis_rate", ratio("hot-64", ours, redisRate, throughput), "≥", 100, " ×"},
	{"hot-64: throughput to [rueidislimiter]", ratio("hot-64", ours, rueidisLimiter, throughput), "≥", 40, " ×"},
	{"hot-64: throughput to Rockset's rule, 1000", ratio("hot-64", ours, rule1000, throughput), "≥", 1.5, " ×"},
	{"hot-64: direct, throughput to [rueidislimiter]", ratio("hot-64", direct, rueidisLimiter, throughput), "≥", 1, " ×"},
	{"hot-64: direct, throughput to bare EVALSHA, rueidis", ratio("hot-64", direct, rueidisBare, throughput), "≥", 1, " ×"},
	{"hot-64: direct, throughput to bare EVALSHA, go-redis", ratio("hot-64", direct, evalsha, throughput), "≥", 3, " ×"},
	{"hot-512: throughput to redis_rate", ratio("hot-512", ours, redisRate, throughput), "≥", 100, " ×"},
	{"hot-512: throughput to [rueidislimiter]", ratio("hot-512", ours, rueidisLimiter, throughput), "≥", 40, " ×"},
	{"hot-512: throughput to Rockset's rule, 1000", ratio("hot-512", ours, rule1000, throughput), "≥", 1.5, " ×"},
	{"far-64: throughput to Rockset's rule, 1000", ratio("far-64", ours, rule1000, throughput), "≥", 5, " ×"},
	{"zipf-512: throughput to redis_rate", ratio("zipf-512", ours, redisRate, throughput), "≥", 60, " ×"},
	{"zipf-512: throughput to [rueidislimiter]", ratio("zipf-512", ours, rueidisLimiter, throughput), "≥", 25, " ×"},
	{"zipf-512: throughput to Rockset's rule, 1000", ratio("zipf-512", ours, rule1000, throughput), "≥", 1.2, " ×"},
	{"hot-64: throughput to Rockset's rule, L/1000", ratio("hot-64", ours, ruleShare, throughput), "≥", 1, " ×"},
	{"hot-64: p99.9 to Rockset's rule, 1000", ratio("hot-64", ours, rule1000, quantile(0.999)), "≤", 0.02, " ×"},
	{"hot-512: p99.9 to Rockset's rule, 1000", ratio("hot-512", ours, rule1000, quantile(0.999)), "≤", 0.02, " ×"},
	{"once-512: throughput to bare EVALSHA, go-redis", ratio("once-512", cold, evalsha, throughput), "≥", 1, " ×"},
	{"once-512: direct, throughput to the same", ratio("once-512", direct, evalsha, throughput), "≥", 1, " ×"},
	{"once-512: throughput to [rueidislimiter]", ratio("once-512", cold, rueidisLimiter, throughput), "≥", 1, " ×"},
	{"once-512: Redis' time for a call, to bare EVALSHA, go-redis", ratio("once-512", cold, evalsha, busy), "≤", 1.3, " ×"},
	{"once-1: p50 to bare EVALSHA, go-redis", ratio("once-1", cold, evalsha, quantile(0.50)), "≤", 1.2, " ×"},
	{"allocations without a store call", allocations, "≤", 0, ""},
	{"memory per idle key", idleBytes, "≤", 320, " B"},
}

// ratio returns the median, over the rounds of a run, of the ratio of two kinds' figures.
func ratio(scenario string, a, b kind, f figure) func(results) spread {
	return func(r results) spread { return r.of(scenario, a).ratio(r.of(scenario, b), f) }
}

// allocations returns the most allocations per request of the paths in memory. It rounds
// to three decimals, because starting goroutines and restocking allocate a little in each
// slice.
func allocations(r results) (most spread) {
	for _, k := range []kind{ourKey, ourAllow, ourRefusal, ourNo} {
		for _, v := range r.of("core-1", k).of(byRound(allocs)) {
			most = append(most, math.Round(v*1000)/1000)
		}
	}
	slices.Sort(most)
	return most
}

// idleBytes returns the memory of the library's idle key.
func idleBytes(r results) spread {
	if len(r.memory) == 0 {
		return nil
	}
	return spread{r.memory[0].bytes}
}

// verdict formats the last table: each bar, and whether the worst run reached it.
func verdict(r results) string {
	rows := [][]string{{"figure (median of the ratios within a round)", "measured", "lowest", "highest", "bar"}}
	for _, b := range bars {
		v := b.of(r)
		if len(v) == 0 {
			continue
		}
		mark := "ok"
		if b.sign == "≤" && v.highest() > b.bound || b.sign == "≥" && v.lowest() < b.bound {
			mark = "missed"
		}
		say := func(v float64) string { return table.Digits(v) + b.unit }
		rows = append(rows, []string{b.figure, say(v.median()), say(v.lowest()), say(v.highest()), b.sign + " " + say(b.bound), mark})
	}
	return "\n" + table.Text(rows, false)
}

// results is all that a run measured.
type results struct {
	runs   int
	groups [][]*line // by scenario
	shares []sharedGroup
	memory []memoryLine
}

// figure is one number of a sample.
type figure func(*sample) float64

func throughput(s *sample) float64 { return float64(s.good) / s.elapsed.Seconds() }

// cost is the time from one answer to the next, in seconds.
func cost(s *sample) float64 { return s.elapsed.Seconds() / float64(s.good) }

func allocs(s *sample) float64 { return float64(s.mallocs) / float64(s.asked) }

// wrong is the share of wrong answers: refusals at a limit that is not reached, and
// errors.
func wrong(s *sample) float64 { return 1 - float64(s.good)/float64(s.asked) }

func commands(s *sample) float64 { return float64(s.commands) / float64(s.good) }

// quantile returns the figure of a quantile of the latency, in seconds.
func quantile(q float64) figure {
	return func(s *sample) float64 { return s.latency.Quantile(q).Seconds() }
}

// busy is the time of Redis for a command, in seconds.
func busy(s *sample) float64 { return s.busy.Seconds() / float64(s.commands) }

// byRound is the median of a figure over the rounds of a run.
func byRound(f figure) func(run []sample) float64 {
	return func(run []sample) float64 { return spreadOf(run, f).median() }
}

// overall is a quantile of the latency over all rounds of a run, in seconds. High quantiles
// need many samples.
func overall(q float64) func(run []sample) float64 {
	return func(run []sample) float64 { return merged(run).Quantile(q).Seconds() }
}

func merged(run []sample) sim.Latency {
	h := sim.NewLatency()
	for i := range run {
		h.Merge(run[i].latency.Histogram)
	}
	return h
}

func duration(seconds float64) time.Duration { return time.Duration(math.Round(seconds * 1e9)) }

// of returns a figure of each run.
func (l *line) of(f func(run []sample) float64) spread {
	return spreadOf(l.runs, func(run *[]sample) float64 { return f(*run) })
}

// ratio returns, of each run, the median of l's figure divided by o's in the same round.
func (l *line) ratio(o *line, f figure) (all spread) {
	for i := range min(len(l.runs), len(o.runs)) {
		var ratios spread
		for j := range l.runs[i] {
			ratios = append(ratios, f(&l.runs[i][j])/f(&o.runs[i][j]))
		}
		slices.Sort(ratios)
		all = append(all, ratios.median())
	}
	slices.Sort(all)
	return all
}

// spread is what one figure was in each run, in ascending order.
type spread []float64

func spreadOf[T any](runs []T, f func(*T) float64) (s spread) {
	for i := range runs {
		s = append(s, f(&runs[i]))
	}
	slices.Sort(s)
	return s
}

func (s spread) lowest() float64  { return s[0] }
func (s spread) median() float64  { return (s[(len(s)-1)/2] + s[len(s)/2]) / 2 }
func (s spread) highest() float64 { return s[len(s)-1] }

// add adds a run of a scenario.
func (r *results) add(group []*line) {
	for _, known := range r.groups {
		if known[0].scenario.name == group[0].scenario.name {
			for i, l := range known {
				l.runs = append(l.runs, group[i].runs...)
			}
			return
		}
	}
	r.groups = append(r.groups, group)
}

// of returns the line of a kind in a scenario, which is empty if it was not run.
func (r results) of(scenario string, k kind) *line {
	for _, l := range slices.Concat(r.groups...) {
		if l.scenario.name == scenario && l.kind.name == k.name {
			return l
		}
	}
	return new(line)
}

// count writes v with about three digits, in thousands or millions if it is large.
func count(v float64) string {
	switch {
	case v >= 999_500:
		return table.Digits(v/1e6) + " M"
	case v >= 1_000:
		return table.Digits(v/1e3) + " k"
	}
	return table.Digits(v)
}

func TestCount(t *testing.T) {
	require.Equal(t, "1.00 M", count(999_999))
	require.Equal(t, "100 k", count(100_000))
}

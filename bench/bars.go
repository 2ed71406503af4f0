package bench

import (
	"math"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// bar is what a figure should reach: a ratio of two kinds in one scenario, the median of
// those within a round.
type bar struct {
	figure, scenario string
	a, b             kind
	of               figure
	bound            float64
	least            bool // the bound is a lower one
}

var (
	p50 = quantile(0.50)
	p99 = quantile(0.99)
)

func bars() []bar {
	all := []bar{
		{"Key.Allow, one core, to x/time/rate", "core-1", ourKey, xTime, cost, 0.5, false},
		{"Allow, one hot key, to x/time/rate", "core-1", ourAllow, xTime, cost, 0.65, false},
		{"Allow, one hot key, to sync.Map + clock + CAS", "core-1", ourAllow, bareMap, cost, 1.3, false},
		{"Allow, 10,000 keys, to sync.Map + x/time/rate", "core-1-keys-10k", ourAllow, xTimes, cost, 0.6, false},
		{"Key.Allow, two cores, 128 goroutines, to x/time/rate", "core-2", ourKey, xTime, cost, 1, false},
		{"Allow, the same", "core-2", ourAllow, xTime, cost, 1, false},
		{"cached refusal by key, to an admission", "core-1", ourRefusal, ourAllow, cost, 1.1, false},
		{"cached refusal by handle, to an admission", "core-1", ourNo, ourKey, cost, 1.1, false},
	}
	for _, b := range []struct {
		scenario                 string
		redisRate, rueidis, rule float64
	}{{"hot-64", 100, 40, 1.5}, {"hot-512", 100, 40, 1.5}, {"far-64", 0, 0, 5}, {"zipf-512", 60, 25, 1.2}} {
		for _, to := range []struct {
			kind
			least float64
		}{{redisRate, b.redisRate}, {rueidisLimiter, b.rueidis}, {rule1000, b.rule}} {
			if to.least > 0 {
				all = append(all, bar{b.scenario + ": throughput to " + to.name, b.scenario, ours, to.kind, throughput, to.least, true})
			}
		}
	}
	return append(all,
		bar{"hot-64: p99 to " + rule1000.name, "hot-64", ours, rule1000, p99, 0.02, false},
		bar{"hot-512: p99 to " + rule1000.name, "hot-512", ours, rule1000, p99, 0.02, false},
		bar{"once-512: throughput to bare EVALSHA, go-redis", "once-512", cold, evalsha, throughput, 1, true},
		bar{"once-512: direct, throughput to the same", "once-512", direct, evalsha, throughput, 1.4, true},
		bar{"once-1: p50 to bare EVALSHA, go-redis", "once-1", cold, evalsha, p50, 1.2, false},
	)
}

// value is NaN if it was not measured.
func (b bar) value(r results) float64 {
	l, o := r.of(b.scenario, b.a), r.of(b.scenario, b.b)
	if l == nil || o == nil {
		return math.NaN()
	}
	return l.ratio(o, b.of)
}

// allocations is the most of the paths in memory, to the third digit: a slice has
// a few that are not theirs, of starting goroutines and of restocking.
func allocations(r results) float64 {
	most := 0.0
	for _, k := range []kind{ourKey, ourAllow, ourRefusal, ourNo} {
		l := r.of("core-1", k)
		if l == nil {
			return math.NaN()
		}
		most = max(most, math.Round(l.median(allocs)*1000)/1000)
	}
	return most
}

// verdict is the second table: each bar, and whether it was reached.
func verdict(r results) string {
	rows := [][]string{{"figure (median of the ratios within a round)", "measured", "bar"}}
	judge := func(figure string, v, bound float64, least bool, unit string) {
		sign, mark := "≤", "ok"
		if least {
			sign = "≥"
		}
		if v != bound && v > bound != least {
			mark = "missed"
		}
		if !math.IsNaN(v) {
			rows = append(rows, []string{figure, digits(v) + unit, sign + " " + digits(bound) + unit, mark})
		}
	}
	for _, b := range bars() {
		judge(b.figure, b.value(r), b.bound, b.least, " ×")
	}
	judge("allocations without a store call", allocations(r), 0, false, "")
	for _, m := range r.memory {
		if m.kind.name == "reservoir" {
			judge("memory per idle key", m.bytes, 320, false, " B")
		}
	}
	return "\n" + table.Text(rows, false)
}

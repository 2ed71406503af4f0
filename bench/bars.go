package bench

import (
	"fmt"
	"math"

	"github.com/go-reservoir/reservoir/cmd/reservoir/table"
)

// results is all that a run measured.
type results struct {
	lines  lines
	memory []memoryLine
}

// bar is what a figure should reach.
type bar struct {
	figure string
	bound  float64
	least  bool // the bound is a lower one
	unit   string
	value  func(results) float64 // NaN if it was not measured
}

// ok reports whether v passes.
func (b bar) ok(v float64) bool {
	if b.least {
		return v >= b.bound
	}
	return v <= b.bound
}

// at compares two kinds in one scenario by the median of their ratios in a round.
func at(scenario string, a, b kind, f figure) func(results) float64 {
	return func(r results) float64 {
		l, o := r.lines.of(scenario, a), r.lines.of(scenario, b)
		if l == nil || o == nil {
			return math.NaN()
		}
		return l.ratio(o, f)
	}
}

// costs is a bar for an answer from memory, by the time that it takes.
func costs(figure, scenario string, a, b kind, most float64) bar {
	return bar{figure: figure, bound: most, unit: " ×", value: at(scenario, a, b, cost)}
}

// serves is a bar for the answers in a second.
func serves(figure, scenario string, a, b kind, least float64) bar {
	return bar{figure: figure, bound: least, least: true, unit: " ×", value: at(scenario, a, b, throughput)}
}

func bars() []bar {
	all := []bar{
		costs("Key.Allow, one core, to x/time/rate", "core-1", ourKey, xTime, 0.5),
		costs("Allow, one hot key, to x/time/rate", "core-1", ourAllow, xTime, 0.65),
		costs("Allow, one hot key, to sync.Map + clock + CAS", "core-1", ourAllow, bareMap, 1.3),
		costs("Allow, 10,000 keys, to sync.Map + x/time/rate", "core-1-keys-10k", ourAllow, xTimes, 0.6),
		costs("Key.Allow, two cores, 128 goroutines, to x/time/rate", "core-2", ourKey, xTime, 1),
		costs("Allow, the same", "core-2", ourAllow, xTime, 1),
		{figure: "allocations without a store call", bound: 0, value: allocations},
		costs("cached refusal by key, to an admission", "core-1", ourRefusal, ourAllow, 1.1),
		costs("cached refusal by handle, to an admission", "core-1", ourNo, ourKey, 1.1),
	}
	for _, s := range []string{"hot-64", "hot-512"} {
		all = append(all,
			serves(s+": throughput to redis_rate", s, ours, redisRate, 100),
			serves(s+": throughput to "+rueidisLimiter.name, s, ours, rueidisLimiter, 40),
			serves(s+": throughput to "+rockset.name, s, ours, rockset, 1.5),
			bar{figure: s + ": p99 to " + rockset.name, bound: 0.02, unit: " ×", value: at(s, ours, rockset, quantile(0.99))})
	}
	return append(all,
		serves("far-64: throughput to "+rockset.name, "far-64", ours, rockset, 5),
		serves("zipf-512: throughput to redis_rate", "zipf-512", ours, redisRate, 60),
		serves("zipf-512: throughput to "+rueidisLimiter.name, "zipf-512", ours, rueidisLimiter, 25),
		serves("zipf-512: throughput to "+rockset.name, "zipf-512", ours, rockset, 1.2),
		serves("once-512: throughput to bare EVALSHA, go-redis", "once-512", cold, evalsha, 1),
		serves("once-512: direct, throughput to the same", "once-512", direct, evalsha, 1.4),
		bar{figure: "once-1: p50 to bare EVALSHA, go-redis", bound: 1.2, unit: " ×", value: at("once-1", cold, evalsha, quantile(0.50))},
		bar{figure: "memory per idle key", bound: 320, unit: " B",
			value: func(r results) float64 { return bytesOf(r.memory, "reservoir") }},
	)
}

// allocations is the most of the paths in memory, to the third digit: a slice has
// a few that are not theirs, of starting goroutines and of restocking.
func allocations(r results) (most float64) {
	for _, k := range []kind{ourKey, ourAllow, ourRefusal, ourNo} {
		l := r.lines.of("core-1", k)
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
	for _, b := range bars() {
		v := b.value(r)
		sign, mark := "≤", "ok"
		if b.least {
			sign = "≥"
		}
		switch {
		case math.IsNaN(v):
			continue
		case !b.ok(v):
			mark = "missed"
		}
		rows = append(rows, []string{b.figure, digits(v) + b.unit, sign + " " + digits(b.bound) + b.unit, mark})
	}
	return "\n" + table.Text(rows, false)
}

// digits is v in about three of them.
func digits(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

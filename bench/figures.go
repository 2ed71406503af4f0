package bench

import (
	"math"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

// results is all that a run measured.
type results struct {
	lines  []*line
	memory []memoryLine
}

// figure is one number of a sample.
type figure func(*sample) float64

func throughput(s *sample) float64 { return float64(s.good) / s.elapsed.Seconds() }

// cost is the time from one answer to the next, in seconds.
func cost(s *sample) float64 { return s.elapsed.Seconds() / float64(s.good) }

func allocs(s *sample) float64 { return float64(s.mallocs) / float64(s.asked) }

// wrong is the share of answers that were not as they should be: a refusal at a
// limit that is not reached, or an error.
func wrong(s *sample) float64 { return 1 - float64(s.good)/float64(s.asked) }

func commands(s *sample) float64 { return float64(s.commands) / float64(s.good) }

// quantile is that of the latency, in seconds.
func quantile(q float64) figure {
	return func(s *sample) float64 { return s.latency.Quantile(q).Seconds() }
}

// median is the one of a figure over all rounds.
func (l *line) median(f figure) float64 { return l.ratio(nil, f) }

// ratio is the median over all rounds of l's figure in a round, to o's in the
// same one.
func (l *line) ratio(o *line, f figure) float64 {
	all := make([]float64, len(l.samples))
	for i := range l.samples {
		if all[i] = f(&l.samples[i]); o != nil {
			all[i] /= f(&o.samples[i])
		}
	}
	return median(all)
}

// latency is that of all rounds together: what is rare needs many samples.
func (l *line) latency() sim.Latency {
	h := sim.NewLatency()
	for i := range l.samples {
		h.Merge(l.samples[i].latency.Histogram)
	}
	return h
}

// median sorts all.
func median(all []float64) float64 {
	slices.Sort(all)
	n := len(all)
	if n == 0 {
		return math.NaN()
	}
	return (all[(n-1)/2] + all[n/2]) / 2
}

// byScenario are the lines of each scenario, in turn.
func (r results) byScenario() (groups [][]*line) {
	for i, l := range r.lines {
		if i == 0 || l.scenario.name != r.lines[i-1].scenario.name {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], l)
	}
	return groups
}

// of returns the line of a kind in a scenario, or nil if it was not run.
func (r results) of(scenario string, k kind) *line {
	i := slices.IndexFunc(r.lines, func(l *line) bool { return l.scenario.name == scenario && l.kind.name == k.name })
	if i < 0 {
		return nil
	}
	return r.lines[i]
}

// roundNanos is s seconds as a duration.
func roundNanos(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

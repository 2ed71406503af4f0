package bench

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

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
	return func(s *sample) float64 { return quantileOf(s.latency, q).Seconds() }
}

// median is the one of a figure over all rounds.
func (l *line) median(f figure) float64 {
	all := make([]float64, len(l.samples))
	for i := range l.samples {
		all[i] = f(&l.samples[i])
	}
	return median(all)
}

// ratio is the median over all rounds of l's figure in a round, to o's in the
// same one.
func (l *line) ratio(o *line, f figure) float64 {
	all := make([]float64, len(l.samples))
	for i := range l.samples {
		all[i] = f(&l.samples[i]) / f(&o.samples[i])
	}
	return median(all)
}

// latency is that of all rounds together: what is rare needs many samples.
func (l *line) latency() *hdrhistogram.Histogram {
	h := newHistogram()
	for i := range l.samples {
		h.Merge(l.samples[i].latency)
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

// lines are the results.
type lines []line

// byScenario are the lines of each scenario.
func (ls lines) byScenario() iter.Seq[lines] {
	return func(yield func(lines) bool) {
		for from, i := 0, 1; i <= len(ls); i++ {
			if i == len(ls) || ls[i].scenario.name != ls[from].scenario.name {
				if !yield(ls[from:i]) {
					return
				}
				from = i
			}
		}
	}
}

// of returns the line of a kind in a scenario, or nil if it was not run.
func (ls lines) of(scenario string, k kind) *line {
	for i := range ls {
		if ls[i].scenario.name == scenario && ls[i].kind.name == k.name {
			return &ls[i]
		}
	}
	return nil
}

// roundNanos is s seconds as a duration.
func roundNanos(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }

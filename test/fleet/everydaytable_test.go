package fleet

import (
	"fmt"
	"time"

	"github.com/go-reservoir/reservoir/cmd/reservoir/sim"
)

const everydayHeading = `Everyday limits: window %v, demand %v x L, %d seeds from %d, network 1 ms each way.
first     spent at a window's first refusal, %% of L, mean/worst; bars 99.5/98, or one token short
needless  requests refused while tokens are unspent, %%; bar 0.2
calls     per request, %% (WithDirect's); bar WithDirect's, or the row's own
waited    requests that wait for the store, %% (WithDirect's); bar WithDirect's, and 2.5 from 100 tokens a process on
late      requests a window that wait longer than a round trip; bar 2, and 0.1 %% of the requests from L = 1,000 on
longest   wait, ms; bar 8, and 14 with more than 200 processes
                    first         needless  calls (direct) bar     waited (direct)  late      longest
`

// callBars are the rows' own bars, in percent of the requests.
var callBars = map[string]float64{
	"20/60/random": 72, "20/60/bursts": 72, "20/60/crowds": 72, "20/60/sticky": 42,
	"20/300/random": 28, "20/300/bursts": 28, "20/300/crowds": 28, "20/300/sticky": 32,
	"20/1000/random": 11, "20/1000/bursts": 11, "20/1000/crowds": 11, "20/1000/sticky": 15,
	"200/6000/random": 18, "200/6000/sticky": 19, "1000/100000/random": 7.5, "1000/100000/sticky": 8,
}

// line formats a row, with a mark at each figure that misses its bar, and counts these.
func (e everyday) line(s, direct sums, missed map[string]int) string {
	cell := func(name, figures string, ok bool) string {
		if !ok {
			missed[name]++
			return figures + " " + mark[false]
		}
		return figures
	}
	b, f, d := e.bars(direct), s.figures(), direct.figures()
	first := "–"
	if s.refusing > 0 {
		first = fmt.Sprintf("%.1f/%.1f", f.first, f.worst)
	}
	return fmt.Sprintf("%-19s %-13s %-9s %-23s %-16s %-9s %s", e.name,
		cell("first", first, s.refusing == 0 || f.first >= b.first && f.worst >= b.worst),
		cell("needless", fmt.Sprintf("%.1f", f.needless), f.needless <= b.needless),
		cell("calls", fmt.Sprintf("%.1f (%.1f) %.1f", f.calls, d.calls, b.calls), f.calls <= b.calls),
		cell("waited", fmt.Sprintf("%.1f (%.1f)", f.waited, d.waited), f.waited <= b.waited),
		cell("late", fmt.Sprintf("%.1f", f.late), f.late <= b.late),
		cell("longest", fmt.Sprintf("%.1f", f.longest), f.longest <= b.longest))
}

// figures are the columns of a row, or their bars.
type everydayFigures struct {
	first, worst, needless, calls, waited float64 // percent
	late                                  float64 // per window
	longest                               float64 // ms
}

func (s *sums) figures() everydayFigures {
	return everydayFigures{
		first: 100 * s.first / float64(max(s.refusing, 1)), worst: 100 * s.worst, needless: 100 * sim.Ratio(s.needless, s.requests),
		calls: 100 * sim.Ratio(s.calls, s.requests), waited: 100 * sim.Ratio(s.waited, s.requests),
		late: sim.Ratio(s.late, s.windows), longest: inMilliseconds(s.longest),
	}
}

func inMilliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// bars returns the bars of a row, some of which are what direct calls cost.
func (e everyday) bars(direct sums) everydayFigures {
	short := 100 * sim.Ratio(e.limit-1, e.limit) // by one token
	b := direct.figures()
	b.first, b.worst, b.needless, b.late, b.longest = min(99.5, short), min(98, short), 0.2, 2, inMilliseconds(4*roundTrip)
	if own := callBars[e.name]; own > 0 && *demand == 1.5 && *window == time.Minute {
		b.calls = min(b.calls, own)
	}
	if e.limit >= 100*int64(e.processes) {
		b.waited = min(b.waited, 2.5)
	}
	if e.limit >= 1000 {
		b.late = min(b.late, 0.001*sim.Ratio(direct.requests, direct.windows))
	}
	if e.processes > 200 {
		b.longest = inMilliseconds(7 * roundTrip)
	}
	return b
}

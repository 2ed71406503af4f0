package torture

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/go-reservoir/reservoir"
)

// outcome is the input of the judge.
type outcome struct {
	Scenario scenario
	Events   []*event
	Elapsed  time.Duration
	Lines    map[lineID]*sums
	Latency  map[waited]*hdrhistogram.Histogram
	Errors   map[string]int64 // requests, by the fault meanwhile and the error
}

// waited is a class of latencies: the fault meanwhile and the kind of answer.
type waited struct {
	during kind
	answer answer
}

// answer is how a caller got its answer, which decides how long that may take.
type answer int

const (
	usual     answer = iota
	fromStock        // no I/O; only of the role stock
	byPolicy         // it waited for a call that failed
	byBreaker        // the circuit was open
	wakeUp           // no answer: how late the machine wakes a caller
)

func (r *record) answer() answer {
	switch failed := r.Err != "" || r.Result.Source == reservoir.Fallback; {
	case failed && r.Away:
		return byBreaker
	case failed:
		return byPolicy
	case r.Result.Source == reservoir.Local && r.Key.Role == stock:
		return fromStock
	}
	return usual
}

func newOutcome(sc scenario) *outcome {
	o := &outcome{
		Scenario: sc, Lines: make(map[lineID]*sums),
		Latency: make(map[waited]*hdrhistogram.Histogram), Errors: make(map[string]int64),
	}
	for r := range role(roles) {
		for part := range sc.Parts {
			o.Lines[lineID{r, part}] = &sums{Windows: make(map[int64]int64)}
		}
	}
	return o
}

// sums adds up what all processes did with a key.
type sums struct {
	Allowed, Denied   int64           // requests
	Spent             int64           // by requests
	Settled, Refunded int64           // used above the charges, and below
	Counted           int64           // settled for earlier windows and counted, if windows are reset
	Resets            int64           // at most
	Alone             int64           // spent by one process without the store, at most
	Windows           map[int64]int64 // end, Unix ms → tokens of requests

	// Late counts tokens of requests that began after the end of their window. Overrun
	// counts requests from stock whose answer came long after that end.
	Late, Overrun int64

	Open, Charged int64    // the store's window after all processes closed, and the tokens in it
	Apart         int64    // tokens by which Stats and journals differ
	Unknown       int64    // tokens of calls that must not be repeated
	Unclean       []string // why processes could not return tokens
	Killed        int64    // processes, which left no Stats
	KilledHeld    int64    // what they held by their last record
}

// line is what one process did with a key.
type line struct {
	Last                   time.Time // when its last request began
	LastOK                 time.Time // when a call last succeeded
	Away                   bool      // the breaker is open
	Held                   int64     // in memory when the last call had ended
	Spent, Refunded, Alone int64
	Settled                int64
	Closed                 bool
}

// lateness is how long after its window's end an answer from stock may come on a busy
// machine if it waited only for a processor.
const lateness = 50 * time.Millisecond

// during returns the fault at a time, or one of the kind calm.
func (o *outcome) during(t time.Time) *event {
	for _, e := range slices.Backward(o.Events) {
		if !t.Before(e.Begin) && (e.Over.IsZero() || t.Before(e.Over)) {
			return e
		}
	}
	return &event{Kind: calm}
}

// add adds a record of the line's process.
func (o *outcome) add(l *line, r *record) {
	s, end := o.Lines[r.Key], r.At.Add(r.Took)
	e := o.during(end)
	switch r.What {
	case asked:
		l.Last = r.At
		o.request(s, l, r, e)
	case settled:
		l.Settled += max(r.N, 0)
		l.Refunded += max(-r.N, 0)
	case renewed:
		s.Resets += r.N
		o.failed(r, e)
	case called:
		l.Held = r.N
		here := r.Key.Part == e.Part && (e.End.IsZero() || r.At.Before(e.End))
		if here {
			e.Calls++
		}
		if r.Err == "" {
			l.LastOK = end
		} else if here {
			e.Faults++
		}
	case changed:
		l.Away = r.Away
	case closed:
		l.Closed = true
		s.audit(r.Key.Role, l, r.Stats)
		if r.Err != "" {
			s.Unclean = append(s.Unclean, r.Err)
		}
	}
}

// request adds the result of one request.
func (o *outcome) request(s *sums, l *line, r *record, e *event) {
	o.wait(e.Kind, r.answer(), r.Took)
	if r.Woke > 0 {
		o.wait(e.Kind, wakeUp, r.Woke)
	}
	end, reset := r.At.Add(r.Took), r.Result.Reset
	switch {
	case o.failed(r, e):
		return
	case !r.Result.Allowed:
		s.Denied++
		return
	case r.Result.Source == reservoir.Fallback:
		l.Alone += r.N
	default:
		s.Allowed++
		if r.At.UnixMilli() > reset.UnixMilli() {
			s.Late += r.N
		} else if r.Result.Source == reservoir.Local && end.After(reset.Add(lateness)) {
			s.Overrun++
		}
	}
	l.Spent += r.N
	s.Windows[reset.UnixMilli()] += r.N
}

// failed adds the error of a request or a reset, and reports whether it failed.
func (o *outcome) failed(r *record, e *event) bool {
	if r.Err == "" {
		return false
	}
	o.Errors[string(e.Kind)+": "+r.Err]++
	if e.Failed++; r.Key.Part != e.Part {
		e.Elsewhere++
	}
	return true
}

func (o *outcome) wait(k kind, a answer, d time.Duration) {
	h := o.latency(k, a)
	_ = h.RecordValue(min(int64(d), h.HighestTrackableValue()))
}

// latency returns the histogram of a class of latencies.
func (o *outcome) latency(k kind, a answer) *hdrhistogram.Histogram {
	w := waited{k, a}
	if o.Latency[w] == nil {
		o.Latency[w] = newLatency()
	}
	return o.Latency[w]
}

// newLatency returns a histogram up to two minutes that is exact to 1 %.
func newLatency() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (2 * time.Minute).Nanoseconds(), 2)
}

// audit compares a limiter's Stats with the process's journal. Settlements for an earlier
// window may count.
func (s *sums) audit(r role, l *line, t *reservoir.Stats) {
	least, most := l.Spent+l.Settled, l.Spent+l.Settled
	if uses[r].renewed {
		least = l.Spent
		s.Counted += t.Spent - least
	}
	s.Apart += abs(t.Taken+t.Refunded-t.Spent-t.Returned-t.Expired-t.Held) + max(least-t.Spent, t.Spent-most, 0) + abs(t.Refunded-l.Refunded)
	s.Unknown += t.Unknown
}

func abs(n int64) int64 { return max(n, -n) }

// end adds the totals of a process that has ended.
func (s *sums) end(l *line, killed bool) {
	s.Spent, s.Settled, s.Refunded = s.Spent+l.Spent, s.Settled+l.Settled, s.Refunded+l.Refunded
	s.Alone = max(s.Alone, l.Alone)
	if killed {
		s.Killed++
		s.KilledHeld += l.Held
	}
}

// place is a key in a scenario, and what was done with it.
type place struct {
	*outcome
	lineID
	*sums
	demand
}

func (p place) String() string {
	return fmt.Sprintf("%v: %v limit on part %d", p.Scenario.Topology, p.Role, p.Part)
}

// had returns the number of faults of the kind.
func (o *outcome) had(k kind) (n int64) {
	for _, e := range o.Events {
		n += once(e.Kind == k)
	}
	return n
}

// group is a run of overlapping windows, which count as one, with one limit. Windows
// overlap only if the store lost one or its clock was set, because a window opens after
// the end of the one before. Windows that are reset count separately.
type group struct {
	from, to int64 // Unix ms, by the store's clock
	spent    int64
}

// groups returns the groups of a key's windows, in order of their ends.
func (p place) groups() (list []group) {
	for _, reset := range slices.Sorted(maps.Keys(p.Windows)) {
		begin := reset - p.limit.Window.Milliseconds()
		if n := len(list); n > 0 && begin < list[n-1].to && !p.renewed {
			list[n-1].to = reset
			list[n-1].spent += p.Windows[reset]
			continue
		}
		list = append(list, group{begin, reset, p.Windows[reset]})
	}
	return list
}

// lost returns the most that the store lost of a group. A loss in a window that ends
// before the store is back costs nothing. The margin covers the time until the runner
// sees that the store is back.
func (p place) lost(g group) (n int64) {
	const margin = 100 // ms
	for _, e := range p.Events {
		if end := e.End.UnixMilli(); e.Part == p.Part && g.from <= end+margin && g.to >= end-margin {
			n += e.Lost[p.Role]
		}
	}
	return n
}

// midnights returns 1 if the key has a daily limit and was used on both sides of
// midnight.
func (p place) midnights() int64 {
	ends, midnight := slices.Sorted(maps.Keys(p.Windows)), p.Scenario.Midnight*1000
	return once(p.Role == daily && len(ends) > 0 && ends[0] <= midnight && midnight < ends[len(ends)-1])
}

package torture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// outcome is the input of the judge.
type outcome struct {
	Scenario scenario
	Calm     *event // has what happened while there was no fault
	Events   []*event
	Elapsed  time.Duration
	Lines    map[lineID]*sums
}

// answer is how a caller got its answer, which decides how long that may take.
type answer int

const (
	usual     answer = iota
	fromStock        // no I/O; only of the role stock
	byPolicy         // it waited for a call that failed
	byBreaker        // the circuit was open
	wakeUp           // no answer: how late the machine wakes a caller
	answers   = iota
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
	o := &outcome{Scenario: sc, Calm: newEvent(calm, 0), Lines: make(map[lineID]*sums)}
	for r := range role(roles) {
		for part := range sc.Parts {
			o.Lines[lineID{r, part}] = &sums{Windows: make(map[backend.Window]int64)}
		}
	}
	return o
}

// sums adds up what all processes did with a key.
type sums struct {
	Allowed, Denied   int64                    // requests
	Spent             int64                    // by requests
	Settled, Refunded int64                    // used above the charges, and below
	Counted           int64                    // settled for earlier windows and counted, if windows are reset
	Resets            int64                    // at most
	Alone             int64                    // spent by one process without the store, at most
	Uncharged         int64                    // spent without the store by all
	Windows           map[backend.Window]int64 // tokens of requests
	Counts            []change                 // of a rolling limit: when tokens of requests begin to count in an interval, and end

	// Late counts tokens of requests that began after the end of their window. Overrun
	// counts requests from stock whose answer came longer after that end than a busy
	// machine lets a caller wait for a processor.
	Late, Overrun int64

	Open       backend.Window // the store's after all processes closed
	Charged    int64          // the tokens in it
	Apart      int64          // tokens by which Stats and journals differ
	Unknown    int64          // tokens of calls that must not be repeated
	GiveBacks  int64          // returns of idle tokens, of processes to which messages came
	Unclean    []string       // why processes could not return tokens
	Killed     int64          // processes, which left no Stats
	KilledHeld int64          // what they held by their last record
}

// line is what one process did with a key.
type line struct {
	Last   time.Time // when its last request began
	LastOK time.Time // when a call last succeeded
	Away   bool      // the breaker is open
	Held   int64     // in memory when the last call had ended
	Closed bool

	Spent, Settled, Refunded, Alone int64
}

// during returns the fault at a time.
func (o *outcome) during(t time.Time) *event {
	for _, e := range slices.Backward(o.Events) {
		if !t.Before(e.Begin) && (e.Over.IsZero() || t.Before(e.Over)) {
			return e
		}
	}
	return o.Calm
}

// add adds a record of the line's process.
func (o *outcome) add(l *line, r *record) {
	s, end := o.Lines[r.Key], r.At.Add(r.Took)
	e := o.during(end)
	switch r.What {
	case asked:
		l.Last = r.At
		s.request(l, r, e)
	case settled:
		if r.Key.Role == rolling {
			s.count(r.At, r.At.Add(-r.Took), r.N)
		}
		l.Settled += max(r.N, 0)
		l.Refunded += max(-r.N, 0)
	case renewed:
		s.Resets += r.N
		e.failed(r)
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
		if r.N == 0 {
			s.GiveBacks += r.Stats.GiveBacks
		}
		if r.Err != "" {
			s.Unclean = append(s.Unclean, r.Err)
		}
	}
}

// request adds the result of one request.
func (s *sums) request(l *line, r *record, e *event) {
	e.wait(r.answer(), r.Took)
	if r.Woke > 0 {
		e.wait(wakeUp, r.Woke)
	}
	end, reset := r.At.Add(r.Took), r.Result.Reset
	switch {
	case e.failed(r):
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
		} else if r.Result.Source == reservoir.Local && end.After(reset.Add(50*time.Millisecond)) {
			s.Overrun++
		}
	}
	l.Spent += r.N
	if r.Key.Role == rolling {
		s.count(end, r.At, r.N)
		return
	}
	s.Windows[backend.Window{End: reset.UnixMilli(), Gen: r.Gen}] += r.N
}

// audit compares a limiter's Stats with the process's journal. Settlements for an earlier
// window may count. What a failure policy admitted is Overdrawn instead of Spent, and is never charged. A direct call that
// comes too late is refunded, so the Stats of rolling limits need only balance.
func (s *sums) audit(r role, l *line, t *reservoir.Stats) {
	s.Apart += abs(t.Taken + t.Refunded - t.Spent - t.Returned - t.Expired - t.Held)
	s.Unknown += t.Unknown
	if r == rolling {
		return
	}
	least, most := l.Spent-l.Alone, l.Spent-l.Alone+l.Settled
	if uses[r].renewed {
		s.Counted += t.Spent - least
	} else {
		least = most
	}
	s.Apart += max(least-t.Spent, t.Spent-most, 0) + abs(t.Refunded-l.Refunded)
}

func abs(n int64) int64 { return max(n, -n) }

// end adds the totals of a process that has ended.
func (s *sums) end(l *line, killed bool) {
	s.Spent, s.Settled, s.Refunded = s.Spent+l.Spent, s.Settled+l.Settled, s.Refunded+l.Refunded
	s.Alone, s.Uncharged = max(s.Alone, l.Alone), s.Uncharged+l.Alone
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

// sorted returns the names of a key's windows, in order.
func (s *sums) sorted() []backend.Window {
	return slices.SortedFunc(maps.Keys(s.Windows), func(a, b backend.Window) int {
		return cmp.Or(cmp.Compare(a.End, b.End), cmp.Compare(a.Gen, b.Gen))
	})
}

// groups returns the groups of a key's windows, in order of their ends.
func (p place) groups() (list []*group) {
	for _, w := range p.sorted() {
		reset := w.End
		begin := reset - p.limit.Window.Milliseconds()
		if n := len(list); n == 0 || begin >= list[n-1].to || p.renewed {
			list = append(list, &group{from: begin})
		}
		last := list[len(list)-1]
		last.to, last.spent = reset, last.spent+p.Windows[w]
	}
	return list
}

// lost returns the most that the store lost of a group. A loss in a window that ends
// before the store is back costs nothing. The margin covers the time until the runner
// sees that the store is back.
func (p place) lost(g *group) (n int64) {
	const margin = 100 // ms
	for _, e := range p.Events {
		if end := e.End.UnixMilli(); e.Part == p.Part && g.from <= end+margin && g.to >= end-margin {
			n += e.Lost[p.Role]
		}
	}
	return n
}

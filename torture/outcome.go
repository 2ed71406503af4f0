package torture

import (
	"maps"
	"slices"
	"time"
)

// outcome is all that the judge looks at.
type outcome struct {
	Scenario scenario
	Events   []event
	Parts    int
	Elapsed  time.Duration
	Lines    map[lineID]*sums
	Latency  [roles][kinds][answers]spread
	Errors   [kinds]map[string]int64 // requests, by what they ended in
}

// complain counts a process' complaints.
func (o *outcome) complain(list []complaint) {
	for _, m := range list {
		if o.Errors[m.During] == nil {
			o.Errors[m.During] = make(map[string]int64)
		}
		o.Errors[m.During][m.Text]++
	}
}

// lineID names a key.
type lineID struct {
	Role role
	Part int
}

// sums is what all processes together did with a key.
type sums struct {
	Requests, Allowed, Denied, Failed int64
	Fallback                          int64 // requests admitted without the store

	Spent, Refunded int64
	Alone           int64           // spent by one process without the store, at most
	Windows         map[int64]int64 // end, Unix ms → tokens
	Calls, Faults   int64
	Late            int64 // tokens
	Overrun         int64 // requests

	Charged int64 // tokens in the store when all was handed back; of long windows

	// By process: what its limiter told of itself, less what its journal says.
	// A process that was killed told nothing.
	Imbalance, Misjudged int64 // tokens
	Unknown              int64 // tokens of calls that must not be repeated
	Recovered            int64
	Reasserted           int64
	Unclean              int // processes that could not hand back
	Killed               int
	KilledSpent          int64
	KilledHeld           int64 // what processes that were killed said they held
}

// add adds one process' line.
func (s *sums) add(l *line, w *worker) {
	s.Requests += l.Requests.Load()
	s.Allowed += l.Allowed.Load()
	s.Denied += l.Denied.Load()
	s.Failed += l.Failed.Load()
	s.Fallback += l.Fallback.Load()
	s.Spent += l.Spent.Load()
	s.Alone = max(s.Alone, l.Alone.Load())
	s.Refunded += l.Refunded.Load()
	s.Calls += l.Calls.Load()
	s.Faults += l.Faults.Load()
	s.Late += l.Late.Load()
	s.Overrun += l.Overrun.Load()
	unseen := l.Spent.Load()
	for i := range l.Windows {
		if reset := l.Windows[i].Reset.Load(); reset != 0 {
			n := l.Windows[i].Spent.Load()
			s.Windows[reset] += n
			unseen -= n
		}
	}
	if w.killed {
		s.Killed++
		s.KilledSpent += l.Spent.Load()
		s.KilledHeld += l.Held.Load()
		return
	}
	if w.journal.State.Load() != closed {
		s.Unclean++
	}
	s.Misjudged += abs(unseen) // a journal that was too short
	t := &l.Stats
	s.Imbalance += abs(t.Taken.Load() + t.Refunded.Load() - t.Spent.Load() - t.Returned.Load() - t.Expired.Load() - t.Held.Load())
	s.Misjudged += abs(t.Spent.Load()-l.Spent.Load()) + abs(t.Refunded.Load()-l.Refunded.Load())
	s.Unknown += t.Unknown.Load()
	s.Recovered += t.Recovered.Load()
	s.Reasserted += t.Reasserted.Load()
}

func abs(n int64) int64 { return max(n, -n) }

// group is windows that overlap, which happens only when the store lost one or
// its clock was set: a window opens when the one before is over. They count as
// one, with one limit.
type group struct {
	from, to int64 // Unix ms, by the store's clock
	spent    int64
}

// groups puts a line's windows together, in order of their ends.
func (s *sums) groups(length time.Duration) []group {
	var list []group
	for _, reset := range slices.Sorted(maps.Keys(s.Windows)) {
		begin := reset - length.Milliseconds()
		if n := len(list); n > 0 && begin < list[n-1].to {
			list[n-1].to = reset
			list[n-1].spent += s.Windows[reset]
			continue
		}
		list = append(list, group{begin, reset, s.Windows[reset]})
	}
	return list
}

// hit reports whether the store lost its data in the group: what is lost of a
// window that is over before the store is back costs nothing. The margin is for
// the time that it takes us to see that it is back.
func (g group) hit(e *event) bool {
	const margin = 100 // ms
	end := e.End.UnixMilli()
	return g.from <= end+margin && g.to >= end-margin
}

// during reports whether the event, from its beginning until all had recovered,
// and the group overlap.
func (g group) during(e *event) bool {
	end := e.End.Add(e.Recovery)
	return e.Begin.UnixMilli() <= g.to && end.UnixMilli() >= g.from
}

package torture

import (
	"fmt"
	"time"
)

// promise is one line of the report: what was promised, what was measured, and
// whether that is within the bar.
type promise struct {
	Name     string
	Measured string
	Bar      string
	Kept     bool
	Why      []string // what broke it
}

// verdict is the promises by name, over all scenarios.
type verdict struct {
	list []*promise
}

// Bars.
const (
	electionBar = 5 * time.Second // until calls succeed, from the election
	answerBar   = 10 * time.Millisecond
	breakerBar  = 5 * time.Microsecond
	extraBar    = 10  // percent
	failoverBar = 2   // percent of what the replica did not have, over all failovers; of each, all of that
	extraLeast  = 100 // calls that a percentage can be told of
)

// repeatsInVain is how many repetitions without a reply redisstore makes before it
// takes the server for one that does not answer.
const repeatsInVain = 2

const extraCommands = "extra commands while a shard fails"

// judge holds the outcomes against the promises. It is pure. Where it is not
// strict, bars of time are lower, for the race detector and tests beside.
func judge(list []*outcome, strict bool) *verdict {
	v := new(verdict)
	v.active(list)
	v.overAdmission(list, strict)
	v.lost(list)
	v.alone(list)
	v.accounts(list)
	v.late(list)
	v.clocks(list)
	v.recovery(list, strict)
	v.resharding(list, strict)
	v.latency(list, strict)
	v.extra(list)
	return v
}

func (v *verdict) kept() bool {
	for _, p := range v.list {
		if !p.Kept {
			return false
		}
	}
	return true
}

// promise adds a line, which is kept until something breaks it.
func (v *verdict) promise(name, bar string) *promise {
	p := &promise{Name: name, Bar: bar, Kept: true}
	v.list = append(v.list, p)
	return p
}

func (p *promise) broken(format string, args ...any) {
	p.Kept = false
	p.Why = append(p.Why, fmt.Sprintf(format, args...))
}

// active breaks the run that proves nothing.
func (v *verdict) active(list []*outcome) {
	p := v.promise("faults that took effect", "all")
	var events, idle int
	for _, o := range list {
		for i := range o.Events {
			events++
			if e := &o.Events[i]; e.Active == 0 {
				idle++
				p.broken("%v: %v never took effect", o.Scenario.Topology, e.Kind)
			}
		}
		for id, s := range o.Lines {
			if s.Allowed == 0 || id.Role == tight && s.Denied == 0 {
				p.broken("%v: the %v limit on part %d was never used up", o.Scenario.Topology, id.Role, id.Part)
			}
			if id.Role.windowed() && len(s.Windows) < 2 {
				p.broken("%v: no window rolled over", o.Scenario.Topology)
			}
		}
	}
	p.Measured = fmt.Sprintf("%d of %d", events-idle, events)
}

// overAdmission holds each group of windows against one limit, and against what
// the store has lost meanwhile.
func (v *verdict) overAdmission(list []*outcome, strict bool) {
	x := excess{
		none:      v.promise("over-admission without data loss", "0"),
		failovers: v.promise("over-admission at failover", fmt.Sprintf("≤ %d %% of what was not replicated", failoverBar)),
		elections: v.promise("over-admission at a cluster's election", "≤ one limit each"),
		losses:    v.promise("over-admission when all data is lost", "≤ one limit each time"),
		sum:       make(map[*promise]int64),
	}
	for _, o := range list {
		for id, s := range o.Lines {
			x.add(o, id, s)
		}
	}
	lost := forgotten(list)
	x.none.Measured = fmt.Sprintf("%d (%d windows used up to the last token)", x.sum[x.none], x.brimful)
	x.failovers.Measured = fmt.Sprintf("%d of %d (%.1f %%)", x.sum[x.failovers], lost, percent(x.sum[x.failovers], lost))
	if strict && percent(x.sum[x.failovers], lost) > failoverBar {
		x.failovers.broken("%d tokens of %d", x.sum[x.failovers], lost)
	}
	x.elections.Measured = fmt.Sprintf("%d in %d elections", x.sum[x.elections], count(list, tail, clustered))
	x.losses.Measured = fmt.Sprintf("%d in %d losses", x.sum[x.losses], count(list, all, volatile))
}

// excess is what was admitted beyond the limit, by what may be the reason.
type excess struct {
	none, failovers, elections, losses *promise

	sum     map[*promise]int64
	brimful int64 // groups that were used up and no more
}

func (x *excess) add(o *outcome, id lineID, s *sums) {
	d := demandOf(id.Role, int64(o.Parts), o.Scenario.Pace)
	for _, g := range s.groups(d.limit.Window) {
		if g.spent == d.limit.Tokens {
			x.brimful++
		}
		p, allowed := x.reason(o.causes(g, id), d.limit.Tokens)
		if p == nil {
			continue
		}
		over := max(g.spent-d.limit.Tokens, 0)
		x.sum[p] += over
		p.check(over, allowed, o, id, g)
	}
}

// reason is the promise for a group of windows, and how many tokens it allows.
// There is none where the clock was set: that is judged over the whole run.
func (x *excess) reason(c causes, limit int64) (p *promise, allowed int64) {
	switch {
	case c.everything > 0:
		return x.losses, c.everything * limit
	case c.elections > 0:
		return x.elections, c.elections * limit
	case c.lost > 0:
		return x.failovers, c.lost
	case c.time:
		return nil, 0
	}
	return x.none, 0
}

// forgotten is what replicas did not have of short windows; the limits of long
// ones are out of reach.
func forgotten(list []*outcome) (n int64) {
	for _, o := range list {
		for i := range o.Events {
			n += o.Events[i].Lost[tight] + o.Events[i].Lost[ample]
		}
	}
	return n
}

// count is how often data was lost.
func count(list []*outcome, loses loss, on topology) (n int) {
	for _, o := range list {
		for i := range o.Events {
			if o.Scenario.Topology == on && o.Events[i].Kind.fault().loses == loses {
				n++
			}
		}
	}
	return n
}

func (p *promise) check(excess, allowed int64, o *outcome, id lineID, g group) {
	if excess > allowed {
		p.broken("%v: %v limit on part %d, windows of %d to %d: %d over, where %d may be",
			o.Scenario.Topology, id.Role, id.Part, g.from, g.to, excess, allowed)
	}
}

// causes is what may have given a group of windows more than the limit.
type causes struct {
	lost       int64 // tokens that were not replicated
	elections  int64
	everything int64 // times that all was lost
	time       bool  // the clock was set: judged over the whole run
}

func (o *outcome) causes(g group, id lineID) (c causes) {
	for i := range o.Events {
		e := &o.Events[i]
		loses := e.Kind.fault().loses
		if loses == timeline {
			c.time = true // the windows' times and ours are not the same any more
		}
		if !g.hit(e) {
			continue
		}
		switch {
		case loses == all:
			c.everything++
		case loses == tail && o.Scenario.Topology == clustered:
			c.elections++
		case loses == tail:
			c.lost += e.Lost[id.Role]
		}
	}
	return c
}

// lossless reports whether nothing happened that takes data from the store.
func (o *outcome) lossless() bool {
	for i := range o.Events {
		if o.Events[i].Kind.fault().loses != nothing {
			return false
		}
	}
	return true
}

// lost compares what the store holds at the end with what requests have used.
func (v *verdict) lost(list []*outcome) {
	p := v.promise("tokens lost, no process killed", "0")
	k := v.promise("tokens lost with a process that is killed", "≤ its stock")
	over := v.promise("tokens spent that were never charged", "0")
	var lost, killed, more, recovered, unknown, alone int64
	for _, o := range list {
		if !o.lossless() {
			continue
		}
		for id, s := range o.Lines {
			recovered += s.Recovered
			unknown += s.Unknown
			alone += s.Fallback
			if id.Role.windowed() {
				continue
			}
			idle := s.Charged - (s.Spent - s.Refunded)
			switch {
			case idle < 0 && id.Role.fallsBack() && s.Killed > 0: // it took along what it had admitted without the store
			case idle < 0:
				more -= idle
				over.broken("%v: %v limit on part %d: %d tokens", o.Scenario.Topology, id.Role, id.Part, -idle)
			case s.Killed > 0:
				killed += idle
				d := demandOf(id.Role, int64(o.Parts), o.Scenario.Pace)
				if most := s.KilledHeld + int64(s.Killed)*d.beyond(); idle > most+s.Unknown {
					k.broken("%v: %v limit on part %d: %d tokens, where %d may be", o.Scenario.Topology, id.Role, id.Part, idle, most)
				}
			case idle > s.Unknown:
				lost += idle
				p.broken("%v: %v limit on part %d: %d tokens", o.Scenario.Topology, id.Role, id.Part, idle)
			}
		}
	}
	p.Measured = fmt.Sprintf("%d (%d handed over again; %d of direct calls unknown)", lost, recovered, unknown)
	k.Measured = fmt.Sprint(killed)
	over.Measured = fmt.Sprintf("%d (%d requests admitted without the store are charged)", more, alone)
}

// alone bounds what each process has admitted by itself: FailLocal's share of one
// window, for it outlasts the run.
func (v *verdict) alone(list []*outcome) {
	p := v.promise("FailLocal: admitted by a process alone, at most", "its share")
	var most float64
	for _, o := range list {
		share := demandOf(local, int64(o.Parts), o.Scenario.Pace).alone()
		for id, s := range o.Lines {
			if id.Role != local {
				continue
			}
			most = max(most, percent(s.Alone, share))
			if s.Alone > share {
				p.broken("%v: part %d: %d tokens, where %d may be", o.Scenario.Topology, id.Part, s.Alone, share)
			}
		}
	}
	p.Measured = fmt.Sprintf("%.1f %% of it", most)
}

// accounts holds each limiter's Stats against its process' journal.
func (v *verdict) accounts(list []*outcome) {
	p := v.promise("Stats balance and agree with the journals", "0 tokens apart")
	var apart int64
	for _, o := range list {
		for id, s := range o.Lines {
			apart += s.Imbalance + s.Misjudged
			if s.Imbalance+s.Misjudged > 0 {
				p.broken("%v: %v limit on part %d: out of balance by %d, apart by %d", o.Scenario.Topology, id.Role, id.Part, s.Imbalance, s.Misjudged)
			}
			if s.Unclean > 0 {
				p.broken("%v: %d processes could not hand back", o.Scenario.Topology, s.Unclean)
			}
		}
	}
	p.Measured = fmt.Sprint(apart)
}

func percent(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

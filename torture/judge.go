package torture

import (
	"fmt"
	"slices"
	"time"
)

// promise is one line of the report: what was promised, what was measured, and
// what broke it, if anything did.
type promise struct {
	Name     string
	Measured string
	Bar      string
	Why      []string
}

// verdict is the promises, over all scenarios.
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

// judge holds the outcomes against the promises. It is pure. Where it is not
// strict, bars of time are lower, for the race detector and tests beside.
func judge(list []*outcome, strict bool) *verdict {
	v := new(verdict)
	v.active(list)
	v.overAdmission(list, strict)
	v.lost(list)
	v.alone(list)
	v.accounts(list, strict)
	v.late(list)
	v.clocks(list)
	v.recovery(list, strict)
	v.resharding(list, strict)
	v.latency(list, strict)
	v.extra(list)
	return v
}

// broken lists the promises that are not kept.
func (v *verdict) broken() (names []string) {
	for _, p := range v.list {
		if p.Why != nil {
			names = append(names, p.Name)
		}
	}
	return names
}

// promise adds a line, which is kept until something breaks it.
func (v *verdict) promise(name, bar string) *promise {
	p := &promise{Name: name, Bar: bar}
	v.list = append(v.list, p)
	return p
}

func (p *promise) broken(format string, args ...any) {
	p.Why = append(p.Why, fmt.Sprintf(format, args...))
}

func (p *promise) measured(format string, args ...any) {
	p.Measured = fmt.Sprintf(format, args...)
}

// active breaks the run that proves nothing.
func (v *verdict) active(list []*outcome) {
	p := v.promise("faults that took effect", "all")
	var all, seen int
	for _, e := range events(list...) {
		if all++; e.Active > 0 {
			seen++
			continue
		}
		p.broken("%v: %v never took effect", e.Scenario.Topology, e.Kind)
	}
	for _, at := range lines(list...) {
		if at.Allowed == 0 || at.Role == tight && at.Denied == 0 {
			p.broken("%v: it was never used up", at)
		}
		if at.Role.windowed() && len(at.Windows) < 2 {
			p.broken("%v: no window rolled over", at)
		}
	}
	p.measured("%d of %d", seen, all)
}

// overAdmission holds each group of windows against one limit, and against what
// the store has lost meanwhile.
func (v *verdict) overAdmission(list []*outcome, strict bool) {
	var (
		none      = v.promise("over-admission without data loss", "0")
		failovers = v.promise("over-admission at failover", fmt.Sprintf("≤ %d %% of what was not replicated", failoverBar))
		elections = v.promise("over-admission at a cluster's election", "≤ one limit each")
		losses    = v.promise("over-admission when all data is lost", "≤ one limit each time")
		sum       = make(map[*promise]int64)
		brimful   int // groups that were used up and no more
	)
	for _, at := range lines(list...) {
		limit := at.demand().limit
		for _, g := range at.groups(limit.Window) {
			if g.spent == limit.Tokens {
				brimful++
			}
			p, allowed := none, int64(0)
			switch c := at.causes(g, at.Role); {
			case c.everything > 0:
				p, allowed = losses, c.everything*limit.Tokens
			case c.elections > 0:
				p, allowed = elections, c.elections*limit.Tokens
			case c.lost > 0:
				p, allowed = failovers, c.lost
			case at.losses(timeline) > 0: // judged over the whole run: the windows' times and ours are not the same
				continue
			}
			over := max(g.spent-limit.Tokens, 0)
			if sum[p] += over; over > allowed {
				p.broken("%v, windows of %d to %d: %d over, where %d may be", at, g.from, g.to, over, allowed)
			}
		}
	}
	var lost int64 // of short windows; the limits of long ones are out of reach
	for _, e := range events(list...) {
		lost += e.Lost[tight] + e.Lost[ample]
	}
	none.measured("%d (%d windows used up to the last token)", sum[none], brimful)
	failovers.measured("%d of %d (%.1f %%)", sum[failovers], lost, percent(sum[failovers], lost))
	if strict && percent(sum[failovers], lost) > failoverBar {
		failovers.broken("%d tokens of %d", sum[failovers], lost)
	}
	var elected, emptied int64
	for _, o := range list {
		emptied += o.losses(all)
		if o.Scenario.Topology == clustered {
			elected += o.losses(tail)
		}
	}
	elections.measured("%d in %d elections", sum[elections], elected)
	losses.measured("%d in %d losses", sum[losses], emptied)
}

// causes is what may have given a group of windows more than the limit.
type causes struct {
	lost       int64 // tokens that were not replicated
	elections  int64
	everything int64 // times that all was lost
}

func (o *outcome) causes(g group, r role) (c causes) {
	for i := range o.Events {
		e := &o.Events[i]
		switch loses := e.Kind.fault().loses; {
		case !g.hit(e):
		case loses == all:
			c.everything++
		case loses == tail && o.Scenario.Topology == clustered:
			c.elections++
		case loses == tail:
			c.lost += e.Lost[r]
		}
	}
	return c
}

// lost compares what the store holds at the end with what requests have used, where
// nothing happened that takes data from it.
func (v *verdict) lost(list []*outcome) {
	p := v.promise("tokens lost, no process killed", "0")
	k := v.promise("tokens lost with a process that is killed", "≤ its stock")
	over := v.promise("tokens spent that were never charged", "0")
	list = slices.DeleteFunc(slices.Clone(list), func(o *outcome) bool { return o.losses(tail)+o.losses(all)+o.losses(timeline) > 0 })
	var lost, killed, more, recovered, unknown, alone int64
	for _, at := range lines(list...) {
		recovered += at.Recovered
		unknown += at.Unknown
		alone += at.Fallback
		idle := at.Charged - (at.Spent - at.Refunded)
		switch {
		case at.Role.windowed():
		case idle < 0 && at.Role.fallsBack() && at.Killed > 0: // it took along what it had admitted without the store
		case idle < 0:
			more -= idle
			over.broken("%v: %d tokens", at, -idle)
		case at.Killed > 0:
			killed += idle
			if most := at.KilledHeld + int64(at.Killed)*at.demand().beyond() + at.Unknown; idle > most {
				k.broken("%v: %d tokens, where %d may be", at, idle, most)
			}
		case idle > at.Unknown:
			lost += idle
			p.broken("%v: %d tokens", at, idle)
		}
	}
	p.measured("%d (%d handed over again; %d of direct calls unknown)", lost, recovered, unknown)
	k.measured("%d", killed)
	over.measured("%d (%d requests admitted without the store are charged)", more, alone)
}

// alone bounds what each process has admitted by itself: FailLocal's share of one
// window, for it outlasts the run.
func (v *verdict) alone(list []*outcome) {
	p := v.promise("FailLocal: admitted by a process alone, at most", "its share")
	var most float64
	for _, at := range lines(list...) {
		if at.Role != local {
			continue
		}
		share := at.demand().alone()
		if most = max(most, percent(at.Alone, share)); at.Alone > share {
			p.broken("%v: %d tokens, where %d may be", at, at.Alone, share)
		}
	}
	p.measured("%.1f %% of it", most)
}

// accounts holds each limiter's Stats against its process' journal.
func (v *verdict) accounts(list []*outcome, strict bool) {
	p := v.promise("Stats balance and agree with the journals", "0 tokens apart")
	var apart int64
	for _, at := range lines(list...) {
		if apart += at.Imbalance + at.Misjudged; at.Imbalance+at.Misjudged > 0 {
			p.broken("%v: out of balance by %d, apart by %d", at, at.Imbalance, at.Misjudged)
		}
		if len(at.Unclean) > 0 && (strict || at.excused(calm) == 0) {
			p.broken("%v: processes could not hand back: %v", at, at.Unclean)
		}
	}
	p.measured("%d", apart)
}

func percent(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

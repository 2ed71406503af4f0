package torture

import (
	"fmt"
	"time"
)

// promise is one line of the report: what was promised, what was measured, and
// what broke it, if anything did.
type promise struct {
	Name, Bar string
	Measured  string // by default the sum
	Why       []string
	sum, most int64
}

// hold holds a figure, of which so much may be, against the promise.
func hold[T ~int64](p *promise, of any, got, may T) {
	p.sum += int64(got)
	p.most = max(p.most, int64(got))
	if got > may {
		p.broken("%v: %v, where %v may be", of, got, may)
	}
}

func (p *promise) broken(format string, args ...any) {
	p.Why = append(p.Why, fmt.Sprintf(format, args...))
}

func (p *promise) measured(format string, args ...any) {
	p.Measured = fmt.Sprintf(format, args...)
}

// verdict is the promises, over all scenarios.
type verdict struct {
	all    []*outcome
	strict bool
	list   []*promise
}

// judge holds the outcomes against the promises. It is pure. Where it is not
// strict, bars of time are lower, for the race detector and tests beside.
func judge(all []*outcome, strict bool) *verdict {
	v := &verdict{all: all, strict: strict}
	v.active()
	v.overAdmission()
	v.lost()
	v.alone()
	v.accounts()
	v.late()
	v.clocks()
	v.recovery()
	v.errors()
	v.latency()
	v.extra()
	return v
}

// promise adds a line, which is kept until something breaks it.
func (v *verdict) promise(name, bar string) *promise {
	p := &promise{Name: name, Bar: bar}
	v.list = append(v.list, p)
	return p
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

// active breaks the run that proves nothing.
func (v *verdict) active() {
	p := v.promise("faults that took effect", "all")
	for _, e := range events(v.all...) {
		if p.sum++; e.Active == 0 {
			p.broken("%v never took effect", e)
		}
	}
	var resets, counted int64
	days := 0
	for _, at := range lines(v.all...) {
		if at.Allowed == 0 || at.Role == tight && at.Denied == 0 {
			p.broken("%v: it was never used up", at)
		}
		if at.Role.windowed() && at.Role != daily && len(at.Windows) < 2 {
			p.broken("%v: no window rolled over", at)
		}
		resets, counted = resets+at.Resets, counted+at.Counted
		if at.Role == daily {
			days += at.days()
		}
	}
	if p.measured("%d; %d resets, %d midnights, %d tokens settled for earlier windows", p.sum, resets, days, counted); resets*counted == 0 || days == 0 {
		p.broken("in all: %s", p.Measured)
	}
}

// failoverBar is how many percent may be admitted of what the replicas did not have,
// over all failovers; of each, all of that.
const failoverBar = 2

// overAdmission holds each group of windows against one limit, and against what
// the store has lost meanwhile.
func (v *verdict) overAdmission() {
	none := v.promise("over-admission without data loss", "0")
	renewed := v.promise("over-admission of windows that are reset", "0, or one limit each time that data is lost")
	ends := v.promise("days that end before midnight", "≤ 1 ms each reset")
	with := [losses]*promise{
		tail:    v.promise("over-admission at failover", fmt.Sprintf("≤ %d %% of what was not replicated", failoverBar)),
		elected: v.promise("over-admission at a cluster's election", "≤ one limit each"),
		all:     v.promise("over-admission when all data is lost", "≤ one limit each time"),
	}
	for _, at := range lines(v.all...) {
		if at.Scenario.Loses == timeline { // judged over the whole run: the windows' times and ours are not the same
			continue
		}
		for _, g := range at.groups() {
			p, may := none, at.lost(g)
			if at.Role == daily {
				const day = 24 * 60 * 60 * 1000
				hold(ends, fmt.Sprintf("%v, milliseconds before midnight", at), ((at.Scenario.Midnight*1000-g.to)%day+day)%day, at.Resets)
			}
			switch {
			case at.Role.renewed():
				p = renewed
			case may > 0:
				p = with[at.Scenario.Loses]
			}
			over := max(g.spent-at.demand().limit.Tokens, 0)
			hold(p, fmt.Sprintf("%v, windows of %d to %d, tokens above the limit", at, g.from, g.to), over, may)
		}
	}
	ends.measured("%d ms at most", ends.most)
	over, lost := with[tail], int64(0) // of short windows; the limits of long ones are out of reach
	for _, e := range events(v.all...) {
		if e.Scenario.Loses == tail {
			lost += e.Lost[tight] + e.Lost[ample]
		}
	}
	over.measured("%d of %d (%.1f %%)", over.sum, lost, percent(over.sum, lost))
	if v.strict && percent(over.sum, lost) > failoverBar {
		over.broken("%d tokens of %d", over.sum, lost)
	}
}

// lost compares what the store holds at the end with what requests have used, where
// nothing happened that takes data from it.
func (v *verdict) lost() {
	lost := v.promise("tokens lost, no process killed", "0")
	killed := v.promise("tokens lost with a process that is killed", "≤ its stock")
	over := v.promise("tokens spent that were never charged", "0")
	for _, at := range lines(v.all...) {
		if at.Scenario.Loses != nothing || at.demand().limit.Window == shortWindow {
			continue
		}
		used, may := at.Spent+at.Settled-at.Refunded, at.Unknown
		if at.Role == daily { // the last window is there, and what is settled for an earlier one may count
			used, may = at.Windows[at.Open], may+at.Settled
		}
		idle := at.Charged - used
		switch {
		case idle < 0 && at.Role.fallsBack() && at.Killed > 0: // it took along what it had admitted without the store
		case idle < 0:
			hold(over, at, -idle, 0)
		case at.Killed > 0:
			hold(killed, at, idle, may+at.KilledHeld+at.Killed*at.demand().beyond())
		default:
			hold(lost, at, max(idle-may, 0), 0)
		}
	}
}

// alone bounds what each process has admitted by itself: FailLocal's share of one
// window, for it outlasts the run.
func (v *verdict) alone() {
	p := v.promise("FailLocal: admitted by a process alone, at most", "its share")
	for _, at := range lines(v.all...) {
		if at.Role == local {
			hold(p, at, at.Alone, at.demand().alone())
		}
	}
	p.measured("%d", p.most)
}

// accounts holds each limiter's Stats against its process' journal.
func (v *verdict) accounts() {
	p := v.promise("Stats balance and agree with the journals", "0 tokens apart")
	for _, at := range lines(v.all...) {
		hold(p, at, at.Apart, 0)
		if len(at.Unclean) > 0 && (v.strict || at.excused(calm) == 0) {
			p.broken("%v: processes could not hand back: %v", at, at.Unclean)
		}
	}
}

// late: a request that is made after a window's end gets nothing of it, and one
// that was under way when its process was stopped is one for each caller. Where a
// server's clock was set, its idea of a window's end is another.
func (v *verdict) late() {
	after := v.promise("tokens spent after their window", "0")
	across := v.promise("requests under way when a process was stopped", "≤ 1 per goroutine and stop")
	for _, o := range v.all {
		if o.Scenario.Loses == timeline {
			continue
		}
		var overrun int64
		for _, at := range lines(o) {
			overrun += at.Overrun
			hold(after, at, at.Late, 0)
		}
		if stops := o.had(processStopped); stops > 0 {
			hold(across, o.Scenario.Topology, overrun, stops*int64(callers*len(o.Lines)))
		}
	}
}

// clocks bounds what steps of the server's clock may give and take, and what resets
// may. Windows that follow each other, one more for each step and each reset, and what
// the store has lost, are all that may be used.
func (v *verdict) clocks() {
	extra := v.promise("clock steps and resets: admitted in all", "≤ one limit more for each")
	starved := v.promise("clock steps: longest time without a token", "≤ one window")
	for _, at := range lines(v.all...) {
		if !at.Role.windowed() {
			continue
		}
		limit, lost := at.demand().limit, int64(0)
		windows := int64(at.Elapsed/limit.Window) + 2 + at.Resets // begun before, and after
		for _, e := range at.Events {
			lost += e.Lost[at.Role]
		}
		if at.Scenario.Loses == timeline {
			windows += int64(len(at.Events))
		}
		hold(extra, at, at.Spent, windows*limit.Tokens+lost)
		if at.Scenario.Loses != timeline {
			continue
		}
		// Windows of whole seconds end at whole seconds, so a clock that was set back
		// comes by the end of a window again that was over.
		for end, spent := range at.Windows {
			if may := (1 + at.had(clockBack)) * limit.Tokens; spent > may {
				extra.broken("%v: %d tokens in the window of %d, where %d may be", at, spent, end, may)
			}
		}
	}
	for _, e := range events(v.all...) {
		// A step counts when it is a tenth of a window; who was woken late asked late.
		late := time.Duration(merged([]*outcome{e.outcome}, e.Kind, wakeUp).Max())
		hold(starved, e, e.Starved, shortWindow+shortWindow/4+late)
	}
	extra.measured("%d tokens at most", extra.most)
	starved.measured("%v", time.Duration(starved.most).Round(time.Millisecond))
}

func percent(part, whole int64) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

package torture

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
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
	var resets, counted, days int64
	for _, at := range lines(v.all...) {
		if at.Allowed == 0 || at.Role == tight && at.Denied == 0 {
			p.broken("%v: it was never used up", at)
		}
		if at.Role.windowed() && at.Role != daily && len(at.Windows) < 2 {
			p.broken("%v: no window rolled over", at)
		}
		resets, counted, days = resets+at.Resets, counted+at.Counted, days+at.midnights()
	}
	p.measured("%d; %d resets, %d midnights, %d tokens settled for earlier windows", p.sum, resets, days, counted)
	if resets*counted*days == 0 {
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
			over := max(g.spent-at.limit.Tokens, 0)
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
		if at.Scenario.Loses != nothing || at.limit.Window == shortWindow {
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
			hold(killed, at, idle, may+at.KilledHeld+at.Killed*at.beyond())
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
			hold(p, at, at.Alone, at.alone())
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
		limit, lost := at.limit, int64(0)
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

const (
	recoveryBar = 5 * time.Second // until calls succeed; after an election, from that
	answerBar   = 10 * time.Millisecond
	breakerBar  = 5 * time.Microsecond

	// slowMove is what a slot that moves takes ten times over. Where it takes longer,
	// servers wait for a processor for so long that callers run out of time.
	slowMove = 5 * time.Millisecond
)

// recovery is from the end of a fault, or from a cluster's election.
func (v *verdict) recovery() {
	bar := recoveryBar
	if !v.strict {
		bar *= 3
	}
	election := v.promise("recovery after a cluster's election", fmt.Sprint("≤ ", recoveryBar))
	other := v.promise("recovery after any other fault", fmt.Sprint("≤ ", recoveryBar))
	for _, e := range events(v.all...) {
		p := other
		if e.Scenario.Loses == elected {
			p = election
		}
		hold(p, e, e.Recovery, bar)
		p.measured("%v", time.Duration(p.most).Round(time.Millisecond))
	}
}

func (v *verdict) errors() {
	moving := v.promise("errors to callers while slots move", "0")
	elsewhere := v.promise("errors on shards that are well", "0")
	for _, e := range events(v.all...) {
		slow := e.End.Sub(e.Begin) > time.Duration(e.Active)*slowMove
		if e.Kind == resharded && (v.strict || !slow) {
			hold(moving, e, e.Failed, e.excused(e.Kind))
		}
		if e.Scenario.Topology == sharded && e.Kind != processStopped && e.Kind != processKilled { // they are no shard's
			hold(elsewhere, e, e.Elsewhere, 0)
		}
	}
}

// excused is how many requests may have run out of time, by no fault but that of
// a machine that did not wake callers for half of it: one in a hundred.
func (o *outcome) excused(k kind) int64 {
	machine := merged([]*outcome{o}, k, wakeUp)
	if time.Duration(machine.Max()) < o.Scenario.Timeout/2 {
		return 0
	}
	return machine.TotalCount() / 100
}

// merged is the latencies of all scenarios.
func merged(list []*outcome, k kind, a answer) *hdrhistogram.Histogram {
	sum := newLatency()
	for _, o := range list {
		if h := o.Latency[waited{k, a}]; h != nil {
			sum.Merge(h)
		}
	}
	return sum
}

// latency is what callers notice of a server that hangs. How late the machine
// wakes anybody whose timer is due is not the library's doing: that is allowed
// for, at the same quantile.
func (v *verdict) latency() {
	bar := answerBar
	var hung []*outcome
	for _, o := range v.all {
		if o.had(serverStopped) > 0 {
			bar = max(bar, o.Scenario.Timeout+answerBar)
			hung = append(hung, o)
		}
	}
	quantile := func(k kind, a answer, percent float64) time.Duration {
		return time.Duration(merged(hung, k, a).ValueAtQuantile(percent))
	}
	late := quantile(serverStopped, wakeUp, 99.9)

	p := v.promise("server hung: p99.9 of callers with stock", "unchanged")
	was, is := quantile(calm, fromStock, 99.9), quantile(serverStopped, fromStock, 99.9)
	hold(p, "p99.9", is, 4*was+late)
	p.measured("%v, was %v; timers are late by %v", is, was, late)

	p = v.promise("server hung: callers without stock, p99", fmt.Sprint("≤ ", bar))
	is = quantile(serverStopped, byPolicy, 99)
	hold(p, "p99", is, bar+2*late)
	p.measured("%v", is)

	p = v.promise("server hung: the same once the breaker is open, median", fmt.Sprint("≤ ", breakerBar))
	is = quantile(serverStopped, byBreaker, 50)
	p.measured("%v", is)
	if v.strict {
		hold(p, "median", is, breakerBar)
	}
}

const (
	extraBar   = 10  // percent
	extraLeast = 100 // calls that a percentage can be told of

	// repeatsInVain is how many repetitions without a reply redisstore makes before it
	// takes the server for one that does not answer.
	repeatsInVain = 2
)

// extra is the commands that a failing shard gets more than calls were made.
func (v *verdict) extra() {
	p := v.promise("extra commands while a shard fails", fmt.Sprintf("≤ %d %% and %d a process", extraBar, repeatsInVain))
	var calls, commands, spare int64
	for _, e := range events(v.all...) {
		if e.Kind == shardFails { // all processes may repeat some beside a tenth of the calls
			calls += e.Calls
			commands += e.Active
			spare += repeatsInVain * int64(e.Scenario.Fleet)
		}
	}
	p.measured("%d calls, %d commands", calls, commands)
	if calls >= extraLeast {
		hold(p, "commands", commands, calls+calls*extraBar/100+spare)
	}
}

// mostErrors is how many errors of requests are told, the most frequent.
const mostErrors = 20

// report is what a run tells people.
func report(v *verdict) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\npromise\tmeasured\tbar\t")
	for _, p := range v.list {
		fmt.Fprintf(w, "%s\t%s\t%s\t\n", p.Name, cmp.Or(p.Measured, fmt.Sprint(p.sum)), p.Bar)
	}
	_ = w.Flush() // to memory
	fmt.Fprintln(&b, "\nerrors of requests:")
	count := make(map[string]int64)
	for _, o := range v.all {
		for text, n := range o.Errors {
			count[text] += n
		}
	}
	texts := slices.SortedFunc(maps.Keys(count), func(x, y string) int { return cmp.Compare(count[y], count[x]) })
	for _, text := range texts[:min(len(texts), mostErrors)] {
		fmt.Fprintf(&b, "%d × %s\n", count[text], text)
	}
	for _, p := range v.list {
		for _, why := range p.Why {
			fmt.Fprintf(&b, "BROKEN: %s: %s\n", p.Name, why)
		}
	}
	return b.String()
}

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

// verdict is the promises, over all scenarios, in the order in which they are told.
type verdict struct {
	all    []*outcome
	strict bool
	list   []*promise

	active                                         *promise
	over, overReset                                *promise         // over-admission
	overLost                                       [losses]*promise // the same for what the store has lost
	dayEnds, lost, killed, uncharged, alone, apart *promise
	late, across, inAll, starved                   *promise
	election, recovery, moving, elsewhere          *promise
	hungStock, hungWaiting, hungOpen, extra        *promise

	resets, midnights, counted int64 // what happened to windows
	unreplicated               int64 // tokens, at failovers
	calls, commands, spare     int64 // to shards that fail; commands beyond
}

// promise adds a line, which is kept until something breaks it.
func (v *verdict) promise(name, bar string) *promise {
	p := &promise{Name: name, Bar: bar}
	v.list = append(v.list, p)
	return p
}

// judge holds the outcomes against the promises. It is pure. Where it is not
// strict, bars of time are lower, for the race detector and tests beside.
func judge(list []*outcome, strict bool) *verdict {
	v := &verdict{all: list, strict: strict}
	v.active = v.promise("faults that took effect", "all")
	v.over = v.promise("over-admission without data loss", "0")
	v.overReset = v.promise("over-admission of windows that are reset", "0, or one limit each time that data is lost")
	v.dayEnds = v.promise("days that end before midnight", "≤ 1 ms each reset")
	v.overLost[tail] = v.promise("over-admission at failover", fmt.Sprintf("≤ %d %% of what was not replicated", failoverBar))
	v.overLost[elected] = v.promise("over-admission at a cluster's election", "≤ one limit each")
	v.overLost[all] = v.promise("over-admission when all data is lost", "≤ one limit each time")
	v.lost = v.promise("tokens lost, no process killed", "0")
	v.killed = v.promise("tokens lost with a process that is killed", "≤ its stock")
	v.uncharged = v.promise("tokens spent that were never charged", "0")
	v.alone = v.promise("FailLocal: admitted by a process alone, at most", "its share")
	v.apart = v.promise("Stats balance and agree with the journals", "0 tokens apart")
	v.late = v.promise("tokens spent after their window", "0")
	v.across = v.promise("requests under way when a process was stopped", "≤ 1 per goroutine and stop")
	v.inAll = v.promise("clock steps and resets: admitted in all", "≤ one limit more for each")
	v.starved = v.promise("clock steps: longest time without a token", "≤ one window")
	v.election = v.promise("recovery after a cluster's election", fmt.Sprint("≤ ", recoveryBar))
	v.recovery = v.promise("recovery after any other fault", fmt.Sprint("≤ ", recoveryBar))
	v.moving = v.promise("errors to callers while slots move", "0")
	v.elsewhere = v.promise("errors on shards that are well", "0")
	v.hungStock = v.promise("server hung: p99.9 of callers with stock", "unchanged")
	v.hungWaiting = v.promise("server hung: callers without stock, p99", "")
	v.hungOpen = v.promise("server hung: the same once the breaker is open, median", fmt.Sprint("≤ ", breakerBar))
	v.extra = v.promise("extra commands while a shard fails", fmt.Sprintf("≤ %d %% and %d a process", extraBar, repeatsInVain))
	for _, o := range list {
		var overrun int64
		for id, s := range o.Lines {
			v.key(place{o, id, s, o.Scenario.demand(id.Role)})
			overrun += s.Overrun
		}
		for _, e := range o.Events {
			v.fault(o, e)
		}
		if stops := o.had(processStopped); stops > 0 { // where one request of each caller is under way
			hold(v.across, o.Scenario.Topology, overrun, stops*int64(callers*len(o.Lines)))
		}
	}
	v.latency()
	v.total()
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

const (
	// failoverBar is how many percent may be admitted of what the replicas did not have,
	// over all failovers; of each, all of that.
	failoverBar = 2

	recoveryBar = 5 * time.Second // until calls succeed; after an election, from that
	answerBar   = 10 * time.Millisecond
	breakerBar  = 5 * time.Microsecond

	// slowMove is what a slot that moves takes ten times over. Where it takes longer,
	// servers wait for a processor for so long that callers run out of time.
	slowMove = 5 * time.Millisecond

	extraBar   = 10  // percent
	extraLeast = 100 // calls that a percentage can be told of

	// repeatsInVain is how many repetitions without a reply redisstore makes before it
	// takes the server for one that does not answer.
	repeatsInVain = 2
)

// key holds what was done with a key against the promises.
func (v *verdict) key(at place) {
	if at.Allowed == 0 || at.Role == tight && at.Denied == 0 {
		v.active.broken("%v: it was never used up", at)
	}
	if at.Role.windowed() && at.Role != daily && len(at.Windows) < 2 {
		v.active.broken("%v: no window rolled over", at)
	}
	v.resets, v.counted, v.midnights = v.resets+at.Resets, v.counted+at.Counted, v.midnights+at.midnights()
	if at.Scenario.Loses != timeline { // else the windows' times and ours are not the same
		v.windows(at)
		hold(v.late, at, at.Late, 0)
	}
	if at.Scenario.Loses == nothing && at.limit.Window != shortWindow {
		v.account(at)
	}
	if at.Role.windowed() {
		v.sequence(at)
	}
	if at.Role == local { // of one window, for it outlasts the run
		hold(v.alone, at, at.Alone, at.alone())
	}
	hold(v.apart, at, at.Apart, 0)
	if len(at.Unclean) > 0 && (v.strict || at.excused(calm) == 0) {
		v.apart.broken("%v: processes could not hand back: %v", at, at.Unclean)
	}
}

// windows holds each group of windows against one limit, and against what the store has
// lost meanwhile.
func (v *verdict) windows(at place) {
	for _, g := range at.groups() {
		p, may := v.over, at.lost(g)
		if at.Role == daily {
			const day = 24 * 60 * 60 * 1000
			hold(v.dayEnds, fmt.Sprintf("%v, milliseconds before midnight", at), ((at.Scenario.Midnight*1000-g.to)%day+day)%day, at.Resets)
		}
		switch {
		case at.Role.renewed():
			p = v.overReset
		case may > 0:
			p = v.overLost[at.Scenario.Loses]
		}
		over := max(g.spent-at.limit.Tokens, 0)
		hold(p, fmt.Sprintf("%v, windows of %d to %d, tokens above the limit", at, g.from, g.to), over, may)
	}
}

// account compares what the store holds at the end with what requests have used, where
// nothing happened that takes data from it.
func (v *verdict) account(at place) {
	used, may := at.Spent+at.Settled-at.Refunded, at.Unknown
	if at.Role == daily { // the last window is there, and what is settled for an earlier one may count
		used, may = at.Windows[at.Open], may+at.Settled
	}
	idle := at.Charged - used
	switch {
	case idle < 0 && at.Role.fallsBack() && at.Killed > 0: // it took along what it had admitted without the store
	case idle < 0:
		hold(v.uncharged, at, -idle, 0)
	case at.Killed > 0:
		hold(v.killed, at, idle, may+at.KilledHeld+at.Killed*at.beyond())
	default:
		hold(v.lost, at, max(idle-may, 0), 0)
	}
}

// sequence bounds what steps of the server's clock may give and take, and what resets
// may. Windows that follow each other, one more for each step and each reset, and what
// the store has lost, are all that may be used.
func (v *verdict) sequence(at place) {
	windows, lost := int64(at.Elapsed/at.limit.Window)+2+at.Resets, int64(0) // begun before, and after
	for _, e := range at.Events {
		lost += e.Lost[at.Role]
	}
	if at.Scenario.Loses == timeline {
		windows += int64(len(at.Events))
		// Windows of whole seconds end at whole seconds, so a clock that was set back
		// comes by the end of a window again that was over.
		for end, spent := range at.Windows {
			if may := (1 + at.had(clockBack)) * at.limit.Tokens; spent > may {
				v.inAll.broken("%v: %d tokens in the window of %d, where %d may be", at, spent, end, may)
			}
		}
	}
	hold(v.inAll, at, at.Spent, windows*at.limit.Tokens+lost)
}

// fault holds what a fault led to against the promises.
func (v *verdict) fault(o *outcome, e *event) {
	at := fmt.Sprintf("%v: %v", o.Scenario.Topology, e.Kind)
	if v.active.sum++; e.Active == 0 {
		v.active.broken("%v never took effect", at)
	}
	if o.Scenario.Loses == tail { // of short windows; the limits of long ones are out of reach
		v.unreplicated += e.Lost[tight] + e.Lost[ample]
	}
	// A step counts when it is a tenth of a window; who was woken late asked late.
	late := time.Duration(merged(e.Kind, wakeUp, o).Max())
	hold(v.starved, at, e.Starved, shortWindow+shortWindow/4+late)
	p, bar := v.recovery, recoveryBar
	if o.Scenario.Loses == elected {
		p = v.election
	}
	if !v.strict {
		bar *= 3
	}
	hold(p, at, e.Recovery, bar)
	slow := e.End.Sub(e.Begin) > time.Duration(e.Active)*slowMove
	if e.Kind == resharded && (v.strict || !slow) {
		hold(v.moving, at, e.Failed, o.excused(e.Kind))
	}
	if o.Scenario.Topology == sharded && e.Kind != processStopped && e.Kind != processKilled { // they are no shard's
		hold(v.elsewhere, at, e.Elsewhere, 0)
	}
	if e.Kind == shardFails { // all processes may repeat some beside a tenth of the calls
		v.calls, v.commands = v.calls+e.Calls, v.commands+e.Active
		v.spare += repeatsInVain * int64(o.Scenario.Fleet)
	}
}

// excused is how many requests may have run out of time, by no fault but that of
// a machine that did not wake callers for half of it: one in a hundred.
func (o *outcome) excused(k kind) int64 {
	machine := merged(k, wakeUp, o)
	if time.Duration(machine.Max()) < o.Scenario.Timeout/2 {
		return 0
	}
	return machine.TotalCount() / 100
}

// merged is the latencies of scenarios.
func merged(k kind, a answer, list ...*outcome) *hdrhistogram.Histogram {
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
		return time.Duration(merged(k, a, hung...).ValueAtQuantile(percent))
	}
	late := quantile(serverStopped, wakeUp, 99.9)

	was, is := quantile(calm, fromStock, 99.9), quantile(serverStopped, fromStock, 99.9)
	hold(v.hungStock, "p99.9", is, 4*was+late)
	v.hungStock.measured("%v, was %v; timers are late by %v", is, was, late)

	v.hungWaiting.Bar = fmt.Sprint("≤ ", bar)
	is = quantile(serverStopped, byPolicy, 99)
	hold(v.hungWaiting, "p99", is, bar+2*late)
	v.hungWaiting.measured("%v", is)

	is = quantile(serverStopped, byBreaker, 50)
	v.hungOpen.measured("%v", is)
	if v.strict {
		hold(v.hungOpen, "median", is, breakerBar)
	}
}

// total says what was measured over all, and judges what only that can show.
func (v *verdict) total() {
	v.active.measured("%d; %d resets, %d midnights, %d tokens settled for earlier windows", v.active.sum, v.resets, v.midnights, v.counted)
	if v.resets*v.counted*v.midnights == 0 {
		v.active.broken("in all: %s", v.active.Measured)
	}
	p, part := v.overLost[tail], percent(v.overLost[tail].sum, v.unreplicated)
	p.measured("%d of %d (%.1f %%)", p.sum, v.unreplicated, part)
	if v.strict && part > failoverBar {
		p.broken("%d tokens of %d", p.sum, v.unreplicated)
	}
	v.extra.measured("%d calls, %d commands", v.calls, v.commands)
	if v.calls >= extraLeast {
		hold(v.extra, "commands", v.commands, v.calls+v.calls*extraBar/100+v.spare)
	}
	v.dayEnds.measured("%d ms at most", v.dayEnds.most)
	v.alone.measured("%d", v.alone.most)
	v.inAll.measured("%d tokens at most", v.inAll.most)
	for _, p := range []*promise{v.starved, v.election, v.recovery} {
		p.measured("%v", time.Duration(p.most).Round(time.Millisecond))
	}
}

func percent(part, whole int64) float64 { return 100 * float64(part) / float64(max(whole, 1)) }

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

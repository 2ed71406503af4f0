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

// hold compares a figure with the most that the promise allows.
func hold[T ~int64](p *promise, of any, got, may T) {
	p.sum += int64(got)
	p.most = max(p.most, int64(got))
	if got > may {
		p.broken("%v: %v, where %v is allowed", of, got, may)
	}
}

func (p *promise) broken(format string, args ...any) {
	p.Why = append(p.Why, fmt.Sprintf(format, args...))
}

func (p *promise) measured(format string, args ...any) {
	p.Measured = fmt.Sprintf(format, args...)
}

// verdict holds the promises, over all scenarios, in the order of the report.
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
	calls, commands, spare     int64 // to failing shards; commands allowed beyond
}

// promise adds a line, which is kept until something breaks it.
func (v *verdict) promise(name, bar string) *promise {
	p := &promise{Name: name, Bar: bar}
	v.list = append(v.list, p)
	return p
}

// judge compares the outcomes with the promises. It is pure. Unless it is strict it
// allows more time, for the race detector and concurrent tests.
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
		if stops := o.had(processStopped); stops > 0 { // each caller may have one request in flight
			hold(v.across, o.Scenario.Topology, overrun, stops*int64(callers*len(o.Lines)))
		}
	}
	v.latency()
	v.total()
	return v
}

// broken returns the names of the broken promises.
func (v *verdict) broken() (names []string) {
	for _, p := range v.list {
		if p.Why != nil {
			names = append(names, p.Name)
		}
	}
	return names
}

const (
	// failoverBar is the percentage of unreplicated tokens that may be admitted again,
	// over all failovers. A single failover may reach 100.
	failoverBar = 2

	recoveryBar = 5 * time.Second // until calls succeed, from the fault's end or the election
	answerBar   = 10 * time.Millisecond
	breakerBar  = 5 * time.Microsecond

	// slowMove is ten times what moving a slot takes. If it takes longer, servers wait
	// for a processor for so long that callers time out.
	slowMove = 5 * time.Millisecond

	extraBar   = 10  // percent
	extraLeast = 100 // calls that a percentage needs

	// repeatsInVain is the number of retries without a reply after which redisstore takes
	// the server for unresponsive.
	repeatsInVain = 2
)

// key compares the use of a key with the promises.
func (v *verdict) key(at place) {
	if at.Allowed == 0 || at.Role == tight && at.Denied == 0 {
		v.active.broken("%v: it was never used up", at)
	}
	if at.Role.windowed() && at.Role != daily && len(at.Windows) < 2 {
		v.active.broken("%v: no window rolled over", at)
	}
	v.resets, v.counted, v.midnights = v.resets+at.Resets, v.counted+at.Counted, v.midnights+at.midnights()
	if at.Scenario.Loses != timeline { // otherwise the windows' clock differs from ours
		v.windows(at)
		hold(v.late, at, at.Late, 0)
	}
	if at.Scenario.Loses == nothing && at.limit.Window != shortWindow {
		v.account(at)
	}
	if at.Role.windowed() {
		v.sequence(at)
	}
	if at.Role == local { // one window, because it outlasts the run
		hold(v.alone, at, at.Alone, at.alone())
	}
	hold(v.apart, at, at.Apart, 0)
	if len(at.Unclean) > 0 && (v.strict || at.excused(calm) == 0) {
		v.apart.broken("%v: processes could not hand back: %v", at, at.Unclean)
	}
}

// windows compares each group of windows with one limit plus what the store has lost
// meanwhile.
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

// account compares what the store holds at the end with what requests have used, if no
// fault has taken data from it.
func (v *verdict) account(at place) {
	used, may := at.Spent+at.Settled-at.Refunded, at.Unknown
	if at.Role == daily { // only the last window is left; settlements for an earlier one may count
		used, may = at.Windows[at.Open], may+at.Settled
	}
	idle := at.Charged - used
	switch {
	case idle < 0 && at.Role.fallsBack() && at.Killed > 0: // a killed process had admitted tokens without the store
	case idle < 0:
		hold(v.uncharged, at, -idle, 0)
	case at.Killed > 0:
		hold(v.killed, at, idle, may+at.KilledHeld+at.Killed*at.beyond())
	default:
		hold(v.lost, at, max(idle-may, 0), 0)
	}
}

// sequence bounds what clock steps and resets may add. Requests may use all windows of
// the elapsed time, one more for each step and each reset, and what the store has lost.
func (v *verdict) sequence(at place) {
	windows, lost := int64(at.Elapsed/at.limit.Window)+2+at.Resets, int64(0) // one may begin before, one end after
	for _, e := range at.Events {
		lost += e.Lost[at.Role]
	}
	if at.Scenario.Loses == timeline {
		windows += int64(len(at.Events))
		// Windows of whole seconds end at whole seconds, so a clock that was set back may
		// reach the end of an earlier window again.
		for end, spent := range at.Windows {
			if may := (1 + at.had(clockBack)) * at.limit.Tokens; spent > may {
				v.inAll.broken("%v: %d tokens in the window of %d, where %d may be", at, spent, end, may)
			}
		}
	}
	hold(v.inAll, at, at.Spent, windows*at.limit.Tokens+lost)
}

// fault compares the effects of a fault with the promises.
func (v *verdict) fault(o *outcome, e *event) {
	at := fmt.Sprintf("%v: %v", o.Scenario.Topology, e.Kind)
	if v.active.sum++; e.Active == 0 {
		v.active.broken("%v never took effect", at)
	}
	if o.Scenario.Loses == tail { // short windows only, because the limits of long ones are out of reach
		v.unreplicated += e.Lost[tight] + e.Lost[ample]
	}
	// The scripts ignore a step below a tenth of a window. A caller that woke late asked
	// late.
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
	if o.Scenario.Topology == sharded && e.Kind != processStopped && e.Kind != processKilled { // which hit no shard
		hold(v.elsewhere, at, e.Elsewhere, 0)
	}
	if e.Kind == shardFails { // all processes may repeat a few beyond a tenth of the calls
		v.calls, v.commands = v.calls+e.Calls, v.commands+e.Active
		v.spare += repeatsInVain * int64(o.Scenario.Fleet)
	}
}

// excused returns how many requests may have timed out because of a slow machine: one in
// a hundred if it woke a caller later than half the timeout, otherwise none.
func (o *outcome) excused(k kind) int64 {
	machine := merged(k, wakeUp, o)
	if time.Duration(machine.Max()) < o.Scenario.Timeout/2 {
		return 0
	}
	return machine.TotalCount() / 100
}

// merged returns the merged latencies of the scenarios.
func merged(k kind, a answer, list ...*outcome) *hdrhistogram.Histogram {
	sum := newLatency()
	for _, o := range list {
		if h := o.Latency[waited{k, a}]; h != nil {
			sum.Merge(h)
		}
	}
	return sum
}

// latency compares what callers notice of a hung server with the promises. It allows for
// the lateness of timers at the same quantile, because the machine causes that.
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

// total reports the overall figures and judges promises that need them.
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

// mostErrors is the number of error texts in the report, the most frequent first.
const mostErrors = 20

// report formats the verdict for people.
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

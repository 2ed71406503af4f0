package torture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// promise is one line of the report: what is allowed, how often a figure was compared with
// that, the largest of these figures, and what broke the promise, if anything did.
type promise struct {
	Bar      string
	Compared int
	Most     string
	Why      []string
	most     int64
}

// verdict holds the promises that the scenarios have put to the test, by name.
type verdict struct {
	strict   bool
	promises map[string]promise

	resets, midnights, counted int64         // what happened to windows
	giveBacks                  int64         // of tokens that others called back
	refused                    [roles]int64  // requests, by tight and rolling limits
	lost, readmitted           [losses]int64 // tokens
	calls, commands, spare     int64         // to failing shards; commands allowed beyond
}

// hold compares a figure with the most that the promise allows.
func hold[T ~int64](v *verdict, name, bar string, of any, got, may T) {
	p := v.promises[name]
	p.Bar = bar
	p.Compared++
	if int64(got) >= p.most {
		p.most, p.Most = int64(got), fmt.Sprint(got)
	}
	if got > may {
		p.Why = append(p.Why, fmt.Sprintf("%v: %v, where %v is allowed", of, got, may))
	}
	v.promises[name] = p
}

// happened requires that there was something to judge.
func (v *verdict) happened(n int64, of any, what string) {
	hold(v, "faults that took effect", "all", fmt.Sprintf("%v: never %s", of, what), once(n <= 0), 0)
}

// judge compares the outcomes with the promises. It is pure. Unless it is strict it
// allows more time, for the race detector and concurrent tests.
func judge(list []*outcome, strict bool) *verdict {
	v := &verdict{strict: strict, promises: make(map[string]promise)}
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
			hold(v, "requests under way when a process was stopped", "≤ 1 per goroutine and stop",
				o.Scenario.Topology, overrun, stops*int64(callers*len(o.Lines)))
		}
	}
	v.latency(list)
	v.total()
	return v
}

// broken returns the names of the broken promises.
func (v *verdict) broken() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(v.promises)) {
		if v.promises[name].Why != nil {
			names = append(names, name)
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
	v.happened(at.Allowed, at, "admitted")
	if at.Role == tight || at.Role == rolling {
		v.refused[at.Role] += at.Denied
	}
	if at.Role == tight && v.strict { // beside other tests a busy machine may not ask for a limit in each scenario
		v.happened(at.Denied, at, "refused")
	}
	if at.rolls && at.Role != daily {
		v.happened(int64(len(at.Windows)-1), at, "rolled over")
	}
	v.resets, v.counted = v.resets+at.Resets, v.counted+at.Counted
	v.giveBacks += at.GiveBacks
	if at.Role == daily {
		days, midnight := at.sorted(), at.Scenario.Midnight*1000
		v.midnights += once(len(days) > 0 && days[0].End <= midnight && midnight < days[len(days)-1].End)
	}
	if at.Role == rolling {
		v.intervals(at)
	} else if at.Scenario.Loses != timeline { // otherwise the windows' clock differs from ours
		v.windows(at)
		hold(v, "tokens spent after their window", "0", at, at.Late, 0)
	}
	if at.Scenario.Loses == nothing && at.limit.Window != shortWindow {
		v.account(at)
	}
	if at.rolls {
		v.sequence(at)
	}
	if at.Role == local { // one window, because it outlasts the run
		hold(v, "FailLocal: admitted by a process alone, at most", "its share", at, at.Alone, at.alone())
	}
	const name, bar = "Stats balance and agree with the journals", "0 tokens apart"
	hold(v, name, bar, at, at.Apart, 0)
	if v.strict || at.excused(at.Calm) == 0 {
		hold(v, name, bar, fmt.Sprintf("%v: processes could not hand back: %v", at, at.Unclean), int64(len(at.Unclean)), 0)
	}
}

// overLost has the promise about over-admission for each loss of data.
var overLost = [losses]struct{ name, bar string }{
	tail:    {"over-admission at failover", "≤ what was not replicated"},
	elected: {"over-admission at a cluster's election", "≤ one limit each"},
	all:     {"over-admission when all data is lost", "≤ one limit each time"},
}

// windows compares each group of windows with one limit plus what the store has lost
// meanwhile.
func (v *verdict) windows(at place) {
	for _, g := range at.groups() {
		if at.Role == daily {
			const day = 24 * 60 * 60 * 1000
			early := ((at.Scenario.Midnight*1000-g.to)%day + day) % day
			hold(v, "days that end before midnight", "0 ms", at, early, 0)
		}
		over, may := max(g.spent-at.limit.Tokens, 0), at.lost(g)
		name, bar := "over-admission without data loss", "0"
		switch loss := at.Scenario.Loses; {
		case at.renewed:
			name, bar = "over-admission of windows that are reset", "0, or one limit each time that data is lost"
		case may > 0:
			name, bar = overLost[loss].name, overLost[loss].bar
			v.readmitted[loss] += over
		}
		hold(v, name, bar, fmt.Sprintf("%v, windows of %d to %d, tokens above the limit", at, g.from, g.to), over, may)
	}
}

// account compares what the store holds at the end with what requests have used, if no
// fault has taken data from it.
func (v *verdict) account(at place) {
	used, may := at.Spent+at.Settled-at.Refunded-at.Uncharged, at.Unknown
	if at.Role == daily { // only the last window is left; settlements for an earlier one may count
		used, may = at.Windows[at.Open], may+at.Settled
	}
	idle := at.Charged - used
	hold(v, "tokens spent that were never charged", "0", at, max(-idle, 0), 0)
	if at.Killed == 0 {
		hold(v, "tokens lost, no process killed", "0", at, max(idle-may, 0), 0)
	} else {
		may += at.KilledHeld + at.Killed*at.beyond()
		hold(v, "tokens lost with a process that is killed", "≤ its stock", at, max(idle, 0), may)
	}
}

// sequence bounds what clock steps and resets may add. Requests may use all windows of
// the elapsed time, one more for each step and each reset, and what the store has lost.
func (v *verdict) sequence(at place) {
	const name, bar = "clock steps and resets: admitted in all", "≤ one limit more for each"
	windows, lost := int64(at.Elapsed/at.limit.Window)+2+at.Resets, int64(0) // one may begin before, one end after
	for _, e := range at.Events {
		lost += e.Lost[at.Role]
	}
	if at.Scenario.Loses == timeline {
		windows += int64(len(at.Events))
		// Windows of whole seconds end at whole seconds, so a clock that was set back may
		// reach the end of an earlier window again.
		for w, spent := range at.Windows {
			hold(v, name, bar, fmt.Sprintf("%v, window of %v", at, w), spent, (1+at.had(clockBack))*at.limit.Tokens)
		}
	}
	hold(v, name, bar, at, at.Spent, windows*at.limit.Tokens+lost)
}

// fault compares the effects of a fault with the promises.
func (v *verdict) fault(o *outcome, e *event) {
	at := fmt.Sprintf("%v: %v", o.Scenario.Topology, e.Kind)
	v.happened(e.Active, at, "took effect")
	v.lost[o.Scenario.Loses] += e.Lost[tight] + e.Lost[ample] // because the limits of long windows are out of reach
	if o.Scenario.Loses == timeline {
		// The scripts ignore a step below a tenth of a window. A caller that woke late
		// asked late.
		late := time.Duration(e.Latency[wakeUp].Max())
		hold(v, "clock steps: longest time without a token", "≤ one window", at, e.Starved, shortWindow+shortWindow/4+late)
	}
	name, bar := "recovery after any other fault", recoveryBar
	if o.Scenario.Loses == elected {
		name = "recovery after a cluster's election"
	}
	if !v.strict {
		bar *= 3
	}
	hold(v, name, fmt.Sprint("≤ ", recoveryBar), at, e.Recovery, bar)
	slow := e.End.Sub(e.Begin) > time.Duration(e.Active)*slowMove
	if e.Kind == resharded && (v.strict || !slow) {
		hold(v, "errors to callers while slots move", "0", at, e.Failed, o.excused(e))
	}
	if o.Scenario.Topology == sharded && e.Kind != processStopped && e.Kind != processKilled { // which hit no shard
		hold(v, "errors on shards that are well", "0", at, e.Elsewhere, 0)
	}
	if e.Kind == shardFails { // all processes may repeat a few beyond a tenth of the calls
		v.calls, v.commands = v.calls+e.Calls, v.commands+e.Active
		v.spare += repeatsInVain * int64(o.Scenario.Fleet)
	}
}

// excused returns how many requests may have timed out because of a slow machine: one in
// a hundred if it woke a caller later than half the timeout, otherwise none.
func (o *outcome) excused(e *event) int64 {
	machine := e.Latency[wakeUp]
	if time.Duration(machine.Max()) < o.Scenario.Timeout/2 {
		return 0
	}
	return machine.TotalCount() / 100
}

// latency compares what callers notice of a hung server with the promises. It allows for
// the lateness of timers at the same quantile, because the machine causes that.
func (v *verdict) latency(list []*outcome) {
	var bar time.Duration
	var well, hung []*event
	for _, o := range list {
		for _, e := range o.Events {
			if e.Kind == serverStopped {
				well, hung, bar = append(well, o.Calm), append(hung, e), 2*o.Scenario.Timeout+answerBar // a call without an answer is made once more
			}
		}
	}
	if hung == nil {
		return
	}
	quantile := func(list []*event, a answer, percent float64) time.Duration {
		sum := newEvent(calm, 0).Latency[a]
		for _, e := range list {
			sum.Merge(e.Latency[a])
		}
		return time.Duration(sum.ValueAtQuantile(percent))
	}
	was, late := quantile(well, fromStock, 99.9), quantile(hung, wakeUp, 99.9)
	hold(v, "server hung: p99.9 of callers with stock", fmt.Sprintf("≤ 4 × %v as before + %v of late timers", was, late),
		"p99.9", quantile(hung, fromStock, 99.9), 4*was+late)
	if !v.strict { // beside other tests a fetch may end late, and some callers of few are 1 %
		bar, late = 2*bar, quantile(hung, wakeUp, 100)
	}
	hold(v, "server hung: callers without stock, p99", fmt.Sprintf("≤ %v + 2 × %v of late timers", bar, late),
		"p99", quantile(hung, byPolicy, 99), bar+2*late)
	if v.strict {
		hold(v, "server hung: the same once the breaker is open, median", fmt.Sprint("≤ ", breakerBar),
			"median", quantile(hung, byBreaker, 50), breakerBar)
	}
}

// total judges the promises that need figures of all scenarios.
func (v *verdict) total() {
	v.happened(v.resets, "in all", "reset")
	v.happened(v.midnights, "in all", "a midnight")
	v.happened(v.counted, "in all", "a token settled for an earlier window")
	v.happened(v.giveBacks, "in all", "an idle token called back")
	v.happened(v.refused[tight], "in all", "a refusal by a tight limit")
	v.happened(v.refused[rolling], "in all", "a refusal by a rolling limit")
	if v.strict && v.lost[tail] > 0 {
		bar := fmt.Sprintf("≤ %d %% of %d, which were not replicated", failoverBar, v.lost[tail])
		hold(v, overLost[tail].name, bar, "all failovers", v.readmitted[tail], v.lost[tail]*failoverBar/100)
	}
	if v.calls >= extraLeast {
		bar := fmt.Sprintf("≤ %d calls, %d %% and %d a process", v.calls, extraBar, repeatsInVain)
		hold(v, "extra commands while a shard fails", bar, "commands", v.commands, v.calls+v.calls*extraBar/100+v.spare)
	}
}

// report formats the verdict for people.
func report(v *verdict) string {
	var b, broken strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\npromise\tcompared\tat most\tbar\t")
	for _, name := range slices.Sorted(maps.Keys(v.promises)) {
		p := v.promises[name]
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t\n", name, p.Compared, p.Most, p.Bar)
		for _, why := range p.Why {
			fmt.Fprintf(&broken, "BROKEN: %s: %s\n", name, why)
		}
	}
	_ = w.Flush() // to memory
	return b.String() + broken.String()
}

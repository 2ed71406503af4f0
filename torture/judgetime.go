package torture

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// This file is the promises about time.

// late: a request that is made after a window's end gets nothing of it, and one
// that was under way when its process was stopped is one for each caller. Where a
// server's clock was set, its idea of a window's end is another.
func (v *verdict) late(list []*outcome) {
	after := v.promise("tokens spent after their window", "0")
	across := v.promise("requests under way when a process was stopped", "≤ 1 per goroutine and stop")
	var late, overrun, stops int64
	for _, o := range list {
		if o.losses(timeline) > 0 {
			continue
		}
		var here int64
		for _, at := range lines(o) {
			here += at.Overrun
			if late += at.Late; at.Late > 0 {
				after.broken("%v: %d tokens", at, at.Late)
			}
		}
		halts := o.had(processStopped)
		overrun += here
		stops += halts
		if goroutines := int64(callers * len(o.Lines)); halts > 0 && here > goroutines*halts {
			across.broken("%v: %d requests in %d goroutines and %d stops", o.Scenario.Topology, here, goroutines, halts)
		}
	}
	after.measured("%d", late)
	across.measured("%d in %d stops", overrun, stops)
}

// clocks bounds what steps of the server's clock may give and take. Windows that
// follow each other, and one more for each step, are all that may be used.
func (v *verdict) clocks(list []*outcome) {
	extra := v.promise("clock steps: admitted in all", "≤ one limit more per step")
	starved := v.promise("clock steps: longest time without a token", "≤ one window")
	for _, at := range lines(list...) {
		if at.losses(timeline) == 0 || !at.Role.windowed() {
			continue
		}
		limit, steps := at.demand().limit, int64(len(at.Events))
		windows := int64(at.Elapsed/limit.Window) + 2 + steps // begun before, and after
		if at.Role == tight {
			extra.measured("%.1f limits in %v, %d steps", float64(at.Spent)/float64(limit.Tokens), at.Elapsed.Round(time.Second), steps)
		}
		if at.Spent > windows*limit.Tokens {
			extra.broken("%v: %d tokens in %d windows", at, at.Spent, windows)
		}
		// Windows of whole seconds end at whole seconds, so a clock that was set back
		// comes by the end of a window again that was over.
		for reset, spent := range at.Windows {
			if spent > (1+at.had(clockBack))*limit.Tokens {
				extra.broken("%v: %d tokens in the window of %d", at, spent, reset)
			}
		}
	}
	var most time.Duration
	for _, e := range events(list...) {
		// A step counts when it is a tenth of a window; who was woken late asked late.
		bar := shortWindow + shortWindow/4 + time.Duration(merged([]*outcome{e.outcome}, e.Kind, wakeUp).Max())
		if most = max(most, e.Starved); e.Starved > bar {
			starved.broken("%v: %v, where it may be %v", e.Kind, e.Starved, bar)
		}
	}
	starved.measured("%v", most.Round(time.Millisecond))
}

// recovery is from the end of a fault, or from a cluster's election.
func (v *verdict) recovery(list []*outcome, strict bool) {
	bar := electionBar
	if !strict {
		bar *= 3
	}
	election := v.promise("recovery after a cluster's election", "≤ "+electionBar.String())
	other := v.promise("recovery after any other fault", "≤ "+electionBar.String())
	most := make(map[*promise]time.Duration)
	var whole time.Duration
	for _, e := range events(list...) {
		p := other
		if e.Kind == masterHung || e.Kind == masterKilled {
			p, whole = election, max(whole, e.End.Add(e.Recovery).Sub(e.Begin))
		}
		if most[p] = max(most[p], e.Recovery); e.Recovery > bar {
			p.broken("%v: %v", e.Kind, e.Recovery)
		}
	}
	election.measured("%v (%v with the election)", most[election].Round(time.Millisecond), whole.Round(time.Millisecond))
	other.measured("%v", most[other].Round(time.Millisecond))
}

func (v *verdict) resharding(list []*outcome, strict bool) {
	moving := v.promise("errors to callers while slots move", "0")
	elsewhere := v.promise("errors on shards that are well", "0")
	var failed, apart, slots int64
	var took time.Duration
	for _, e := range events(list...) {
		if e.Kind == resharded {
			slots += e.Active
			took += e.End.Sub(e.Begin)
			slow := e.End.Sub(e.Begin) > time.Duration(e.Active)*slowMove
			if failed += e.Failed; e.Failed > e.excused(e.Kind) && (strict || !slow) {
				moving.broken("%d requests failed while %d slots moved", e.Failed, e.Active)
			}
		}
		if e.Scenario.Topology == sharded && e.Kind != processStopped && e.Kind != processKilled { // they are no shard's
			if apart += e.Elsewhere; e.Elsewhere > 0 {
				elsewhere.broken("%v: %d requests", e.Kind, e.Elsewhere)
			}
		}
	}
	moving.measured("%d in %d moves, %v", failed, slots, took.Round(time.Millisecond))
	elsewhere.measured("%d", apart)
}

// slowMove is what a slot that moves takes ten times over. Where it takes longer,
// servers wait for a processor for so long that callers run out of time.
const slowMove = 5 * time.Millisecond

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

func quantile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(percent))
}

// latency is what callers notice of a server that hangs. How late the machine
// wakes anybody whose timer is due is not the library's doing: that is allowed
// for, at the same quantile.
func (v *verdict) latency(list []*outcome, strict bool) {
	bar := answerBar
	var hung []*outcome
	for _, o := range list {
		if o.had(serverStopped) > 0 {
			bar = max(bar, o.Scenario.Timeout+answerBar)
			hung = append(hung, o)
		}
	}
	late := quantile(merged(hung, serverStopped, wakeUp), 99.9)

	p := v.promise("server hung: p99.9 of callers with stock", "unchanged")
	was, is := quantile(merged(hung, calm, fromStock), 99.9), quantile(merged(hung, serverStopped, fromStock), 99.9)
	p.measured("%v, was %v", is, was)
	if is > 4*was+late {
		p.broken("%v, was %v, and timers are late by %v", is, was, late)
	}

	p = v.promise("server hung: callers without stock, p99", fmt.Sprintf("≤ %v", bar))
	policy := merged(hung, serverStopped, byPolicy)
	is = quantile(policy, 99)
	p.measured("%v (p50 %v, most %v, of %d; timers are late by %v)", is, quantile(policy, 50), time.Duration(policy.Max()), policy.TotalCount(), late)
	if is > bar+2*late {
		p.broken("%v", is)
	}

	p = v.promise("server hung: the same once the breaker is open, median", "≤ "+breakerBar.String())
	breaker := merged(hung, serverStopped, byBreaker)
	is = quantile(breaker, 50)
	p.measured("%v of %d", is, breaker.TotalCount())
	if is > breakerBar && strict {
		p.broken("%v", is)
	}
}

// extra is the commands that a failing shard gets more than calls were made.
func (v *verdict) extra(list []*outcome) {
	p := v.promise("extra commands while a shard fails", fmt.Sprintf("≤ %d %% and %d a process", extraBar, repeatsInVain))
	var calls, commands, spare int64
	for _, e := range events(list...) {
		calls += e.Calls
		commands += e.Commands
		if e.Kind == shardFails { // what all processes may repeat beside a tenth of the calls
			spare += repeatsInVain * int64(e.Scenario.Fleet)
		}
	}
	more := max(commands-calls, 0)
	p.measured("%.0f %% (%d calls, %d commands)", percent(more, calls), calls, commands)
	if calls >= extraLeast && percent(more-spare, calls) > extraBar {
		p.broken("%d calls made %d commands", calls, commands)
	}
}

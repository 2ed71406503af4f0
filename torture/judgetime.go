package torture

import (
	"fmt"
	"time"
)

// This file is the promises about time.

// late: a request that is made after a window's end gets nothing of it, and one
// that was under way when its process was stopped is one for each caller.
func (v *verdict) late(list []*outcome) {
	after := v.promise("tokens spent after their window", "0")
	across := v.promise("requests under way when a process was stopped", "≤ 1 per goroutine and stop")
	var late, overrun, stops int64
	for _, o := range list {
		var here, halts int64
		for i := range o.Events {
			if o.Events[i].Kind == processStopped {
				halts++
			}
		}
		for id, s := range o.Lines {
			here += s.Overrun
			if o.times() {
				continue // the server's idea of a window's end is another
			}
			if late += s.Late; s.Late > 0 {
				after.broken("%v: %v limit on part %d: %d tokens", o.Scenario.Topology, id.Role, id.Part, s.Late)
			}
		}
		if o.times() {
			continue
		}
		overrun += here
		stops += halts
		if goroutines := int64(callers * len(o.Lines)); halts > 0 && here > goroutines*halts {
			across.broken("%v: %d requests in %d goroutines and %d stops", o.Scenario.Topology, here, goroutines, halts)
		}
	}
	after.Measured = fmt.Sprint(late)
	across.Measured = fmt.Sprintf("%d in %d stops", overrun, stops)
}

// times reports whether the server's clock was set.
func (o *outcome) times() bool {
	for i := range o.Events {
		if o.Events[i].Kind.fault().loses == timeline {
			return true
		}
	}
	return false
}

// clocks bounds what steps of the server's clock may give and take. Windows that
// follow each other, and one more for each step, are all that may be used.
func (v *verdict) clocks(list []*outcome) {
	extra := v.promise("clock steps: admitted in all", "≤ one limit more per step")
	starved := v.promise("clock steps: longest time without a token", "≤ one window")
	var most time.Duration
	for _, o := range list {
		if !o.times() {
			continue
		}
		for id, s := range o.Lines {
			if !id.Role.windowed() {
				continue
			}
			d := demandOf(id.Role, int64(o.Parts), o.Scenario.Pace)
			windows := int64(o.Elapsed/d.limit.Window) + 2 + int64(len(o.Events)) // begun before, and after
			if id.Role == tight {
				extra.Measured = fmt.Sprintf("%.1f limits in %v, %d steps", float64(s.Spent)/float64(d.limit.Tokens), o.Elapsed.Round(time.Second), len(o.Events))
			}
			if s.Spent > windows*d.limit.Tokens {
				extra.broken("%v limit: %d tokens in %d windows", id.Role, s.Spent, windows)
			}
			for reset, spent := range s.Windows {
				if spent > o.lives()*d.limit.Tokens {
					extra.broken("%v limit: %d tokens in the window of %d", id.Role, spent, reset)
				}
			}
		}
		for i := range o.Events {
			most = max(most, o.Events[i].Starved)
		}
	}
	starved.Measured = fmt.Sprint(most.Round(time.Millisecond))
	if most > shortWindow+shortWindow/4 { // a step counts when it is a tenth of a window
		starved.broken("%v", most)
	}
}

// lives is how many windows may have ended at the same time by the server's clock.
// Windows of whole seconds end at whole seconds, so a clock that was set back comes by
// the end of a window again that was over.
func (o *outcome) lives() int64 {
	n := int64(1)
	for i := range o.Events {
		if o.Events[i].Kind == clockBack {
			n++
		}
	}
	return n
}

// recovery is from the end of a fault, or from a cluster's election.
func (v *verdict) recovery(list []*outcome, strict bool) {
	bar := electionBar
	if !strict {
		bar *= 3
	}
	p := v.promise("recovery after a cluster's election", "≤ "+electionBar.String())
	rest := v.promise("recovery after any other fault", "≤ "+electionBar.String())
	var most, whole, other time.Duration
	for _, o := range list {
		for i := range o.Events {
			e := &o.Events[i]
			if e.Kind == masterHung || e.Kind == masterKilled {
				most, whole = max(most, e.Recovery), max(whole, e.Took)
				if e.Recovery > bar {
					p.broken("%v: %v", e.Kind, e.Recovery)
				}
				continue
			}
			other = max(other, e.Recovery)
			if e.Recovery > bar {
				rest.broken("%v: %v", e.Kind, e.Recovery)
			}
		}
	}
	p.Measured = fmt.Sprintf("%v (%v with the election)", most.Round(time.Millisecond), whole.Round(time.Millisecond))
	rest.Measured = other.Round(time.Millisecond).String()
}

func (v *verdict) resharding(list []*outcome, strict bool) {
	p := v.promise("errors to callers while slots move", "0")
	elsewhere := v.promise("errors on shards that are well", "0")
	var errors, apart, slots int64
	var took time.Duration
	for _, o := range list {
		for i := range o.Events {
			e := &o.Events[i]
			if e.Kind == resharded {
				slots += e.Active
				took += e.End.Sub(e.Begin)
				slow := e.End.Sub(e.Begin) > time.Duration(e.Active)*slowMove
				if errors += e.Failed; e.Failed > o.excused(e.Kind) && (strict || !slow) {
					p.broken("%d requests failed while %d slots moved", e.Failed, e.Active)
				}
			}
			if o.Scenario.Topology == sharded && e.Kind != processStopped && e.Kind != processKilled { // they are no shard's
				if apart += e.Elsewhere; e.Elsewhere > 0 {
					elsewhere.broken("%v: %d requests", e.Kind, e.Elsewhere)
				}
			}
		}
	}
	p.Measured = fmt.Sprintf("%d in %d moves, %v", errors, slots, took.Round(time.Millisecond))
	elsewhere.Measured = fmt.Sprint(apart)
}

// slowMove is what a slot that moves takes ten times over. Where it takes longer,
// servers wait for a processor for so long that callers run out of time.
const slowMove = 5 * time.Millisecond

// excused is how many requests may have run out of time, by no fault but that of
// a machine that did not wake callers for half of it: one in a hundred.
func (o *outcome) excused(k kind) int64 {
	var machine spread
	for r := range role(roles) {
		machine.join(&o.Latency[r][k][wakeUp])
	}
	if machine.most < o.Scenario.Timeout/2 {
		return 0
	}
	return machine.n / 100
}

// latency is what callers notice of a server that hangs. How late the machine
// wakes anybody whose timer is due is not the library's doing: that is allowed
// for, at the same quantile.
func (v *verdict) latency(list []*outcome, strict bool) {
	var before, hung, policy, breaker, machine spread
	bar := answerBar
	for _, o := range list {
		if len(kindsIn(o, serverStopped)) == 0 {
			continue
		}
		bar = max(bar, o.Scenario.Timeout+answerBar)
		before.join(&o.Latency[stock][calm][fromStock])
		hung.join(&o.Latency[stock][serverStopped][fromStock])
		for r := range role(roles) {
			policy.join(&o.Latency[r][serverStopped][byPolicy])
			breaker.join(&o.Latency[r][serverStopped][byBreaker])
			machine.join(&o.Latency[r][serverStopped][wakeUp])
		}
	}
	v.callersWithStock(&before, &hung, &machine)
	p := v.promise("server hung: callers without stock, p99", fmt.Sprintf("≤ %v", bar))
	is, late := policy.quantile(0.99), machine.quantile(0.999)
	p.Measured = fmt.Sprintf("%v (p50 %v, most %v, of %d; timers are late by %v)", is, policy.quantile(0.5), policy.most, policy.n, late)
	if is > bar+2*late {
		p.broken("%v", is)
	}
	p = v.promise("server hung: the same once the breaker is open, median", "≤ "+breakerBar.String())
	p.Measured = fmt.Sprintf("%v of %d", breaker.quantile(0.5), breaker.n)
	if breaker.n > 0 && breaker.quantile(0.5) > breakerBar && strict {
		p.broken("%v", breaker.quantile(0.5))
	}
}

func (v *verdict) callersWithStock(before, hung, machine *spread) {
	p := v.promise("server hung: p99.9 of callers with stock", "unchanged")
	was, is, late := before.quantile(0.999), hung.quantile(0.999), machine.quantile(0.999)
	p.Measured = fmt.Sprintf("%v, was %v", is, was)
	if is > 4*was+late {
		p.broken("%v, was %v, and timers are late by %v", is, was, late)
	}
}

func kindsIn(o *outcome, k kind) (list []*event) {
	for i := range o.Events {
		if o.Events[i].Kind == k {
			list = append(list, &o.Events[i])
		}
	}
	return list
}

// extra is the commands that a failing shard gets more than calls were made.
func (v *verdict) extra(list []*outcome) {
	p := v.promise(extraCommands, fmt.Sprintf("≤ %d %% and %d a process", extraBar, repeatsInVain))
	var calls, commands, spare int64
	for _, o := range list {
		for _, e := range kindsIn(o, shardFails) {
			calls += e.Calls
			commands += e.Commands
			spare += e.Spare
		}
	}
	more := max(commands-calls, 0)
	p.Measured = fmt.Sprintf("%.0f %% (%d calls, %d commands)", percent(more, calls), calls, commands)
	if calls >= extraLeast && percent(more-spare, calls) > extraBar {
		p.broken("%d calls made %d commands", calls, commands)
	}
}

package torture

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// This file is the promises about time and errors.

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
			commands += e.Commands
			spare += repeatsInVain * int64(e.Scenario.Fleet)
		}
	}
	p.measured("%d calls, %d commands", calls, commands)
	if calls >= extraLeast {
		hold(p, "commands", commands, calls+calls*extraBar/100+spare)
	}
}

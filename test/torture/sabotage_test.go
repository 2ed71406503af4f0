package torture

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// epoch is when the made-up scenarios begin.
var epoch = time.UnixMilli(1_700_000_000_000)

// ends is the window that ends then.
func ends(windows float64) backend.Window { return backend.Window{End: at(windows).UnixMilli()} }

func at(windows float64) time.Time {
	return epoch.Add(time.Duration(windows * float64(shortWindow)))
}

// harmless is a scenario of ten windows in which a fault happens in the fifth,
// and all is well.
func harmless(where topology, f fault) *outcome {
	o := &outcome{
		Scenario: full, Elapsed: 10 * shortWindow, Lines: make(map[lineID]*sums),
		Calm: newEvent(calm, 0), Events: []*event{newEvent(f.kind, 0)},
	}
	e := o.Events[0]
	e.Begin, e.End, e.Active, e.Recovery = at(4.2), at(4.4), 1, shortWindow/10
	o.Scenario.Topology, o.Scenario.Loses, o.Scenario.Midnight = where, f.loses, at(5).Unix()
	for r := range role(roles) {
		s := &sums{Windows: make(map[backend.Window]int64), Allowed: 1, Denied: 1, GiveBacks: 1}
		d := o.Scenario.demand(r)
		if o.Scenario.Loses == elected || o.Scenario.Loses == all {
			e.Lost[r] = d.limit.Tokens
		}
		switch {
		case r == daily:
			s.Open, s.Settled, s.Counted, s.Resets = ends(5+24*60*60), 10, 5, 1
			s.Spent, s.Charged = 2*d.limit.Tokens, d.limit.Tokens+5
			s.Windows[s.Open], s.Windows[ends(5)] = d.limit.Tokens, d.limit.Tokens
		case r == rolling:
			s.count(at(4), at(4), d.limit.Tokens)
		case d.rolls:
			for i := range 10 {
				s.Windows[ends(float64(i+1))] = min(d.limit.Tokens, d.tokens)
				s.Spent += min(d.limit.Tokens, d.tokens)
			}
		default:
			s.Spent, s.Settled, s.Refunded, s.Charged = 5000, 500, 1000, 4500
			s.Windows[ends(3600)] = s.Spent
		}
		o.Lines[lineID{r, 0}] = s
	}
	return o
}

func (o *outcome) line(r role) *sums { return o.Lines[lineID{r, 0}] }

// TestJudge makes each promise untrue in the smallest way there is, where all was well.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		promise string
		where   topology
		kind    kind
		change  func(*outcome)
	}{
		{"over-admission without data loss", durable, "lost replies", func(o *outcome) { o.line(tight).Windows[ends(5)]++ }},
		{"over-admission at failover", pair, "failover to a replica that lags", func(o *outcome) {
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[ends(5)] += 1001
		}},
		{"over-admission without data loss", pair, "failover", func(o *outcome) { o.line(tight).Windows[ends(5)]++ }},
		{"over-admission without data loss", pair, "failover to a replica that lags", func(o *outcome) {
			o.Events[0].Begin = at(3.5) // of the lag
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[ends(4)]++
		}},
		{"over-admission at a cluster's election", clustered, "cluster master SIGSTOP, election", func(o *outcome) { o.line(tight).Windows[ends(5)] += tightLimit + 1 }},
		{"over-admission when all data is lost", volatile, restartedEmpty, func(o *outcome) { o.line(tight).Windows[ends(5)] += tightLimit + 1 }},
		{"over-admission of windows that are reset", durable, "lost replies", func(o *outcome) { o.line(fresh).Windows[ends(5)]++ }},
		{"over-admission of windows that are reset", durable, "lost replies", func(o *outcome) { o.line(daily).Windows[ends(5)]++ }},
		{"faults that took effect", durable, "lost replies", func(o *outcome) { o.line(daily).Counted = 0 }},
		{"faults that took effect", durable, "lost replies", func(o *outcome) {
			for _, s := range o.Lines {
				s.GiveBacks = 0
			}
		}},
		{"over-admission in an interval of a rolling limit", durable, "lost replies", func(o *outcome) { o.line(rolling).count(at(4.9), at(4.5), 1) }},
		{"days that end before midnight", durable, "lost replies", func(o *outcome) { o.line(daily).Windows[backend.Window{End: ends(5).End - 2}] = 1 }},
		{"tokens lost, no process killed", durable, "lost replies", func(o *outcome) { o.line(ledger).Charged++ }},
		{"tokens spent that were never charged", durable, "lost replies", func(o *outcome) { o.line(stock).Charged-- }},
		{"FailLocal: admitted by a process alone, at most", durable, serverStopped, func(o *outcome) { o.line(local).Alone = full.demand(local).alone() + 1 }},
		{"tokens lost with a process that is killed", volatile, processKilled, func(o *outcome) {
			o.line(ledger).Killed = 1
			o.line(ledger).KilledHeld = 10
			o.line(ledger).Charged += 10 + full.demand(ledger).beyond() + 1
		}},
		{"Stats balance and agree with the journals", durable, "lost replies", func(o *outcome) { o.line(ample).Apart = 1 }},
		{"tokens spent after their window", durable, processStopped, func(o *outcome) { o.line(tight).Late = 1 }},
		{"requests under way when a process was stopped", durable, processStopped, func(o *outcome) { o.line(tight).Overrun = callers*roles + 1 }},
		{"faults that took effect", durable, "lost replies", func(o *outcome) { o.Events[0].Active = 0 }},
		{"clock steps and resets: admitted in all", clocked, "server's clock forward", func(o *outcome) { o.line(tight).Spent += 4 * tightLimit }},
		{"clock steps and resets: admitted in all", clocked, clockBack, func(o *outcome) { o.line(tight).Windows[backend.Window{End: 1}] = 2*tightLimit + 1 }},
		{"clock steps: longest time without a token", clocked, clockBack, func(o *outcome) { o.Events[0].Starved = 2 * shortWindow }},
		{"recovery after a cluster's election", clustered, "cluster master SIGKILL, election", func(o *outcome) { o.Events[0].Recovery = recoveryBar + 1 }},
		{"recovery after any other fault", durable, serverStopped, func(o *outcome) { o.Events[0].Recovery = recoveryBar + 1 }},
		{"errors to callers while slots move", clustered, resharded, func(o *outcome) { o.Events[0].Failed = 1 }},
		{"errors on shards that are well", sharded, serverStopped, func(o *outcome) { o.Events[0].Elsewhere = 1 }},
		{"server hung: p99.9 of callers with stock", durable, serverStopped, func(o *outcome) {
			fill(o.Calm, fromStock, time.Microsecond)
			fill(o.Events[0], fromStock, time.Second)
		}},
		{"server hung: callers without stock, p99", durable, serverStopped, func(o *outcome) { fill(o.Events[0], byPolicy, time.Second) }},
		{"server hung: the same once the breaker is open, median", durable, serverStopped, func(o *outcome) { fill(o.Events[0], byBreaker, time.Millisecond) }},
		{"extra commands while a shard fails", durable, shardFails, func(o *outcome) { o.Events[0].Calls, o.Events[0].Active = 100, 111+repeatsInVain*int64(full.Fleet) }},
	} {
		o := harmless(c.where, faultOf(c.kind))
		require.Empty(t, judge([]*outcome{o}, true).broken(), "%v on %v", c.kind, c.where)
		c.change(o)
		require.Equal(t, []string{c.promise}, judge([]*outcome{o}, true).broken())
	}
}

func fill(e *event, a answer, d time.Duration) {
	for range 1000 {
		e.wait(a, d)
	}
}

// TestPlans: every kind of fault is in a run.
func TestPlans(t *testing.T) {
	for _, plan := range [][]scenario{scenarios(brief, 7, true), scenarios(full, 7, false)} {
		var kinds []kind
		for _, sc := range plan {
			kinds = append(kinds, sc.Faults...)
		}
		for _, f := range faults {
			require.Contains(t, kinds, f.kind)
		}
	}
}

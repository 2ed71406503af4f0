package torture

import (
	"bytes"
	"encoding/gob"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// epoch is when the made-up scenarios begin.
var epoch = time.UnixMilli(1_700_000_000_000)

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
		s := &sums{Windows: make(map[int64]int64), Allowed: 1, Denied: 1}
		d := o.Scenario.demand(r)
		if o.Scenario.Loses == elected || o.Scenario.Loses == all {
			e.Lost[r] = d.limit.Tokens
		}
		switch {
		case r == daily:
			s.Open, s.Settled, s.Counted, s.Resets = at(5+24*60*60).UnixMilli(), 10, 5, 1
			s.Spent, s.Charged = 2*d.limit.Tokens, d.limit.Tokens+5
			s.Windows[s.Open], s.Windows[at(5).UnixMilli()] = d.limit.Tokens, d.limit.Tokens
		case d.rolls:
			for i := range 10 {
				s.Windows[at(float64(i+1)).UnixMilli()] = min(d.limit.Tokens, d.tokens)
				s.Spent += min(d.limit.Tokens, d.tokens)
			}
		default:
			s.Spent, s.Settled, s.Refunded, s.Charged = 5000, 500, 1000, 4500
			s.Windows[at(3600).UnixMilli()] = s.Spent
		}
		o.Lines[lineID{r, 0}] = s
	}
	return o
}

func (o *outcome) line(r role) *sums { return o.Lines[lineID{r, 0}] }

// during is the window in which the fault happens.
func during(r role) (end int64, limit int64) {
	return at(5).UnixMilli(), full.demand(r).limit.Tokens
}

func TestJudgeFindsNothingWhereNothingIs(t *testing.T) {
	for _, f := range faults {
		for _, where := range f.on {
			v := judge([]*outcome{harmless(where, f)}, true)
			assert.Empty(t, v.broken(), "%v on %v", f.kind, where)
		}
	}
}

// TestJudgeFindsSabotage makes each promise untrue in the smallest way there is.
func TestJudgeFindsSabotage(t *testing.T) {
	for name, c := range map[string]struct {
		where   topology
		kind    kind
		change  func(*outcome)
		promise string
	}{
		"a token too many": {durable, "lost replies", func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()]++
		}, "over-admission without data loss"},
		"a token too many in a calm window": {pair, "failover to a replica that lags", func(o *outcome) {
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(9).UnixMilli()]++
		}, "over-admission without data loss"},
		"two windows at a time": {durable, "server SIGKILL, back with its data", func(o *outcome) {
			o.line(tight).Windows[at(5.5).UnixMilli()] = 1
		}, "over-admission without data loss"},
		"more than was not replicated": {pair, "failover to a replica that lags", func(o *outcome) {
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(5).UnixMilli()] += 1001
		}, "over-admission at failover"},
		"more than holders could not know of": {pair, "failover to a replica that lags", func(o *outcome) {
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(5).UnixMilli()] += 21
		}, "over-admission at failover"},
		"a failover that lost nothing": {pair, "failover", func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()]++
		}, "over-admission without data loss"},
		"a failover that comes too late to be the reason": {pair, "failover to a replica that lags", func(o *outcome) {
			o.Events[0].Begin = at(3.5) // of the lag
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(4).UnixMilli()]++
		}, "over-admission without data loss"},
		"two limits more for one election": {clustered, "cluster master SIGSTOP, election", func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()] += tightLimit + 1
		}, "over-admission at a cluster's election"},
		"two limits more for one restart": {volatile, restartedEmpty, func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()] += tightLimit + 1
		}, "over-admission when all data is lost"},
		"a token too many in a window that was reset": {durable, "lost replies", func(o *outcome) {
			o.line(fresh).Windows[at(5).UnixMilli()]++
		}, "over-admission of windows that are reset"},
		"a token too many on a day": {durable, "lost replies", func(o *outcome) {
			o.line(daily).Windows[at(5).UnixMilli()]++
		}, "over-admission of windows that are reset"},
		"a window that nobody has reset": {durable, "lost replies", func(o *outcome) {
			o.line(daily).Resets = 0
			o.line(fresh).Resets = 1
			o.line(daily).Spent++
		}, "clock steps and resets: admitted in all"},
		"windows that are reset more often than they were": {durable, "lost replies", func(o *outcome) {
			o.line(fresh).Spent += 2*tightLimit + 1
		}, "clock steps and resets: admitted in all"},
		"a day's token that was never charged": {durable, "lost replies", func(o *outcome) {
			o.line(daily).Charged = tightLimit - 1
		}, "tokens spent that were never charged"},
		"a settlement for an earlier window that was charged twice": {durable, "lost replies", func(o *outcome) {
			o.line(daily).Charged = tightLimit + 11
		}, "tokens lost, no process killed"},
		"settlements for earlier windows that never counted": {durable, "lost replies", func(o *outcome) {
			o.line(daily).Counted = 0
		}, "faults that took effect"},
		"a midnight that never came": {durable, "lost replies", func(o *outcome) {
			o.Scenario.Midnight += 24 * 60 * 60
			delete(o.line(daily).Windows, at(5+24*60*60).UnixMilli())
			o.line(daily).Windows[at(5).UnixMilli()-1] = 1
			o.line(daily).Open, o.line(daily).Charged = at(5).UnixMilli(), tightLimit
		}, "faults that took effect"},
		"a day that ends too soon": {durable, "lost replies", func(o *outcome) {
			o.line(daily).Windows[at(5).UnixMilli()-2] = 1
		}, "days that end before midnight"},
		"a token charged and not to be found": {durable, "lost replies", func(o *outcome) {
			o.line(ledger).Charged++
		}, "tokens lost, no process killed"},
		"a token that was never charged": {durable, "lost replies", func(o *outcome) {
			o.line(stock).Charged--
		}, "tokens spent that were never charged"},
		"an outage that was free": {durable, serverStopped, func(o *outcome) {
			o.line(open).Charged--
		}, "tokens spent that were never charged"},
		"an outage that cost more than the share": {durable, serverStopped, func(o *outcome) {
			o.line(local).Alone = full.demand(local).alone() + 1
		}, "FailLocal: admitted by a process alone, at most"},
		"a killed process that took too much along": {volatile, processKilled, func(o *outcome) {
			o.line(ledger).Killed = 1
			o.line(ledger).KilledHeld = 10
			o.line(ledger).Charged += 10 + full.demand(ledger).beyond() + 1
		}, "tokens lost with a process that is killed"},
		"Stats that do not balance": {durable, "lost replies", func(o *outcome) {
			o.line(ample).Apart = 1
		}, "Stats balance and agree with the journals"},
		"a Close that failed": {durable, "lost replies", func(o *outcome) {
			o.line(ample).Unclean = []string{"away"}
		}, "Stats balance and agree with the journals"},
		"a late token": {durable, processStopped, func(o *outcome) {
			o.line(tight).Late = 1
		}, "tokens spent after their window"},
		"two late requests of a goroutine": {durable, processStopped, func(o *outcome) {
			o.line(tight).Overrun = callers*roles + 1
		}, "requests under way when a process was stopped"},
		"a fault that never took effect": {durable, "lost replies", func(o *outcome) {
			o.Events[0].Active = 0
		}, "faults that took effect"},
		"a limit that was never reached": {durable, "lost replies", func(o *outcome) {
			o.line(tight).Denied = 0
		}, "faults that took effect"},
		"a step of the clock worth two limits": {clocked, "server's clock forward", func(o *outcome) {
			o.line(tight).Spent += 4 * tightLimit
		}, "clock steps and resets: admitted in all"},
		"a window of two limits, the clock being set forward": {clocked, "server's clock forward", func(o *outcome) {
			o.line(tight).Windows[1] = 2 * tightLimit
		}, "clock steps and resets: admitted in all"},
		"a window of three limits, the clock being set back once": {clocked, clockBack, func(o *outcome) {
			o.line(tight).Windows[1] = 2*tightLimit + 1
		}, "clock steps and resets: admitted in all"},
		"a starved window": {clocked, clockBack, func(o *outcome) {
			o.Events[0].Starved = 2 * shortWindow
		}, "clock steps: longest time without a token"},
		"a cluster that is forgotten": {clustered, "cluster master SIGKILL, election", func(o *outcome) {
			o.Events[0].Recovery = recoveryBar + 1
		}, "recovery after a cluster's election"},
		"a server that is forgotten": {durable, serverStopped, func(o *outcome) {
			o.Events[0].Recovery = recoveryBar + 1
		}, "recovery after any other fault"},
		"an error while slots move": {clustered, resharded, func(o *outcome) {
			o.Events[0].Failed = 1
		}, "errors to callers while slots move"},
		"a neighbour's fault": {sharded, serverStopped, func(o *outcome) {
			o.Events[0].Elsewhere = 1
		}, "errors on shards that are well"},
		"callers with stock who wait": {durable, serverStopped, func(o *outcome) {
			fill(o.Calm, fromStock, time.Microsecond)
			fill(o.Events[0], fromStock, time.Second)
		}, "server hung: p99.9 of callers with stock"},
		"callers without who wait for long": {durable, serverStopped, func(o *outcome) {
			fill(o.Events[0], byPolicy, time.Second)
		}, "server hung: callers without stock, p99"},
		"a breaker that is asked for long": {durable, serverStopped, func(o *outcome) {
			fill(o.Events[0], byBreaker, time.Millisecond)
		}, "server hung: the same once the breaker is open, median"},
		"commands that are repeated": {durable, shardFails, func(o *outcome) {
			o.Events[0].Calls, o.Events[0].Active = 100, 111+repeatsInVain*int64(full.Fleet)
		}, "extra commands while a shard fails"},
	} {
		o := harmless(c.where, faultOf(c.kind))
		c.change(o)
		require.Equal(t, []string{c.promise}, judge([]*outcome{o}, true).broken(), name)
	}
}

func fill(e *event, a answer, d time.Duration) {
	for range 1000 {
		e.wait(a, d)
	}
}

// TestJudgeAllowsWhatWasPromised is the other side of each bound.
func TestJudgeAllowsWhatWasPromised(t *testing.T) {
	o := harmless(pair, faultOf("failover to a replica that lags"))
	end, limit := during(tight)
	o.Events[0].Lost[tight] = 1000
	o.line(tight).Windows[end] = limit + 20
	require.Empty(t, judge([]*outcome{o}, true).broken())

	o = harmless(volatile, faultOf(restartedEmpty))
	o.line(tight).Windows[at(5.5).UnixMilli()] = 0 // the store opened another, too soon
	o.line(tight).Windows[end] = limit
	delete(o.line(tight).Windows, at(6).UnixMilli())
	require.Empty(t, judge([]*outcome{o}, true).broken())

	o = harmless(durable, faultOf(shardFails))
	o.Events[0].Calls, o.Events[0].Active = extraLeast-1, 2*extraLeast // too few to tell
	require.Empty(t, judge([]*outcome{o}, true).broken())

	o = harmless(volatile, faultOf(processKilled))
	o.line(open).Killed = 1
	o.line(open).Charged-- // admitted without the store, which was never told
	require.Empty(t, judge([]*outcome{o}, true).broken())

	o = harmless(clustered, faultOf(resharded))
	o.Events[0].Failed = 10
	fill(o.Events[0], wakeUp, full.Timeout) // by the machine
	require.Empty(t, judge([]*outcome{o}, true).broken())

	o = harmless(durable, faultOf("lost replies"))
	o.line(ledger).Charged++
	o.line(ledger).Unknown = 1 // of a call that must not be repeated
	require.Empty(t, judge([]*outcome{o}, true).broken())
}

// TestJournalTellsWhatHappened writes a journal as a process does, which is killed
// while it writes, and reads it as the runner does.
func TestJournalTellsWhatHappened(t *testing.T) {
	var pipe bytes.Buffer
	journal := gob.NewEncoder(&pipe)
	note := func(r record) { require.NoError(t, journal.Encode(r)) }
	key, end := lineID{local, 2}, epoch.Add(shortWindow)
	tell := func(n int64, r reservoir.Result, err string, begin time.Time, took time.Duration) {
		r.Reset = end
		note(record{Key: key, N: n, Result: r, Err: err, At: begin, Took: took})
	}
	admitted := reservoir.Result{Allowed: true, Source: reservoir.Local}
	note(record{Key: key, What: called, At: at(0.5), N: 9})
	note(record{Key: key, What: called, At: at(0.6), N: 8, Err: "away"})
	tell(7, admitted, "", epoch, time.Microsecond)
	tell(3, admitted, "", epoch, time.Microsecond)
	tell(5, admitted, "", end.Add(-time.Millisecond), time.Second)     // stopped in between
	tell(2, admitted, "", end.Add(time.Millisecond), time.Microsecond) // late
	tell(1, reservoir.Result{}, "", epoch, time.Microsecond)           // refused
	tell(1, reservoir.Result{}, "away", epoch, 100*time.Millisecond)   // no decision
	tell(6, reservoir.Result{Allowed: true, Source: reservoir.Fallback}, "", epoch, 0)
	note(record{Key: key, What: settled, N: -3})
	note(record{Key: key, What: settled, N: 2})
	note(record{Key: key, What: changed, Away: true})
	whole := pipe.Len()
	tell(4, admitted, "", epoch, 0)
	pipe.Truncate((whole + pipe.Len()) / 2)

	o, l := newOutcome(scenario{Parts: 3}), new(line)
	read(&pipe, func(r *record) { o.add(l, r) })
	s := o.Lines[key]
	s.end(l, true)
	require.Equal(t, &sums{
		Allowed: 4, Denied: 1, Spent: 23, Settled: 2, Refunded: 3, Alone: 6, Late: 2, Overrun: 1,
		Windows: map[int64]int64{end.UnixMilli(): 23}, Killed: 1, KilledHeld: 8,
	}, s)
	require.True(t, l.LastOK.Equal(at(0.5)))
	require.True(t, l.Away)
	require.Equal(t, map[string]int64{"away": 1}, o.Calm.Errors)
}

// TestOverAdmissionInAJournalIsFlagged goes the whole way from requests to the
// verdict: one token more than the limit, in two processes.
func TestOverAdmissionInAJournalIsFlagged(t *testing.T) {
	for excess := range int64(2) {
		o := harmless(durable, faultOf("lost replies"))
		s := &sums{Windows: make(map[int64]int64), Denied: 1}
		o.Lines[lineID{tight, 0}] = s
		for range 2 {
			l, n := new(line), tightLimit/2+excess
			o.add(l, &record{N: n, At: epoch, Result: reservoir.Result{Allowed: true, Reset: at(1)}})
			o.add(l, &record{N: 1, At: at(1), Result: reservoir.Result{Allowed: true, Reset: at(2)}})
			o.add(l, &record{What: closed, Stats: &reservoir.Stats{Taken: n + 1, Spent: n + 1}})
			s.end(l, false)
		}
		v := judge([]*outcome{o}, true)
		if excess == 0 {
			require.Empty(t, v.broken())
			continue
		}
		require.Equal(t, []string{"over-admission without data loss"}, v.broken())
		require.Contains(t, report(v), "BROKEN: over-admission without data loss: durable server: tight limit on part 0")
	}
}

// TestPlans: the same seed is the same run, and every kind of fault is in it.
func TestPlans(t *testing.T) {
	sample := func(seed uint64) []scenario { return scenarios(brief, seed, true) }
	round := func(seed uint64) []scenario { return scenarios(full, seed, false) }
	require.Equal(t, sample(7), sample(7))
	require.Equal(t, round(7), round(7))
	var long []kind
	for _, sc := range round(7) {
		long = append(long, sc.Faults...)
	}
	var short []kind
	for _, sc := range sample(7) {
		short = append(short, sc.Faults...)
	}
	require.Len(t, short, len(faults), "each kind once")
	for _, f := range faults {
		require.Contains(t, short, f.kind)
		require.Contains(t, long, f.kind)
	}
	require.NotEqual(t, sample(7), sample(8))
	require.NotEqual(t, round(7), round(8))
}

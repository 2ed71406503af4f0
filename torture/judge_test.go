package torture

import (
	"errors"
	"path/filepath"
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
func harmless(where topology, k kind) *outcome {
	o := &outcome{
		Scenario: scenario{Topology: where, Pace: 1, Timeout: fetchTimeout}, Parts: 1, Elapsed: 10 * shortWindow,
		Lines:  make(map[lineID]*sums),
		Events: []event{{Kind: k, Begin: at(4.2), End: at(4.4), Active: 1, Recovery: shortWindow / 10}},
	}
	for r := range role(roles) {
		s := &sums{Windows: make(map[int64]int64), Allowed: 1, Denied: 1}
		if d := demandOf(r, 1, 1); r.windowed() {
			for i := range 10 {
				s.Windows[at(float64(i+1)).UnixMilli()] = min(d.limit.Tokens, d.tokens)
				s.Spent += min(d.limit.Tokens, d.tokens)
			}
		} else {
			s.Spent, s.Refunded, s.Charged = 5000, 1000, 4000
			s.Windows[at(3600).UnixMilli()] = s.Spent
		}
		o.Lines[lineID{r, 0}] = s
	}
	return o
}

func (o *outcome) line(r role) *sums { return o.Lines[lineID{r, 0}] }

// during is the window in which the fault happens.
func during(r role, o *outcome) (end int64, limit int64) {
	return at(5).UnixMilli(), demandOf(r, 1, 1).limit.Tokens
}

func broken(v *verdict) (names []string) {
	for _, p := range v.list {
		if !p.Kept {
			names = append(names, p.Name)
		}
	}
	return names
}

func TestJudgeFindsNothingWhereNothingIs(t *testing.T) {
	for k, f := range faults() {
		for _, where := range f.on {
			v := judge([]*outcome{harmless(where, kind(k))}, true)
			assert.Empty(t, broken(v), "%v on %v", kind(k), where)
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
		"a token too many": {durable, lostReply, func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()]++
		}, "over-admission without data loss"},
		"a token too many in a calm window": {pair, failedOverLagging, func(o *outcome) {
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(9).UnixMilli()]++
		}, "over-admission without data loss"},
		"two windows at a time": {durable, serverKilled, func(o *outcome) {
			o.line(tight).Windows[at(5.5).UnixMilli()] = 1
		}, "over-admission without data loss"},
		"more than was not replicated": {pair, failedOverLagging, func(o *outcome) {
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(5).UnixMilli()] += 1001
		}, "over-admission at failover"},
		"more than holders could not know of": {pair, failedOverLagging, func(o *outcome) {
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(5).UnixMilli()] += 21
		}, "over-admission at failover"},
		"a failover that lost nothing": {pair, failedOver, func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()]++
		}, "over-admission without data loss"},
		"a failover that comes too late to be the reason": {pair, failedOverLagging, func(o *outcome) {
			o.Events[0].Begin = at(3.5) // of the lag
			o.Events[0].Lost[tight] = 1000
			o.line(tight).Windows[at(4).UnixMilli()]++
		}, "over-admission without data loss"},
		"two limits more for one election": {clustered, masterHung, func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()] += tightLimit + 1
		}, "over-admission at a cluster's election"},
		"two limits more for one restart": {volatile, restartedEmpty, func(o *outcome) {
			o.line(tight).Windows[at(5).UnixMilli()] += tightLimit + 1
		}, "over-admission when all data is lost"},
		"a token charged and not to be found": {durable, lostReply, func(o *outcome) {
			o.line(ledger).Charged++
		}, "tokens lost, no process killed"},
		"a token that was never charged": {durable, lostReply, func(o *outcome) {
			o.line(stock).Charged--
		}, "tokens spent that were never charged"},
		"an outage that was free": {durable, serverStopped, func(o *outcome) {
			o.line(open).Charged--
		}, "tokens spent that were never charged"},
		"an outage that cost more than the share": {durable, serverStopped, func(o *outcome) {
			o.line(local).Alone = demandOf(local, 1, 1).alone() + 1
		}, "FailLocal: admitted by a process alone, at most"},
		"a killed process that took too much along": {volatile, processKilled, func(o *outcome) {
			o.line(ledger).Killed = 1
			o.line(ledger).KilledHeld = 10
			o.line(ledger).Charged += 10 + demandOf(ledger, 1, 1).beyond() + 1
		}, "tokens lost with a process that is killed"},
		"Stats that do not balance": {durable, lostReply, func(o *outcome) {
			o.line(ample).Imbalance = 1
		}, "Stats balance and agree with the journals"},
		"a Close that failed": {durable, lostReply, func(o *outcome) {
			o.line(ample).Unclean = 1
		}, "Stats balance and agree with the journals"},
		"a late token": {durable, processStopped, func(o *outcome) {
			o.line(tight).Late = 1
		}, "tokens spent after their window"},
		"two late requests of a goroutine": {durable, processStopped, func(o *outcome) {
			o.line(tight).Overrun = callers*roles + 1
		}, "requests under way when a process was stopped"},
		"a fault that never took effect": {durable, lostReply, func(o *outcome) {
			o.Events[0].Active = 0
		}, "faults that took effect"},
		"a limit that was never reached": {durable, lostReply, func(o *outcome) {
			o.line(tight).Denied = 0
		}, "faults that took effect"},
		"a step of the clock worth two limits": {clocked, clockForward, func(o *outcome) {
			o.line(tight).Spent += 4 * tightLimit
		}, "clock steps: admitted in all"},
		"a window of two limits, the clock being set forward": {clocked, clockForward, func(o *outcome) {
			o.line(tight).Windows[1] = 2 * tightLimit
		}, "clock steps: admitted in all"},
		"a window of three limits, the clock being set back once": {clocked, clockBack, func(o *outcome) {
			o.line(tight).Windows[1] = 2*tightLimit + 1
		}, "clock steps: admitted in all"},
		"a starved window": {clocked, clockBack, func(o *outcome) {
			o.Events[0].Starved = 2 * shortWindow
		}, "clock steps: longest time without a token"},
		"a cluster that is forgotten": {clustered, masterKilled, func(o *outcome) {
			o.Events[0].Recovery = electionBar + 1
		}, "recovery after a cluster's election"},
		"a server that is forgotten": {durable, serverStopped, func(o *outcome) {
			o.Events[0].Recovery = electionBar + 1
		}, "recovery after any other fault"},
		"an error while slots move": {clustered, resharded, func(o *outcome) {
			o.Events[0].Failed = 1
		}, "errors to callers while slots move"},
		"a neighbour's fault": {sharded, serverStopped, func(o *outcome) {
			o.Events[0].Elsewhere = 1
		}, "errors on shards that are well"},
		"callers with stock who wait": {durable, serverStopped, func(o *outcome) {
			o.Latency[stock][calm][fromStock].fill(time.Microsecond)
			o.Latency[stock][serverStopped][fromStock].fill(time.Second)
		}, "server hung: p99.9 of callers with stock"},
		"callers without who wait for long": {durable, serverStopped, func(o *outcome) {
			o.Latency[ample][serverStopped][byPolicy].fill(time.Second)
		}, "server hung: callers without stock, p99"},
		"a breaker that is asked for long": {durable, serverStopped, func(o *outcome) {
			o.Latency[ample][serverStopped][byBreaker].fill(time.Millisecond)
		}, "server hung: the same once the breaker is open, median"},
		"commands that are repeated": {durable, shardFails, func(o *outcome) {
			o.Events[0].Calls, o.Events[0].Commands = 100, 111
		}, "extra commands while a shard fails"},
	} {
		o := harmless(c.where, c.kind)
		c.change(o)
		require.Equal(t, []string{c.promise}, broken(judge([]*outcome{o}, true)), name)
	}
}

func (s *spread) fill(d time.Duration) {
	s.add(bucket(d), 1000)
	s.most = max(s.most, d)
}

// TestJudgeAllowsWhatWasPromised is the other side of each bound.
func TestJudgeAllowsWhatWasPromised(t *testing.T) {
	o := harmless(pair, failedOverLagging)
	end, limit := during(tight, o)
	o.Events[0].Lost[tight] = 1000
	o.line(tight).Windows[end] = limit + 20
	require.Empty(t, broken(judge([]*outcome{o}, true)))

	o = harmless(volatile, restartedEmpty)
	o.line(tight).Windows[at(5.5).UnixMilli()] = 0 // the store opened another, too soon
	o.line(tight).Windows[end] = limit
	delete(o.line(tight).Windows, at(6).UnixMilli())
	require.Empty(t, broken(judge([]*outcome{o}, true)))

	o = harmless(durable, shardFails)
	o.Events[0].Calls, o.Events[0].Commands = extraLeast-1, 2*extraLeast // too few to tell
	require.Empty(t, broken(judge([]*outcome{o}, true)))

	o = harmless(volatile, processKilled)
	o.line(open).Killed = 1
	o.line(open).Charged-- // admitted without the store, which was never told
	require.Empty(t, broken(judge([]*outcome{o}, true)))

	o = harmless(clustered, resharded)
	o.Events[0].Failed = 10
	o.Latency[tight][resharded][wakeUp].fill(fetchTimeout) // by the machine
	require.Empty(t, broken(judge([]*outcome{o}, true)))

	o = harmless(durable, lostReply)
	o.line(ledger).Charged++
	o.line(ledger).Unknown = 1 // of a call that must not be repeated
	require.Empty(t, broken(judge([]*outcome{o}, true)))
}

// TestJournalTellsWhatHappened writes a journal as a process does, and reads it
// as the runner does, by another mapping of the file.
func TestJournalTellsWhatHappened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	write, err := openJournal(path)
	require.NoError(t, err)
	defer write.close()
	read, err := openJournal(path)
	require.NoError(t, err)
	defer read.close()

	l := &write.Lines[lineOf(tight, 0)]
	end := epoch.Add(shortWindow)
	admitted := reservoir.Result{Allowed: true, Reset: end, Source: reservoir.Local}
	l.Held.Store(9)
	write.answered(l, 7, admitted, nil, epoch, time.Microsecond)
	write.answered(l, 3, admitted, nil, epoch, time.Microsecond)
	write.answered(l, 5, admitted, nil, end.Add(-time.Millisecond), time.Second)              // stopped in between
	write.answered(l, 2, admitted, nil, end.Add(time.Millisecond), time.Microsecond)          // late
	write.answered(l, 1, reservoir.Result{Reset: end}, nil, epoch, time.Microsecond)          // refused
	write.answered(l, 1, reservoir.Result{}, errors.New("away"), epoch, 100*time.Millisecond) // no decision
	write.answered(l, 4, reservoir.Result{Allowed: true, Reset: end.Add(shortWindow)}, nil, end, 0)
	write.answered(l, 6, reservoir.Result{Allowed: true, Reset: end, Source: reservoir.Fallback}, nil, epoch, 0)

	s := sums{Windows: make(map[int64]int64)}
	s.add(&read.Lines[lineOf(tight, 0)], &worker{journal: read, killed: true})
	require.Equal(t, map[int64]int64{end.UnixMilli(): 23, end.Add(shortWindow).UnixMilli(): 4}, s.Windows)
	require.Equal(t, sums{
		Requests: 8, Allowed: 5, Denied: 1, Failed: 1, Fallback: 1, Spent: 27, Alone: 6, Late: 2, Overrun: 1,
		Windows: s.Windows, Killed: 1, KilledSpent: 27, KilledHeld: 9,
	}, s)
	require.Equal(t, int64(8), read.Beat.Load())
}

// TestOverAdmissionInAJournalIsFlagged goes the whole way from requests to the
// verdict: one token more than the limit, in two processes.
func TestOverAdmissionInAJournalIsFlagged(t *testing.T) {
	for excess := range int64(2) {
		o := harmless(durable, lostReply)
		s := &sums{Windows: make(map[int64]int64), Denied: 1}
		for range 2 {
			j, err := openJournal(filepath.Join(t.TempDir(), "journal"))
			require.NoError(t, err)
			defer j.close()
			j.State.Store(closed)
			n := tightLimit/2 + excess
			l := &j.Lines[lineOf(tight, 0)]
			j.answered(l, n, reservoir.Result{Allowed: true, Reset: at(1)}, nil, epoch, 0)
			j.answered(l, 1, reservoir.Result{Allowed: true, Reset: at(2)}, nil, at(1), 0)
			l.Stats.Taken.Store(n + 1)
			l.Stats.Spent.Store(n + 1)
			s.add(l, &worker{journal: j})
		}
		o.Lines[lineID{tight, 0}] = s
		v := judge([]*outcome{o}, true)
		if excess == 0 {
			require.Empty(t, broken(v))
			continue
		}
		require.Equal(t, []string{"over-admission without data loss"}, broken(v))
		require.Contains(t, report([]*outcome{o}, v), "BROKEN: over-admission without data loss: durable server: tight limit on part 0")
	}
}

func TestBucketsAreInOrderAndNarrow(t *testing.T) {
	last := -1
	for d := time.Duration(0); d < 1<<62; d += d/40 + 1 {
		i := bucket(d)
		require.GreaterOrEqual(t, i, last)
		require.LessOrEqual(t, d, upper(i))
		require.LessOrEqual(t, float64(upper(i)), 1.07*float64(d)+1)
		last = i
	}
}

// TestPlans: the same seed is the same run, and every kind of fault is in it.
func TestPlans(t *testing.T) {
	require.Equal(t, sample(7), sample(7))
	first, second := endless(7), endless(7)
	var long []kind
	for range courses(false) {
		sc := first()
		require.Equal(t, sc, second())
		long = append(long, sc.Faults...)
	}
	var short []kind
	for _, sc := range sample(7) {
		short = append(short, sc.Faults...)
	}
	require.Len(t, short, kinds-1, "each kind once")
	for k := calm + 1; k < kinds; k++ {
		require.Contains(t, short, k)
		require.Contains(t, long, k)
	}
	require.NotEqual(t, sample(7), sample(8))
}

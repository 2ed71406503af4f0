package torture

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// run is a scenario under way.
type run struct {
	t   testing.TB
	rng *rand.Rand
	target

	// The servers: see stage.go.
	peers   []*peer // by part; of a cluster, all nodes; of a pair, first the primary
	cluster *redistest.Cluster
	pair    *redistest.Replicated // who is the primary changes at each failover
	link    *redistest.Proxy      // by which the replica follows
	clock   *os.File              // holds the offset of the server's clock
	offset  time.Duration

	// The processes: see fleet.go.
	workers []*worker  // that make requests
	mu      sync.Mutex // guards what follows, and what it says of workers
	out     *outcome
}

const (
	patience     = 30 * time.Second // for what comes by itself, on a busy machine
	recoverLimit = 60 * time.Second

	// untilMidnight is for the start of processes, and a while of the first day.
	untilMidnight = 5 * time.Second

	// settle, or a timeout, is for how long all must have been well: what was under way
	// at a fault's end may still fail, and open a breaker.
	settle = 300 * time.Millisecond
)

// Run makes the scenario happen and returns what became of it.
func (sc scenario) Run(t testing.TB) *outcome {
	t.Helper()
	x := &run{t: t, rng: rand.New(rand.NewPCG(sc.Seed, 1)), target: target{scenario: sc}}
	x.setUp()
	x.Midnight = time.Now().Add(untilMidnight).Unix()
	x.out = newOutcome(x.scenario, x.parts())
	begin := time.Now()
	for range sc.Fleet {
		x.start()
	}
	time.Sleep(2 * shortWindow) // of calm, to compare with
	for _, k := range sc.Faults {
		x.inject(k)
	}
	x.finish()
	x.out.Elapsed = time.Since(begin)
	for _, at := range lines(x.out) {
		held := x.contents(x.peer(at.Part), at.Role, at.Part)
		at.Open, at.Charged = int64(held.Window), held.Used
	}
	return x.out
}

// span is how long a fault lasts.
func (x *run) span() time.Duration {
	return x.Span/2 + time.Duration(x.rng.Int64N(int64(x.Span)))
}

// inject makes one fault happen and waits until all have recovered.
func (x *run) inject(k kind) {
	x.t.Helper()
	e := &event{Kind: k, Part: x.rng.IntN(x.parts()), Begin: time.Now()}
	if x.Loses == elected || x.Loses == all {
		for r := range role(roles) {
			e.Lost[r] = x.demand(r, x.parts()).limit.Tokens
		}
	}
	x.locked(func() { x.out.Events = append(x.out.Events, e) })
	faultOf(k).do(x, e)
	if e.End.IsZero() { // else the fault was a longer affair
		x.recover(e)
	}
	x.locked(func() {
		e.Over = time.Now()
		x.t.Logf("%-36s part %d, active %d times, %d requests failed, recovered within %v of its end",
			k, e.Part, e.Active, e.Failed, e.Recovery.Round(time.Millisecond))
	})
}

// recover waits until all is as it was before the fault, whose end is now.
func (x *run) recover(e *event) {
	x.t.Helper()
	x.locked(func() { e.End = time.Now() })
	var why string
	var well time.Time
	recovered := func() bool {
		if x.locked(func() { why = x.unwell(e.End) }); why != "" {
			well = time.Time{}
		} else if well.IsZero() {
			well = time.Now()
		}
		return why == "" && time.Since(well) > max(settle, x.Timeout)
	}
	if !until(recoverLimit, recovered) {
		require.FailNow(x.t, "no recovery within "+recoverLimit.String()+" from: "+string(e.Kind), why)
	}
	e.Recovery = well.Sub(e.End)
}

// unwell tells who has not recovered: each process has had an answer on every part since
// the fault's end, and no breaker is open. The ledger's calls are frequent enough to
// tell; who lives on stock may not ask for long. The caller holds x.mu.
func (x *run) unwell(since time.Time) string {
	for i, w := range x.workers {
		for id, l := range w.lines {
			if id.Role == ledger && l.LastOK.Before(since) {
				return fmt.Sprintf("process %d, part %d: the last good call was %v before the end", i, id.Part, since.Sub(l.LastOK))
			}
			if l.Away {
				return fmt.Sprintf("process %d, part %d: the breaker of %v is open", i, id.Part, id.Role)
			}
		}
	}
	return ""
}

// await polls until ok, and fails the test when patience is over.
func (x *run) await(what string, ok func() bool) {
	x.t.Helper()
	require.True(x.t, until(patience, ok), "not within %v: %s", patience, what)
}

// until polls until ok, for so long at most, and reports whether it was.
func until(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

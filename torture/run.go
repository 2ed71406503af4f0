package torture

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scenario is a topology and what befalls it. It follows from the seed.
type scenario struct {
	Topology topology
	Faults   []kind
	Seed     uint64
	Fleet    int           // processes
	Pace     float64       // share of the full rate of requests
	Timeout  time.Duration // of a fetch
	Span     time.Duration // of a fault, about
	Hang     time.Duration // of a server that is stopped
	Slots    int           // that are resharded
	Skew     int64         // a deliberate bug; see skewed
}

// run is a scenario under way.
type run struct {
	t      testing.TB
	rng    *rand.Rand
	stage  *stage
	fleet  *fleet
	sc     scenario
	offset time.Duration // of the server's clock
}

const (
	recoverLimit = 60 * time.Second
	settle       = 300 * time.Millisecond // between faults
)

// Run makes the scenario happen and returns what became of it.
func (sc scenario) Run(t testing.TB) *outcome {
	t.Helper()
	x := &run{t: t, sc: sc, rng: rand.New(rand.NewPCG(sc.Seed, 1)), stage: newStage(t, sc)}
	x.fleet = startFleet(t, x.stage.target)
	begin := time.Now()
	time.Sleep(2 * shortWindow) // of calm, to compare with
	for _, k := range sc.Faults {
		x.inject(k)
		time.Sleep(settle)
	}
	x.fleet.finish()
	o := x.fleet.out
	o.Elapsed = time.Since(begin)
	for _, at := range lines(o) {
		if !at.Role.windowed() {
			at.Charged = x.stage.contents(x.stage.peer(at.Part), at.Role, at.Part).Used
		}
	}
	return o
}

// span is how long a fault lasts.
func (x *run) span() time.Duration {
	return x.sc.Span/2 + time.Duration(x.rng.Int64N(int64(x.sc.Span)))
}

// inject makes one fault happen and waits until all have recovered.
func (x *run) inject(k kind) {
	x.t.Helper()
	e := event{Kind: k, Part: x.rng.IntN(x.stage.target.parts()), Begin: time.Now()}
	failed, there := x.fleet.sum(failedOf), x.fleet.sum(failedOf, e.Part)
	x.fleet.enter(k)
	k.fault().do(x, &e)
	if e.Recovery == 0 { // else the fault was a longer affair
		if e.End.IsZero() {
			e.End = time.Now()
		}
		x.recover(&e)
	}
	x.fleet.enter(calm)
	e.Failed = x.fleet.sum(failedOf) - failed
	e.Elsewhere = e.Failed - (x.fleet.sum(failedOf, e.Part) - there)
	x.fleet.out.Events = append(x.fleet.out.Events, e)
	x.t.Logf("%-36s part %d, active %d times, %d requests failed, recovered within %v of its end",
		k, e.Part, e.Active, e.Failed, e.Recovery.Round(time.Millisecond))
	if e.Elsewhere > 0 && x.sc.Topology == sharded { // as it should not be: why?
		list := x.fleet.since(asked)
		for _, r := range list[:min(len(list), enough)] {
			x.t.Logf("%v limit on part %d, %v on, after %v: %s", r.Key.Role, r.Key.Part, r.At.Sub(e.Begin), r.Took, r.Err)
		}
	}
}

// recover waits until all is as it was before the fault.
func (x *run) recover(e *event) {
	x.t.Helper()
	for limit := e.End.Add(recoverLimit); ; time.Sleep(2 * time.Millisecond) {
		why := x.unwell(e.End)
		if why == "" {
			break
		}
		if time.Now().After(limit) {
			require.FailNow(x.t, "no recovery within "+recoverLimit.String()+" from: "+e.Kind.String(), why)
		}
	}
	e.Recovery = max(time.Since(e.End), 1)
}

// enough is how many failures it takes to see what is wrong.
const enough = 50

// quiet is for how long no request has failed where a breaker is not open any
// more: there are many in that time.
const quiet = 100 * time.Millisecond

// unwell tells who has not recovered: each process has had an answer on every
// part since the fault's end, and no requests fail any more. The ledger's calls
// are frequent enough to tell; who lives on stock may not ask for long.
func (x *run) unwell(since time.Time) string {
	x.fleet.mu.Lock()
	defer x.fleet.mu.Unlock()
	for i, w := range x.fleet.alive() {
		for id, l := range w.lines {
			if id.Role == ledger && l.LastOK.Before(since) {
				return fmt.Sprintf("process %d, part %d: the last good call was %v before the end", i, id.Part, since.Sub(l.LastOK))
			}
			if ago := time.Since(l.LastBad); id.Role < stock && l.Away && ago < quiet {
				return fmt.Sprintf("process %d, part %d: requests for %v failed %v ago, the breaker being open", i, id.Part, id.Role, ago)
			}
		}
	}
	return ""
}

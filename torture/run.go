package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// run is a scenario under way.
type run struct {
	scenario
	t   testing.TB
	rng *rand.Rand

	// The servers: see stage.go.
	peers   []*peer // by part; of a cluster, all nodes; of a pair, first the primary
	cluster *redistest.Cluster
	shards  *sharding.Store       // used only for the places of names
	pair    *redistest.Replicated // its Primary changes at each failover
	link    *redistest.Proxy      // between the primary and the replica
	clock   *os.File              // holds the offset of the server's clock
	offset  time.Duration

	busy    context.Context // ends when the processes have to finish
	finish  context.CancelFunc
	workers []*worker  // that make requests
	mu      sync.Mutex // guards out and the workers' lines
	out     *outcome
}

// worker is one process: this binary, executed again.
type worker struct {
	*redistest.Process
	reading sync.WaitGroup // until the process has ended and its journal is read
	lines   map[lineID]*line
}

const (
	patience = time.Minute // for events, on a busy machine

	// untilMidnight covers the start of the processes and a part of the first day.
	untilMidnight = 5 * time.Second

	// settle, or the fetch timeout if that is longer, is how long all must have been
	// well, because calls in flight at a fault's end may still fail and open a circuit.
	settle = 300 * time.Millisecond
)

// Run runs the scenario and returns the outcome.
func (sc scenario) Run(t testing.TB) *outcome {
	t.Helper()
	x := &run{t: t, rng: rand.New(rand.NewPCG(sc.Seed, 1)), scenario: sc}
	x.busy, x.finish = context.WithCancel(t.Context())
	x.setUp()
	x.Midnight = time.Now().Add(untilMidnight).Unix()
	x.out = newOutcome(x.scenario)
	begin := time.Now()
	for range sc.Fleet {
		x.start()
	}
	time.Sleep(2 * shortWindow) // of calm, to compare with
	for _, k := range sc.Faults {
		x.inject(k)
	}
	x.finish()
	for _, w := range slices.Clone(x.workers) {
		x.end(w, false)
	}
	x.out.Elapsed = time.Since(begin)
	for id, s := range x.out.Lines {
		held := x.contents(x.peer(id.Part), id.Role, id.Part)
		s.Open, s.Charged = int64(held.Window), held.Used
	}
	return x.out
}

// span returns a random duration for a fault.
func (x *run) span() time.Duration {
	return x.Span/2 + time.Duration(x.rng.Int64N(int64(x.Span)))
}

// inject makes one fault happen and waits until all processes have recovered.
func (x *run) inject(k kind) {
	x.t.Helper()
	e := &event{Kind: k, Part: x.rng.IntN(x.Parts), Begin: time.Now()}
	if x.Loses == elected || x.Loses == all {
		for r := range role(roles) {
			e.Lost[r] = x.demand(r).limit.Tokens
		}
	}
	x.locked(func() { x.out.Events = append(x.out.Events, e) })
	e.Active = faultOf(k).do(x, e)
	if e.End.IsZero() { // otherwise do has called recover
		x.recover(e)
	}
	x.locked(func() {
		e.Over = time.Now()
		x.t.Logf("%-36s part %d, active %d times, %d requests failed, recovered within %v of its end",
			k, e.Part, e.Active, e.Failed, e.Recovery.Round(time.Millisecond))
	})
}

// recover sets the fault's end to now and waits until all processes have recovered.
func (x *run) recover(e *event) {
	x.t.Helper()
	x.locked(func() { e.End = time.Now() })
	var why string
	well := e.End // since when all are
	recovered := func() bool {
		if x.locked(func() { why = x.unwell(e.End) }); why != "" {
			well = time.Now()
		}
		return time.Since(well) > max(settle, x.Timeout)
	}
	require.True(x.t, until(patience, recovered), "no recovery within %v from: %v: %s", patience, e.Kind, why)
	e.Recovery = well.Sub(e.End)
}

// unwell says what has not recovered, or nothing if each process has had a reply on every
// part since the fault's end and no circuit is open. It looks at replies of the role
// ledger, which calls often; others may live on stock for long. The caller holds x.mu.
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

// until polls until ok, but no longer than limit, and reports whether it was ok.
func until(limit time.Duration, ok func() bool) bool {
	for end := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// start adds a process and returns when it makes requests.
func (x *run) start() {
	x.t.Helper()
	at := x.scenario
	at.Seed = x.rng.Uint64()
	text, err := json.Marshal(at)
	require.NoError(x.t, err)
	out, write, err := os.Pipe()
	require.NoError(x.t, err)
	defer write.Close() // the process has its own
	cmd := exec.CommandContext(x.busy, os.Args[0])
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience // and then SIGKILL
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text), "GOMAXPROCS=2")
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	w := &worker{lines: make(map[lineID]*line)}
	for id := range x.out.Lines {
		w.lines[id] = new(line)
	}
	w.Process = redistest.Spawn(x.t, cmd)
	x.t.Cleanup(func() {
		w.Kill()
		w.reading.Wait()
	})
	w.reading.Go(func() {
		defer out.Close()
		read(out, func(r *record) { x.locked(func() { x.out.add(w.lines[r.Key], r) }) })
	})
	x.workers = append(x.workers, w)
	x.await("the process makes requests", func() bool { return !told(x, &w.lines[lineID{}].Last).IsZero() })
}

// locked calls do with x.mu held.
func (x *run) locked(do func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	do()
}

// told reads a value that x.mu guards.
func told[T any](x *run, at *T) (value T) {
	x.locked(func() { value = *at })
	return value
}

// end waits until a process has ended and its journal is read, and adds its totals.
func (x *run) end(w *worker, killed bool) {
	w.reading.Wait()
	x.locked(func() {
		for id, l := range w.lines {
			assert.True(x.t, killed || l.Closed, "a process ended without closing, or was late by more than %v", patience)
			x.out.Lines[id].end(l, killed)
		}
	})
	x.workers = slices.DeleteFunc(x.workers, func(other *worker) bool { return other == w })
}

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

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// topology is a set-up of servers.
type topology string

const (
	durable   topology = "durable server"  // it keeps all its data when it is killed
	volatile  topology = "volatile server" // it keeps none
	clocked   topology = "server with a clock"
	pair      topology = "primary and replica"
	clustered topology = "cluster of six"
	sharded   topology = "three shards"
)

var topologies = []topology{durable, volatile, clocked, pair, clustered, sharded}

// peer is a server, the proxy before it, and a store that bypasses the proxy.
type peer struct {
	*redistest.Server
	proxy *redistest.Proxy
	store *redisstore.Store
}

// aof makes a server log each command before it replies. It does not sync the file,
// because a failure of the machine is not among the faults.
var aof = []string{"--appendonly", "yes", "--appendfsync", "no"}

// run is a scenario under way.
type run struct {
	scenario
	t   testing.TB
	rng *rand.Rand

	// The servers.
	peers   []*peer              // by part; of a cluster, all nodes; of a pair, first the primary
	nodeOf  func(key string) int // index of the peer that has the key now, or -1 while none has
	cluster *redistest.Cluster
	pair    *redistest.Replicated // its Primary changes at each failover
	link    *redistest.Proxy      // between the primary and the replica
	clock   *redistest.Clock      // of the server

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

const patience = time.Minute // for events, on a busy machine

// Run runs the scenario and returns the outcome.
func (sc scenario) Run(t testing.TB) *outcome {
	t.Helper()
	x := &run{t: t, rng: rand.New(rand.NewPCG(sc.Seed, 1)), scenario: sc}
	x.busy, x.finish = context.WithCancel(t.Context())
	x.setUp()
	x.Midnight = time.Now().Add(5 * time.Second).Unix() // the processes start, and use a part of the first day
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
	x.t.Logf("requests that failed while there was no fault: %v", x.out.Calm.Errors)
	for id, s := range x.out.Lines {
		held := x.contents(x.peer(id.Part), id.Role, id.Part)
		s.Open, s.Charged = held.Window, held.Used
	}
	return x.out
}

// setUp starts the servers and records where processes find them.
func (x *run) setUp() {
	x.t.Helper()
	x.Via = make(map[string]string)
	x.nodeOf = func(string) int { return 0 }
	switch x.Topology {
	case durable:
		x.add(redistest.Start(x.t, aof...))
	case volatile:
		x.add(redistest.Start(x.t))
	case clocked:
		server, clock := redistest.StartClocked(x.t)
		x.clock = clock
		x.add(server)
	case pair:
		x.pair = redistest.StartReplicated(x.t, 1)
		x.link = x.pair.Link(0)
		x.add(x.pair.Primary)
		x.add(x.pair.Replicas[0]).proxy = x.peers[0].proxy
		x.Addrs = x.Addrs[:1]
	case clustered:
		x.cluster = redistest.StartCluster(x.t, 3, 1)
		for _, node := range x.cluster.Nodes {
			x.add(node)
		}
		x.Parts = 3
		x.nodeOf = func(key string) int { return slices.Index(x.cluster.Nodes, x.cluster.NodeOf(key)) }
	case sharded:
		for range shardNames {
			x.add(redistest.Start(x.t, aof...))
		}
		x.Parts = 3
		store := x.open().(*sharding.Store) // used only for the places of names
		x.nodeOf = func(key string) int { return slices.Index(shardNames, store.Shard(key)) }
	}
	for r := range role(roles) { // try names until each part has one
		for i := 0; len(x.Keys[r]) < x.Parts; i++ {
			if key := fmt.Sprint(r, "-", i); x.nodeOf(key) == len(x.Keys[r]) {
				x.Keys[r] = append(x.Keys[r], key)
			}
		}
	}
}

// add puts a proxy before a server and sends the processes there.
func (x *run) add(server *redistest.Server) *peer {
	p := &peer{
		Server: server, proxy: redistest.NewProxy(x.t, server.Addr()),
		store: redisstore.New(server.Client(func(o *redis.Options) { o.DialTimeout, o.ReadTimeout = 5*time.Second, 5*time.Second })),
	}
	x.peers, x.Addrs = append(x.peers, p), append(x.Addrs, server.Addr())
	x.Via[server.Addr()] = p.proxy.Addr()
	return p
}

// peer returns the present server of a part, or nil while none serves it.
func (x *run) peer(part int) *peer {
	if i := x.nodeOf(x.Keys[tight][part]); i >= 0 {
		return x.peers[i]
	}
	return nil
}

// contents returns what a server holds for a role's key on a part, which has one counter.
func (x *run) contents(at *peer, r role, part int) (held backend.Contents) {
	x.t.Helper()
	all, err := at.store.Inspect(x.t.Context(), x.Keys[r][part])
	require.NoError(x.t, err)
	require.LessOrEqual(x.t, len(all), 1)
	for _, held = range all {
	}
	return held
}

// unreplicated returns how many tokens of a key the primary has granted without the
// replica's knowledge, while all traffic is held. What one client has returned does not lower
// it, because others may have got those tokens.
func (x *run) unreplicated(r role) int64 {
	x.t.Helper()
	there, here := x.contents(x.peers[0], r, 0), x.contents(x.peers[1], r, 0)
	if there.Window != here.Window {
		return there.Used
	}
	lost, mine := max(apart(there)-apart(here), 0), make(map[string]int64)
	for _, a := range here.Clients {
		mine[a.Client] = a.Mine
	}
	for _, a := range there.Clients {
		lost += max(a.Mine-mine[a.Client], 0)
	}
	return lost
}

// apart returns how many tokens are charged to no account.
func apart(c backend.Contents) int64 {
	n := c.Used
	for _, a := range c.Clients {
		n -= a.Mine
	}
	return n
}

// span returns a random duration for a fault.
func (x *run) span() time.Duration {
	return x.Span/2 + time.Duration(x.rng.Int64N(int64(x.Span)))
}

// inject makes one fault happen and waits until all processes have recovered.
func (x *run) inject(k kind) {
	x.t.Helper()
	e := newEvent(k, x.rng.IntN(x.Parts))
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
		x.t.Logf("%-36s part %d, active %d times, %d requests failed, recovered within %v of its end; %v",
			k, e.Part, e.Active, e.Failed, e.Recovery, e.Errors)
	})
}

// recover sets the fault's end to now and waits until all processes have recovered, and
// been well for a while, because calls in flight at the end may still fail and open a
// circuit.
func (x *run) recover(e *event) {
	x.t.Helper()
	var why string
	well := time.Now() // since when all are
	x.locked(func() { e.End = well })
	recovered := func() bool {
		if x.locked(func() { why = x.unwell(e.End) }); why != "" {
			well = time.Now()
		}
		return time.Since(well) > max(300*time.Millisecond, x.Timeout)
	}
	require.True(x.t, until(recovered), "no recovery within %v from: %v: %s", patience, e.Kind, why)
	e.Recovery = well.Sub(e.End).Round(time.Millisecond)
}

// unwell says what has not recovered, or nothing if each process has had a reply on every
// part since the fault's end and no circuit is open. It looks at replies of the role
// ledger, which calls often; others may live on stock for long. The caller holds x.mu.
func (x *run) unwell(since time.Time) string {
	for i, w := range x.workers {
		for id, l := range w.lines {
			if l.Away || id.Role == ledger && l.LastOK.Before(since) {
				return fmt.Sprintf("process %d, %v, part %d: the last good call was %v before the end; circuit open: %v",
					i, id.Role, id.Part, since.Sub(l.LastOK), l.Away)
			}
		}
	}
	return ""
}

// await polls until ok, and fails the test when patience is over.
func (x *run) await(what string, ok func() bool) {
	x.t.Helper()
	require.True(x.t, until(ok), "not within %v: %s", patience, what)
}

// until polls until ok, or until patience is over, and reports whether it was ok.
func until(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// start adds a process and returns when it makes requests.
func (x *run) start() {
	x.t.Helper()
	x.Seed = x.rng.Uint64() // of the process
	text, err := json.Marshal(x.scenario)
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
	x.t.Cleanup(w.reading.Wait) // after Spawn's, which kills the process
	w.Process = redistest.Spawn(x.t, cmd)
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

package interval_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/test/interval"
)

// patience is for events, on a busy machine.
const patience = time.Minute

// run is a server, the processes that use it, and what they did.
type run struct {
	t      testing.TB
	plan   plan
	server *redistest.Server
	clock  *redistest.Clock
	proxy  *redistest.Proxy
	board  *board
	span   time.Duration // of a fault, about
	calm   int           // spans between those of the network, at most
	pause  time.Duration // of a process, at most

	finish    context.Context // ends when the processes have to
	end       context.CancelFunc
	echoes    sync.WaitGroup
	processes []*process
	ahead     time.Duration // of the server's clock before the machine's
	machine   int64         // how far the machine's clock was ahead of the one clock

	mu       sync.Mutex // guards what follows, because faults happen at the same time
	rng      *rand.Rand
	past     []interval.History // without the spends and resets of processes that run
	counts   [maxSeries][whats]int64
	underWay int64            // calls at a SIGKILL
	done     map[string]int64 // faults that the proxy does not count
}

// process is this binary, executed again.
type process struct {
	*redistest.Process
	*journal
	index int
}

// brief is for machines that run many tests at once.
func brief(seed uint64) plan {
	const t = 700 * time.Millisecond
	return plan{Seed: seed, Processes: 3, Timeout: 300 * time.Millisecond, Series: []series{
		{Name: "fixed", Limit: reservoir.Limit{Tokens: 60, Window: t}},
		{Name: "rolling", Limit: reservoir.Limit{Tokens: 60, Window: t}.Rolling()},
		{Name: "fixed, reset", Limit: reservoir.Limit{Tokens: 40, Window: time.Second}, Resets: true},
		{Name: "rolling, reset", Limit: reservoir.Limit{Tokens: 40, Window: t}.Rolling(), Resets: true},
		{Name: "fixed, changed", Limit: reservoir.Limit{Tokens: 300, Window: t}, Other: 100},
		{Name: "rolling, changed", Limit: reservoir.Limit{Tokens: 300, Window: t}.Rolling(), Other: 100},
	}}
}

// full draws the limits.
func full(seed uint64) plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := brief(seed)
	if p.Processes, p.Timeout = 2+rng.IntN(5), 100*time.Millisecond; *many > 0 {
		p.Processes = *many
	}
	for i := range p.Series {
		s := &p.Series[i]
		s.Limit.Tokens = []int64{5, 20, 60, 300, 2000}[rng.IntN(5)]
		s.Limit.Window = []time.Duration{200, 700, 1000, 1500, 3000}[rng.IntN(5)] * time.Millisecond
		if s.Other != 0 {
			s.Other = 1 + rng.Int64N(s.Limit.Tokens)
		}
	}
	return p
}

// start starts a server and the processes, and returns when they make requests.
func start(t testing.TB, p plan) *run {
	t.Helper()
	x := &run{
		t: t, plan: p, span: p.Timeout, calm: 2, pause: 1200 * time.Millisecond,
		rng: rand.New(rand.NewPCG(p.Seed, 2)), done: make(map[string]int64),
	}
	x.finish, x.end = context.WithCancel(t.Context())
	x.machine = time.Now().UnixNano() - now()
	x.server, x.clock = redistest.StartClocked(t)
	x.proxy = redistest.NewProxy(t, x.server.Addr())
	x.plan.Addr, x.plan.Board = x.proxy.Addr(), filepath.Join(t.TempDir(), "board")
	x.board = shared[board](x.plan.Board)
	t.Cleanup(func() { unmap(t, x.board) })
	for i, s := range p.Series {
		x.board.tokens[i].Store(s.Limit.Tokens)
		x.past = append(x.past, interval.History{
			Window: s.Limit.Window, Rolling: s.Limit.Rolls, Late: x.late(),
			Limits: []interval.Limit{{Tokens: s.Limit.Tokens}},
			Clock:  []interval.Setting{{Ahead: x.machine}},
		})
	}
	x.echoes.Go(x.echo)
	t.Cleanup(x.echoes.Wait)
	t.Cleanup(x.end)
	for range p.Processes {
		x.spawn()
	}
	return x
}

// late is how much later than a process meant it a statement may be carried out: the process may be stopped before
// it sends it, and the network, or the server, after that.
func (x *run) late() time.Duration { return x.pause + 4*x.span + 2*x.plan.Timeout }

// spawn adds a process and returns when it makes requests.
func (x *run) spawn() {
	x.t.Helper()
	p := x.plan
	x.locked(func() {
		p.Seed = x.rng.Uint64()
		p.Index = x.plan.Index
		x.plan.Index++
	})
	p.Journal = filepath.Join(x.t.TempDir(), "journal")
	cmd := exec.CommandContext(x.finish, os.Args[0])
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience // and then SIGKILL
	cmd.Env = append(os.Environ(), processEnv+"="+string(must(json.Marshal(p))), "GOMAXPROCS=2")
	cmd.Stderr = os.Stderr
	one := &process{journal: shared[journal](p.Journal), index: p.Index}
	x.t.Cleanup(func() { unmap(x.t, one.journal) })
	one.Process = redistest.Spawn(x.t, cmd)
	x.await("the process makes requests", func() bool { return one.calls() > 0 })
	x.locked(func() { x.processes = append(x.processes, one) })
}

// calls returns how many calls have ended.
func (p *process) calls() (n int64) {
	for i := range maxSeries {
		n += p.counts[i][called].Load()
	}
	return n
}

// kill kills a process, adds its journal to the past, and starts another one.
func (x *run) kill() int64 {
	one := x.any()
	x.locked(func() { x.processes = slices.DeleteFunc(x.processes, func(p *process) bool { return p == one }) })
	assert.True(x.t, one.Up(), "process %d has ended", one.index)
	one.Kill()
	x.locked(func() {
		x.underWay += one.underWay()
		x.bury(one)
	})
	x.spawn()
	return 1
}

// bury adds the journal of a process that has ended.
func (x *run) bury(p *process) {
	p.read(p.index, x.past, x.late())
	for i := range x.counts {
		for w := range x.counts[i] {
			x.counts[i][w] += p.counts[i][w].Load()
		}
	}
}

// any returns one of the processes.
func (x *run) any() (p *process) {
	x.locked(func() { p = x.processes[x.rng.IntN(len(x.processes))] })
	return p
}

// stop ends all processes. None may have ended by itself, as by a panic.
func (x *run) stop() {
	x.t.Helper()
	for _, p := range x.processes {
		assert.True(x.t, p.Up(), "process %d has ended", p.index)
	}
	x.end()
	for _, p := range x.processes {
		x.await("the process ends", func() bool { return !p.Up() })
		x.bury(p)
	}
	x.processes = nil
}

// histories returns what has happened so far.
func (x *run) histories() (list []interval.History) {
	x.locked(func() {
		for _, h := range x.past {
			h.Spends, h.Resets, h.Limits, h.Clock = slices.Clone(h.Spends), slices.Clone(h.Resets), slices.Clone(h.Limits), slices.Clone(h.Clock)
			list = append(list, h)
		}
		if moved := time.Now().UnixNano() - now() - x.machine; moved > int64(time.Millisecond) || moved < -int64(time.Millisecond) {
			for i, h := range list { // the machine's clock was set, nobody knows when
				list[i].Clock = append(h.Clock, interval.Setting{Span: interval.Span{End: now()}, Ahead: h.Clock[len(h.Clock)-1].Ahead + moved})
			}
		}
		for _, p := range x.processes {
			p.read(p.index, list, x.late())
		}
	})
	return list
}

// await polls until ok, and fails the test when patience is over.
func (x *run) await(what string, ok func() bool) {
	x.t.Helper()
	require.True(x.t, until(ok), "not within %v: %s", patience, what)
}

// until polls until ok, or until patience is over, and reports whether it was ok.
func until(ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// locked calls do with x.mu held.
func (x *run) locked(do func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	do()
}

// draw returns a number below n.
func (x *run) draw(n int) (d int) {
	x.locked(func() { d = x.rng.IntN(n) })
	return d
}

// sleep waits for about a time.
func (x *run) sleep(d time.Duration) { time.Sleep(d/2 + time.Duration(x.draw(int(d)+1))) }

// judge returns the verdict on each series.
func (x *run) judge() (list []interval.Verdict) {
	for _, h := range x.histories() {
		list = append(list, interval.Judge(h))
	}
	return list
}

// sum is what was seen of all series of one kind, or of one.
type sum struct {
	series, windows, looked, full, requests, over int
	tokens                                        int64
	most                                          float64
	counts                                        [whats]int64
}

func (s *sum) add(h interval.History, v interval.Verdict, counts *[whats]int64) {
	s.series++
	s.windows, s.looked, s.full, s.requests, s.over = s.windows+v.Windows, s.looked+v.Looked, s.full+v.Full, s.requests+len(h.Spends), s.over+len(v.Over)
	s.most = max(s.most, v.Most)
	for _, one := range h.Spends {
		s.tokens += one.Tokens
	}
	for w := range counts {
		s.counts[w] += counts[w]
	}
}

func (s *sum) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d series, %d tokens in %d requests, %d windows, %d intervals, all spent in %d of these, at most %.2f limits in an interval, over in %d;",
		s.series, s.tokens, s.requests, s.windows, s.looked, s.full, s.most, s.over)
	for w, n := range s.counts {
		fmt.Fprintf(&b, " %s %d", whatNames[w], n)
	}
	return b.String()
}

// report adds each series to the sums, and returns what was found. All processes have ended.
func (x *run) report(sums map[string]*sum) string {
	var b strings.Builder
	for i, h := range x.histories() {
		name, v := x.plan.Series[i].Name, interval.Judge(h)
		if sums[name] == nil {
			sums[name] = new(sum)
		}
		sums[name].add(h, v, &x.counts[i])
		for _, f := range v.Over {
			fmt.Fprintf(&b, "\n%s, %d in %v, OVER %v", name, h.Limits[0].Tokens, h.Window, f)
			detail(&b, h, f)
		}
	}
	return b.String()
}

// detail writes what happened near a finding, in milliseconds since its beginning.
func detail(b *strings.Builder, h interval.History, f interval.Finding) {
	ms := func(at int64) float64 { return float64(at-f.From) / 1e6 }
	near := func(at int64) bool { return at > f.From-2*int64(h.Window) && at < f.To+int64(h.Window) }
	slices.SortFunc(h.Spends, func(a, b interval.Spend) int { return cmp.Compare(a.Begin, b.Begin) })
	for _, s := range h.Spends {
		if near(s.Begin) || near(s.End) {
			fmt.Fprintf(b, "\n\t%.3f to %.3f: %d tokens of %d, %d back at %.3f, %s", ms(s.Begin), ms(s.End), s.Tokens, s.Window, s.Back, ms(s.BackAt), s.By)
		}
	}
	for _, c := range h.Clock {
		fmt.Fprintf(b, "\n\tclock set at %.3f to %.3f by %v", ms(c.Begin), ms(c.End), time.Duration(c.Ahead-h.Clock[0].Ahead))
	}
	for _, r := range h.Resets {
		fmt.Fprintf(b, "\n\treset at %.3f to %.3f at most", ms(r.Begin), ms(r.End))
	}
	for _, l := range h.Limits {
		fmt.Fprintf(b, "\n\t%d tokens since %.3f", l.Tokens, ms(l.At))
	}
}

// faults adds the faults that happened.
func (x *run) faults(to map[string]int64) {
	for _, f := range faults {
		to[f.name] += x.happened(f)
	}
	to[inFlight] += x.underWay
}

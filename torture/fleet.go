package torture

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// startTimeout and endTimeout bound what a process may take on a busy machine.
const (
	startTimeout = 20 * time.Second
	endTimeout   = 30 * time.Second
)

// fleet is the processes of a scenario, those that were killed included.
type fleet struct {
	t       testing.TB
	target  target
	workers []*worker

	mu     sync.Mutex // guards what follows, and what it says of workers
	out    *outcome
	phases []phase
	recent []*record // since the last fault began: calls, and requests that failed
}

// phase is a fault that is on, or none.
type phase struct {
	kind  kind
	since time.Time
}

// worker is one process: this binary, executed again.
type worker struct {
	*redistest.Process
	input  io.Closer     // whose end asks it to hand back
	read   chan struct{} // closed when it has ended and all that it told is read
	killed bool

	lines map[lineID]*line // guarded by the fleet's mutex
	last  time.Time        // when its last request began; as well
}

func startFleet(t testing.TB, at target) *fleet {
	t.Helper()
	f := &fleet{t: t, target: at, out: newOutcome(at.scenario, at.parts())}
	for range at.Fleet {
		f.start()
	}
	return f
}

// start adds a process and returns when it makes requests.
func (f *fleet) start() {
	f.t.Helper()
	at := f.target
	at.Seed += uint64(len(f.workers))
	text, err := json.Marshal(at)
	require.NoError(f.t, err)
	out, write, err := os.Pipe()
	require.NoError(f.t, err)
	defer write.Close() // the process has its own
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text), "GOMAXPROCS=2")
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	w := &worker{read: make(chan struct{}), lines: make(map[lineID]*line)}
	for id := range f.out.Lines {
		w.lines[id] = new(line)
	}
	w.input, err = cmd.StdinPipe()
	require.NoError(f.t, err)
	w.Process, err = redistest.Spawn(f.t, cmd)
	require.NoError(f.t, err)
	f.t.Cleanup(func() {
		w.Kill()
		<-w.read
	})
	go func() {
		defer close(w.read)
		defer out.Close()
		read(out, func(r *record) { f.note(w, r) })
	}()
	f.workers = append(f.workers, w)
	await(f.t, startTimeout, "the process makes requests", func() bool { return !f.lastOf(w).IsZero() })
}

// note adds what a process has told. It was the fault that was on when it began.
func (f *fleet) note(w *worker, r *record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	during := calm
	for _, p := range slices.Backward(f.phases) {
		if !r.At.Before(p.since) {
			during = p.kind
			break
		}
	}
	if r.What == asked {
		w.last = r.At
	}
	if r.What == called || r.What == asked && r.Err != "" {
		f.recent = append(f.recent, r)
	}
	f.out.add(w.lines[r.Key], r, during)
}

// lastOf is when the process last began a request, as far as it has told.
func (f *fleet) lastOf(w *worker) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return w.last
}

func (f *fleet) enter(k kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.phases = append(f.phases, phase{k, time.Now()})
	if k != calm {
		f.recent = nil
	}
}

// alive lists the processes that make requests.
func (f *fleet) alive() []*worker {
	return slices.DeleteFunc(slices.Clone(f.workers), func(w *worker) bool { return w.killed })
}

// kill ends a process by SIGKILL, with what it holds.
func (f *fleet) kill(w *worker) {
	w.killed = true
	w.Kill()
	<-w.read
}

// finish asks all processes to hand back, waits until they have ended, and adds what
// they leave.
func (f *fleet) finish() {
	f.t.Helper()
	for _, w := range f.alive() {
		_ = w.input.Close()
	}
	for _, w := range f.alive() {
		select {
		case <-w.read:
		case <-time.After(endTimeout):
			f.t.Errorf("a process did not end within %v of being asked", endTimeout)
			f.kill(w)
		}
	}
	for _, w := range f.workers {
		for id, l := range w.lines {
			f.out.Lines[id].end(l, w.killed)
		}
	}
}

// sum adds up what is read of every key on the parts, by default all.
func (f *fleet) sum(read func(*sums) int64, parts ...int) (n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, s := range f.out.Lines {
		if len(parts) == 0 || slices.Contains(parts, id.Part) {
			n += read(s)
		}
	}
	return n
}

// since lists the calls, or the requests that failed, since the last fault began.
func (f *fleet) since(such what) []*record {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.recent), func(r *record) bool { return r.What != such })
}

func faultsOf(s *sums) int64 { return s.Faults }
func failedOf(s *sums) int64 { return s.Failed }

// await polls until ok, and fails the test after the limit.
func await(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(t, "not within "+limit.String()+": "+what)
		}
	}
}

package torture

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
	dir     string
	workers []*worker
	phase   kind
}

// worker is one process: this binary, executed again.
type worker struct {
	path    string // of the journal
	journal *Journal
	process *os.Process
	exited  chan struct{} // closed when it has been reaped
	killed  bool
}

func startFleet(t testing.TB, at target) *fleet {
	t.Helper()
	f := &fleet{t: t, target: at, dir: t.TempDir()}
	t.Cleanup(f.end)
	for range at.Fleet {
		f.start()
	}
	return f
}

// start adds a process and returns when it makes requests.
func (f *fleet) start() {
	f.t.Helper()
	at := f.target
	at.Journal = filepath.Join(f.dir, fmt.Sprint("journal-", len(f.workers)))
	at.Seed += uint64(len(f.workers))
	j, err := openJournal(at.Journal)
	require.NoError(f.t, err)
	j.Phase.Store(int64(f.phase))
	w := &worker{path: at.Journal, journal: j, exited: make(chan struct{})}
	f.workers = append(f.workers, w)
	require.NoError(f.t, w.spawn(at))
	await(f.t, startTimeout, "the process makes requests", func() bool { return j.Beat.Load() > 0 })
}

// spawn starts the process, which the kernel ends with the thread that forked
// it: so that thread stays.
func (w *worker) spawn(at target) error {
	text, err := json.Marshal(at)
	if err != nil {
		return err
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(w.exited)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(withoutClock(os.Environ()), workerEnv+"="+string(text), "GOMAXPROCS=2")
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = dieWithParent()
		err := cmd.Start()
		w.process = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait() // the journal says how it went
		}
	}()
	return <-started
}

// withoutClock takes the shifted clock of servers out of an environment.
func withoutClock(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(s string) bool { return strings.HasPrefix(s, preload+"=") })
}

// alive lists the processes that make requests.
func (f *fleet) alive() []*worker {
	return slices.DeleteFunc(slices.Clone(f.workers), func(w *worker) bool { return w.killed })
}

func (f *fleet) enter(k kind) {
	f.phase = k
	for _, w := range f.workers {
		w.journal.Phase.Store(int64(k))
	}
}

// kill ends a process by SIGKILL, with what it holds.
func (f *fleet) kill(w *worker) {
	w.killed = true
	_ = w.process.Kill()
	<-w.exited
}

// stop makes the process stand still, or go on.
func (w *worker) stop(t testing.TB, on bool) {
	t.Helper()
	if !on {
		require.NoError(t, w.process.Signal(syscall.SIGCONT))
		return
	}
	require.NoError(t, w.process.Signal(syscall.SIGSTOP))
	await(t, startTimeout, "the process stands still", func() bool { return stopped(w.process.Pid) })
}

// finish asks all processes to hand back and waits until they have ended.
func (f *fleet) finish() {
	f.t.Helper()
	for _, w := range f.workers {
		w.journal.Finish.Store(1)
	}
	for _, w := range f.alive() {
		select {
		case <-w.exited:
		case <-time.After(endTimeout):
			f.t.Errorf("a process did not end within %v of being asked", endTimeout)
			f.kill(w)
		}
	}
}

// end leaves nothing behind, however the test went.
func (f *fleet) end() {
	for _, w := range f.workers {
		if w.process != nil {
			_ = w.process.Kill() // fails if it has ended
			<-w.exited
		}
		_ = w.journal.close()
	}
}

// sum adds up what f reads in every line of the live processes.
func (f *fleet) sum(read func(*line) int64) (n int64) {
	for _, w := range f.workers {
		for i := range w.journal.Lines {
			n += read(&w.journal.Lines[i])
		}
	}
	return n
}

// sumPart is the same for one part of the store.
func (f *fleet) sumPart(part int, read func(*line) int64) (n int64) {
	for _, w := range f.workers {
		for r := range role(roles) {
			n += read(&w.journal.Lines[lineOf(r, part)])
		}
	}
	return n
}

func callsOf(l *line) int64  { return l.Calls.Load() }
func faultsOf(l *line) int64 { return l.Faults.Load() }
func failedOf(l *line) int64 { return l.Failed.Load() }

// await polls until ok, and fails the test after the limit.
func await(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			require.FailNow(t, "not within "+limit.String()+": "+what)
		}
	}
}

package torture

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// worker is one process: this binary, executed again.
type worker struct {
	*redistest.Process
	input io.Closer     // whose end asks it to hand back
	read  chan struct{} // closed when it has ended and all that it told is read

	lines map[lineID]*line // guarded by the run's mutex
	last  time.Time        // when its last request began; as well
}

// start adds a process and returns when it makes requests.
func (x *run) start() {
	x.t.Helper()
	at := x.target
	at.Seed = x.rng.Uint64()
	text, err := json.Marshal(at)
	require.NoError(x.t, err)
	out, write, err := os.Pipe()
	require.NoError(x.t, err)
	defer write.Close() // the process has its own
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text), "GOMAXPROCS=2")
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	w := &worker{read: make(chan struct{}), lines: make(map[lineID]*line)}
	for id := range x.out.Lines {
		w.lines[id] = new(line)
	}
	w.input, err = cmd.StdinPipe()
	require.NoError(x.t, err)
	w.Process = redistest.Spawn(x.t, cmd)
	x.t.Cleanup(func() {
		w.Kill()
		<-w.read
	})
	go func() {
		defer close(w.read)
		defer out.Close()
		read(out, func(r *record) { x.note(w, r) })
	}()
	x.workers = append(x.workers, w)
	x.await("the process makes requests", func() bool { return !told(x, &w.last).IsZero() })
}

// note adds what a process has told.
func (x *run) note(w *worker, r *record) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if r.What == asked {
		w.last = r.At
	}
	x.out.add(w.lines[r.Key], r)
}

// locked does what nobody may tell of meanwhile.
func (x *run) locked(do func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	do()
}

// told is what processes have told that is kept there.
func told[T any](x *run, at *T) (value T) {
	x.locked(func() { value = *at })
	return value
}

// end waits until a process has ended and all that it told is read, and adds what it
// leaves.
func (x *run) end(w *worker, killed bool) {
	<-w.read
	x.locked(func() {
		for id, l := range w.lines {
			x.out.Lines[id].end(l, killed)
		}
	})
	x.workers = slices.DeleteFunc(x.workers, func(other *worker) bool { return other == w })
}

// finish asks all processes to hand back, and waits until they have ended.
func (x *run) finish() {
	x.t.Helper()
	for _, w := range x.workers {
		_ = w.input.Close()
	}
	for _, w := range slices.Clone(x.workers) {
		late := time.AfterFunc(patience, func() {
			x.t.Errorf("a process did not end within %v of being asked", patience)
			w.Kill()
		})
		x.end(w, false)
		late.Stop()
	}
}

package redistest

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a child of this process, which ends no later than this one does. Who
// calls [Spawn] kills it.
type Process struct {
	t testing.TB

	mu     sync.Mutex // guards what follows, and changes of state
	handle *os.Process
	exited chan struct{} // closed when the child has been reaped
	paused bool
}

// Spawn starts the command.
func Spawn(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t}
	check(t, p.start(cmd))
	return p
}

// start starts the command as the process, which does not run. The caller holds p.mu
// or is the only one.
//
// The kernel sends a child its parent-death signal when the thread that forked
// it ends, not the process (prctl(2), PR_SET_PDEATHSIG), and the Go runtime is
// free to end threads. So one goroutine keeps its thread, idle in Wait, for as
// long as the child lives.
func (p *Process) start(cmd *exec.Cmd) error {
	started, exited := make(chan error), make(chan struct{})
	cmd.SysProcAttr = dieWithParent()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(exited)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status of a killed child says nothing
		}
	}()
	err := <-started
	p.handle, p.exited, p.paused = cmd.Process, exited, false
	return err
}

// Pause stops the process by SIGSTOP and returns when it stands still. Connections
// of a server stay open, new ones are accepted by the kernel, and nobody answers.
func (p *Process) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP, true)
}

// Resume lets a paused process go on. A server then executes what was sent to it
// meanwhile, also by clients that have left.
func (p *Process) Resume() {
	p.t.Helper()
	p.signal(syscall.SIGCONT, false)
}

// Kill ends the process by SIGKILL, if it runs, and returns when it is gone. One
// that is paused needs no SIGCONT first.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		_ = p.handle.Kill() // fails only when the child has just ended
		<-p.exited
	}
}

// signal has the process pause or go on, unless it does already.
func (p *Process) signal(sig os.Signal, pauses bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		p.t.Fatalf("redistest: %v for a process which is down", sig)
	}
	if p.paused == pauses {
		return
	}
	check(p.t, p.handle.Signal(sig))
	if pauses { // the signal is on its way, and is waited for
		_, err := syscall.Wait4(p.handle.Pid, nil, syscall.WUNTRACED, nil)
		check(p.t, err)
	}
	p.paused = pauses
}

// Up reports whether the process runs and is not paused.
func (p *Process) Up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running() && !p.paused
}

// running reports whether the child has not ended. The caller holds p.mu.
func (p *Process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return p.exited != nil
	}
}

// pollEvery is the pause between two looks at a condition.
const pollEvery = 2 * time.Millisecond

// poll calls check until it returns nil. After limit it fails the test and
// quotes the last reason.
func poll(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("redistest: %s: not within %v: %v", what, limit, err)
		}
	}
}

package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// stopLimit is how long a process may take to obey a stop signal.
const stopLimit = 5 * time.Second

// Process is a child of this process, which is to end no later than this one does.
// Who calls [Spawn] kills it in the end.
type Process struct {
	Pid    int
	t      testing.TB
	handle *os.Process
	exited chan struct{} // closed when the child has been reaped
	paused atomic.Bool
}

// Spawn starts the command.
//
// The kernel sends a child its parent-death signal when the thread that forked
// it ends, not the process (prctl(2), PR_SET_PDEATHSIG), and the Go runtime is
// free to end threads. So one goroutine keeps its thread, idle in Wait, for as
// long as the child lives.
func Spawn(t testing.TB, cmd *exec.Cmd) (*Process, error) {
	p := &Process{t: t, exited: make(chan struct{})}
	started := make(chan error)
	cmd.SysProcAttr = dieWithParent()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := cmd.Start()
		if err == nil {
			p.handle, p.Pid = cmd.Process, cmd.Process.Pid
		}
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status of a killed child says nothing
		}
	}()
	return p, <-started
}

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Pause stops the process by SIGSTOP and returns when it stands still. Connections
// of a server stay open, new ones are accepted by the kernel, and nobody answers.
func (p *Process) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	p.paused.Store(true)
	poll(p.t, stopLimit, "pause", func() error {
		if !stopped(p.Pid) {
			return fmt.Errorf("process %d still runs", p.Pid)
		}
		return nil
	})
}

// Resume lets a paused process go on. A server then executes what was sent to it
// meanwhile, also by clients that have left.
func (p *Process) Resume() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
	p.paused.Store(false)
}

// Kill ends the process by SIGKILL, if it runs, and returns when it is gone. One
// that is paused needs no SIGCONT first.
func (p *Process) Kill() {
	if p.running() {
		_ = p.handle.Kill() // fails only when the child has just ended
		<-p.exited
	}
}

func (p *Process) signal(sig os.Signal) {
	p.t.Helper()
	if !p.running() {
		p.t.Fatalf("redistest: %v for a process which is down", sig)
	}
	if err := p.handle.Signal(sig); err != nil {
		p.t.Fatalf("redistest: %v: %v", sig, err)
	}
}

// running reports whether the child has not ended. It is false for nil.
func (p *Process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

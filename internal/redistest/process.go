package redistest

import (
	"os"
	"os/exec"
	"runtime"
)

// process is one running child.
type process struct {
	handle *os.Process   // written before spawn returns, then only read
	exited chan struct{} // closed when the child has been reaped
}

// spawn starts cmd, which is to end no later than this process does.
//
// The kernel sends a child its parent-death signal when the thread that forked
// it ends, not the process (prctl(2), PR_SET_PDEATHSIG), and the Go runtime is
// free to end threads. So one goroutine keeps its thread, idle in Wait, for as
// long as the child lives.
func spawn(cmd *exec.Cmd) (*process, error) {
	p := &process{exited: make(chan struct{})}
	started := make(chan error)
	cmd.SysProcAttr = dieWithParent()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.exited)
		err := cmd.Start()
		p.handle = cmd.Process
		started <- err
		if err == nil {
			_ = cmd.Wait() // the exit status of a killed child says nothing
		}
	}()
	return p, <-started
}

// running reports whether the child has not ended. It is false for nil.
func (p *process) running() bool {
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

// kill ends the child and waits until it is gone. A stopped child needs no
// SIGCONT first: SIGKILL ends it as it is.
func (p *process) kill() {
	if p.running() {
		_ = p.handle.Kill() // fails only when the child has just ended
		<-p.exited
	}
}

package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is a child process, which on Linux ends no later than this one. The methods are
// safe for concurrent use.
type Process struct {
	t testing.TB

	mu     sync.Mutex // guards the fields below, and changes of state
	handle *os.Process
	life   context.Context // ends when the child has been reaped; nil before the first start
	paused bool
}

// Spawn starts the command. The test kills the process at its end.
func Spawn(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{t: t}
	t.Cleanup(p.Kill)
	check(t, p.start(cmd))
	return p
}

// start starts the command as the process, which must not run. The caller holds p.mu or
// is the only user of p.
//
// The kernel sends a child its parent-death signal when the thread that forked
// it ends, not the process (prctl(2), PR_SET_PDEATHSIG), and the Go runtime is
// free to end threads. So one goroutine keeps its thread, idle in Wait, for as
// long as the child lives.
func (p *Process) start(cmd *exec.Cmd) error {
	life, end := context.WithCancel(context.Background())
	started := make(chan error)
	cmd.SysProcAttr = dieWithParent()
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer end()
		started <- cmd.Start()
		_ = cmd.Wait() // the exit status of a killed child says nothing
	}()
	err := <-started
	p.handle, p.life, p.paused = cmd.Process, life, false
	return err
}

// Pause stops the process by SIGSTOP and returns when it stands still. A server's
// connections stay open, the kernel accepts new ones, and the server does not reply.
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

// Kill ends the process by SIGKILL, if it runs, and returns when it is gone. A paused
// process needs no [Process.Resume] first.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		_ = p.handle.Kill() // fails only when the child has just ended
		<-p.life.Done()
	}
}

// signal pauses or resumes the process, unless it is in that state already.
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
	if pauses { // wait until the signal has taken effect
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
func (p *Process) running() bool { return p.life != nil && p.life.Err() == nil }

const (
	// patience bounds each wait for servers, on a busy machine. On an idle one, a server
	// starts within some 10 ms, and a cluster takes some 2.5 s, because a master waits for
	// 2 s before it serves.
	patience = 30 * time.Second

	// Looks at a condition are 2 ms apart at first, and later a tenth of the time that has
	// passed, up to 50 ms, because each look costs a client and a server some processor time.
	pollFirst, pollLast = 2 * time.Millisecond, 50 * time.Millisecond

	startAttempts = 10 // ports that startDaemon tries
)

// errPortTaken means that another process took the port between reservePort and the
// server's start.
var errPortTaken = errors.New("the port was taken by another process")

// daemon is a server process on a free port of this machine. It keeps its port
// over [Process.Kill] and [Server.Restart], and ends with the test or this process.
type daemon struct {
	*Process
	port  int
	cmd   *exec.Cmd // a template, never started itself
	log   string    // path
	ready func(addr string, pid int) bool
}

// startDaemon starts a server and waits until it is ready. It calls build for each port
// that it tries. ready reports whether the process of that id answers at addr, because
// another one may have taken the port.
func startDaemon(t testing.TB, build func(port int) *exec.Cmd, ready func(addr string, pid int) bool) *daemon {
	t.Helper()
	err := errPortTaken
	for n := 0; n < startAttempts && errors.Is(err, errPortTaken); n++ {
		d := &daemon{Process: &Process{t: t}, port: reservePort(t), ready: ready, log: filepath.Join(t.TempDir(), "log")}
		d.cmd = build(d.port)
		t.Cleanup(d.Kill) // before that of TempDir, which removes the files
		if err = d.run(); err == nil {
			return d
		}
	}
	t.Fatalf("redistest: start: %v", err)
	return nil
}

// Addr returns the host and port at which the server listens.
func (d *daemon) Addr() string { return loopback(d.port) }

// Restart starts the process again with the same port and arguments, and returns when it
// answers. It first kills a process that still runs. A Redis server keeps what its
// directory holds: without persistence only a cluster node's identity, slots and peers.
func (d *daemon) Restart() {
	d.t.Helper()
	d.Kill()
	if err := d.run(); err != nil {
		d.t.Fatalf("redistest: restart %s: %v", d.Addr(), err)
	}
}

// run starts the process and waits until it answers.
func (d *daemon) run() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	log, err := os.Create(d.log)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own descriptor
	cmd := &exec.Cmd{Path: d.cmd.Path, Args: d.cmd.Args, Env: d.cmd.Env, Err: d.cmd.Err, Stdout: log, Stderr: log}
	if err := d.start(cmd); err != nil {
		return err
	}
	for begin := time.Now(); d.running() && time.Since(begin) < patience; pause(begin) {
		if d.ready(d.Addr(), d.handle.Pid) && d.running() { // otherwise another process has answered
			return nil
		}
	}
	said, err := os.ReadFile(d.log)
	if bytes.Contains(said, []byte("Address already in use")) {
		return errPortTaken
	}
	return errors.Join(fmt.Errorf("%s: it ended, or gave no answer in %v; its log:\n%s", cmd.Path, patience, said), err)
}

// poll calls check until it returns nil. After limit it fails the test and
// quotes the last reason.
func poll(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	for begin := time.Now(); ; pause(begin) {
		err := check()
		if err == nil {
			return
		}
		if time.Since(begin) > limit {
			t.Fatalf("redistest: %s: not within %v: %v", what, limit, err)
		}
	}
}

// pause waits between two looks at a condition that is awaited since begin.
func pause(begin time.Time) { time.Sleep(min(max(time.Since(begin)/10, pollFirst), pollLast)) }

// check ends the test at an error.
func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("redistest: %v", err)
	}
}

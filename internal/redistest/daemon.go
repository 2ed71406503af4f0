package redistest

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// Daemon is a server of another kind than Redis, such as memcached, on a free port
// of this machine. It ends with the test, or with this process.
type Daemon struct {
	t     testing.TB
	port  int
	build func(port int) *exec.Cmd
	ready func(addr string, pid int) bool
	proc  *process
}

// StartDaemon starts the server that build describes and waits until ready, asked
// again and again, says that the process of that id answers at addr: another one
// may have taken the port.
func StartDaemon(t testing.TB, build func(port int) *exec.Cmd, ready func(addr string, pid int) bool) *Daemon {
	t.Helper()
	var err error
	for range startAttempts {
		d := &Daemon{t: t, port: reservePort(t), build: build, ready: ready}
		t.Cleanup(d.Kill)
		if err = d.run(); err == nil {
			return d
		}
	}
	t.Fatalf("redistest: start: %v", err)
	return nil
}

// Addr returns the host and port at which the server listens.
func (d *Daemon) Addr() string { return loopback(d.port) }

// Kill ends the process at once, if it runs.
func (d *Daemon) Kill() { d.proc.kill() }

// Restart ends the process at once and starts another on the same port.
func (d *Daemon) Restart() {
	d.t.Helper()
	d.Kill()
	if err := d.run(); err != nil {
		d.t.Fatalf("redistest: restart: %v", err)
	}
}

func (d *Daemon) run() (err error) {
	if d.proc, err = spawn(d.build(d.port)); err != nil {
		return err
	}
	deadline := time.After(startLimit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-d.proc.exited:
			return errors.New("the server ended before it answered")
		case <-deadline:
			return fmt.Errorf("no answer within %v", startLimit)
		case <-tick.C:
			if d.proc.running() && d.ready(d.Addr(), d.proc.handle.Pid) {
				return nil
			}
		}
	}
}

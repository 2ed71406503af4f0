package redistest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	// startLimit is how long a server may take until it answers. It takes
	// some 10 ms; the rest is for a machine that is busy.
	startLimit = 20 * time.Second

	// startAttempts is how many ports are tried before giving up.
	startAttempts = 10
)

// errPortTaken says that another process took the port in the moment between
// our look at it and the server's start.
var errPortTaken = errors.New("the port was taken by another process")

// Daemon is a server of any kind on a free port of this machine. It keeps its port
// over [Process.Kill] and [Daemon.Restart], and ends with the test or this process.
type Daemon struct {
	*Process
	port  int
	cmd   *exec.Cmd // what is run; never started itself
	log   string    // path
	ready func(addr string, pid int) bool
}

// StartDaemon starts the server that build describes, which is asked once for each
// port that is tried, and waits until ready says that the process of that id answers
// at addr: another one may have taken the port.
func StartDaemon(t testing.TB, build func(port int) *exec.Cmd, ready func(addr string, pid int) bool) *Daemon {
	t.Helper()
	err := errPortTaken
	for n := 0; n < startAttempts && errors.Is(err, errPortTaken); n++ {
		d := &Daemon{Process: &Process{t: t}, port: reservePort(t), ready: ready, log: filepath.Join(t.TempDir(), "log")}
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
func (d *Daemon) Addr() string { return loopback(d.port) }

// Restart starts the process again, with the same port and arguments, and
// returns when it answers. One that still runs is killed first. A Redis server
// comes back with what its directory holds: without persistence nothing but, in
// a cluster, the node's identity, slots and peers.
func (d *Daemon) Restart() {
	d.t.Helper()
	d.Kill()
	if err := d.run(); err != nil {
		d.t.Fatalf("redistest: restart %s: %v", d.Addr(), err)
	}
}

// run starts the process and waits until it answers.
func (d *Daemon) run() error {
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
	for deadline := time.Now().Add(startLimit); ; time.Sleep(pollEvery) {
		switch {
		case !d.running(): // whoever answers is someone else
			return d.failure("it ended")
		case d.ready(d.Addr(), d.handle.Pid) && d.running():
			return nil
		case time.Now().After(deadline):
			return d.failure(fmt.Sprint("no answer within ", startLimit))
		}
	}
}

// failure tells why the process does not answer, with what it wrote.
func (d *Daemon) failure(why string) error {
	log, err := os.ReadFile(d.log)
	if bytes.Contains(log, []byte("Address already in use")) {
		return errPortTaken
	}
	return errors.Join(fmt.Errorf("%s: %s; its log:\n%s", d.cmd.Path, why, log), err)
}

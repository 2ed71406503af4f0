package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const (
	// startLimit is how long a server may take until it answers. It takes
	// some 10 ms; the rest is for a machine that is busy.
	startLimit = 20 * time.Second

	// pingLimit is how long one PING may take. There will be others.
	pingLimit = 200 * time.Millisecond

	// startAttempts is how many ports are tried before giving up.
	startAttempts = 10
)

// errPortTaken says that another process took the port in the moment between
// our look at it and the server's start.
var errPortTaken = errors.New("the port was taken by another process")

// launch starts a server on a free port, with the arguments that build returns
// for it.
func launch(t testing.TB, build func(dir string, port int) []string) *Server {
	t.Helper()
	for range startAttempts {
		s := newServer(t, build)
		err := s.run()
		if err == nil {
			return s
		}
		if !errors.Is(err, errPortTaken) {
			t.Fatalf("redistest: start: %v", err)
		}
	}
	t.Fatalf("redistest: start: %d times, %v", startAttempts, errPortTaken)
	return nil
}

func newServer(t testing.TB, build func(dir string, port int) []string) *Server {
	t.Helper()
	s := &Server{t: t, port: reservePort(t), dir: t.TempDir()}
	s.args = build(s.dir, s.port)
	s.admin = newAdmin(s.Addr())
	t.Cleanup(func() { // before that of TempDir, which removes the directory
		_ = s.admin.Close()
		s.Kill()
	})
	return s
}

// run starts the process and waits until it answers.
func (s *Server) run() error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return errors.New("redis-server is not installed: " +
			"run `make redis` or `apt-get install redis-server`")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.Create(s.logPath())
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own descriptor
	cmd := exec.Command(path, s.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if s.proc, err = spawn(cmd); err != nil {
		return err
	}
	return s.awaitReady()
}

// awaitReady returns when the process answers, or why it will not.
func (s *Server) awaitReady() error {
	deadline := time.After(startLimit)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-s.proc.exited:
			return s.startError()
		case <-deadline:
			return fmt.Errorf("no answer within %v; its log:\n%s", startLimit, s.log())
		case <-tick.C:
			// A process that has ended does not answer: someone else may.
			if s.proc.running() && ping(s.Addr()) && s.isOurs() {
				return nil
			}
		}
	}
}

// ping reports whether a server at addr is ready for commands. It dials anew
// each time: a pool of connections would punish the refusals of a server that
// is just starting by pauses.
func ping(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, pingLimit)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(pingLimit))
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return false
	}
	reply := make([]byte, len("+PONG"))
	_, err = io.ReadFull(conn, reply)
	return err == nil && string(reply) == "+PONG"
}

// isOurs reports whether the server that answers at our address is our process,
// and not one that took the port first.
func (s *Server) isOurs() bool {
	text, err := s.admin.Info(context.Background(), "server").Result()
	return err == nil && fields(text)["process_id"] == strconv.Itoa(s.proc.handle.Pid)
}

// startError tells why the process ended before it answered.
func (s *Server) startError() error {
	log := s.log()
	if bytes.Contains(log, []byte("Address already in use")) {
		return errPortTaken
	}
	return fmt.Errorf("redis-server ended; its log:\n%s", log)
}

func (s *Server) logPath() string { return filepath.Join(s.dir, "redis.log") }

// log returns what the process wrote since it was started.
func (s *Server) log() []byte {
	log, err := os.ReadFile(s.logPath())
	if err != nil {
		return []byte(err.Error())
	}
	return log
}

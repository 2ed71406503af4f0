package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// stopLimit is how long a process may take to obey a stop signal.
const stopLimit = 5 * time.Second

// Server is one redis-server process on a loopback port. It keeps its port and
// its directory over [Server.Kill] and [Server.Restart].
type Server struct {
	t     testing.TB
	port  int
	dir   string   // ends with the test
	args  []string // of the process, the same at each restart
	admin *redis.Client

	mu     sync.Mutex // guards the process and its changes of state
	proc   *process
	paused bool
}

// Start runs a redis-server without persistence and returns when it answers.
// The arguments are added to its command line, so
//
//	redistest.Start(t, "--maxmemory", "10mb")
//
// sets a directive. The default user needs to stay as it is, for the methods of
// Server use it: a test of access rules adds a user, by ACL SETUSER.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return launch(t, func(dir string, port int) []string {
		return append(serverArgs(dir, port), args...)
	})
}

// serverArgs are the arguments of every server but a Sentinel. A replica that
// asks for a full sync gets it at once and without files: the default is to
// wait five seconds for others to ask too.
func serverArgs(dir string, port int) []string {
	return []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--protected-mode", "no", "--save", "", "--appendonly", "no",
		"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0",
	}
}

// newAdmin returns the client by which a Server talks to its process. It sends
// nothing that a test did not cause: no retries, no greetings.
func newAdmin(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr:            addr,
		Protocol:        2,
		MaxRetries:      -1,
		DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{
			Mode: maintnotifications.ModeDisabled,
		},
	})
}

// Addr returns the host and port at which the server listens.
func (s *Server) Addr() string { return loopback(s.port) }

// Client returns a client of the server that is closed when the test ends. The
// options are those of go-redis by default; opts may change them.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	options := &redis.Options{Addr: s.Addr()}
	for _, opt := range opts {
		opt(options)
	}
	client := redis.NewClient(options)
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Calls returns how often the server executed the named commands, in sum, since
// it started or since [Server.ResetStats]. It counts as INFO commandstats does:
// with calls that failed, with those that a script made, and on a replica with
// those that its primary replicated.
func (s *Server) Calls(command ...string) int64 {
	s.t.Helper()
	stats := s.info("commandstats")
	var sum int64
	for _, name := range command {
		sum += callsOf(stats["cmdstat_"+strings.ToLower(name)])
	}
	return sum
}

// callsOf reads "calls=3,usec=12,…". It is 0 for a command that was not called,
// which has no line.
func callsOf(stat string) int64 {
	calls, _, _ := strings.Cut(strings.TrimPrefix(stat, "calls="), ",")
	n, _ := strconv.ParseInt(calls, 10, 64)
	return n
}

// ResetStats sets the counters that [Server.Calls] reads to 0.
func (s *Server) ResetStats() {
	s.t.Helper()
	s.do("config", "resetstat")
}

// Pause stops the process by SIGSTOP and returns when it stands still. Its
// connections stay open, new ones are accepted by the kernel, and nobody
// answers.
func (s *Server) Pause() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signal(syscall.SIGSTOP)
	s.paused = true
	poll(s.t, stopLimit, "pause "+s.Addr(), func() error {
		if !stopped(s.proc.handle.Pid) {
			return fmt.Errorf("process %d still runs", s.proc.handle.Pid)
		}
		return nil
	})
}

// Resume lets a paused process go on. It then executes what was sent to it
// meanwhile, also by clients that have left.
func (s *Server) Resume() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signal(syscall.SIGCONT)
	s.paused = false
}

// Kill ends the process by SIGKILL and returns when it is gone. A server that
// is down already stays down.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proc.kill()
	s.paused = false
}

// Restart starts the process again, with the same port and arguments, and
// returns when it answers. One that still runs is killed first. The server
// comes back with what its directory holds: without persistence nothing but, in
// a cluster, the node's identity, slots and peers.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	if err := s.run(); err != nil {
		s.t.Fatalf("redistest: restart %s: %v", s.Addr(), err)
	}
}

// signal sends sig to the process. The caller holds s.mu.
func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if !s.proc.running() {
		s.t.Fatalf("redistest: %v for %s, which is down", sig, s.Addr())
	}
	if err := s.proc.handle.Signal(sig); err != nil {
		s.t.Fatalf("redistest: %v for %s: %v", sig, s.Addr(), err)
	}
}

// up reports whether the process runs and is not paused.
func (s *Server) up() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc.running() && !s.paused
}

// do runs one administrative command, which must succeed.
func (s *Server) do(args ...any) *redis.Cmd {
	s.t.Helper()
	cmd := s.admin.Do(context.Background(), args...)
	if err := cmd.Err(); err != nil {
		s.t.Fatalf("redistest: %s: %v: %v", s.Addr(), args, err)
	}
	return cmd
}

// info returns the fields of one section of INFO.
func (s *Server) info(section string) map[string]string {
	s.t.Helper()
	text, err := s.do("info", section).Text()
	if err != nil {
		s.t.Fatalf("redistest: %s: info %s: %v", s.Addr(), section, err)
	}
	return fields(text)
}

// fields parses the lines "name:value" of INFO and CLUSTER INFO.
func fields(text string) map[string]string {
	m := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}

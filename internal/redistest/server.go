package redistest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// pingLimit is how long one look at a server may take. There will be others.
const pingLimit = 200 * time.Millisecond

// Server is one redis-server process on a loopback port. It keeps its port and
// its directory over [Process.Kill] and [Daemon.Restart].
type Server struct {
	*Daemon
	admin *redis.Client
}

// Start runs a redis-server without persistence and returns when it answers.
// The arguments are added to its command line, so
//
//	redistest.Start(t, "--maxmemory", "10mb")
//
// sets a directive. The default user needs to stay as it is, for the methods of
// Server use it: a test of access rules adds a user, by [Server.SetUser].
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartEnv(t, nil, args...)
}

// StartEnv is [Start] with variables, each "name=value", in the server's environment.
func StartEnv(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return launch(t, func(dir string, port int) []string { return append(serverArgs(dir, port), args...) }, env...)
}

// launch starts a server on a free port, with the arguments that build returns
// for it.
func launch(t testing.TB, build func(dir string, port int) []string, env ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("redistest: redis-server is not installed: run `make redis` or `apt-get install redis-server`")
	}
	s := new(Server)
	s.Daemon = StartDaemon(t, func(port int) *exec.Cmd {
		cmd := exec.Command("redis-server", build(t.TempDir(), port)...)
		cmd.Env = append(os.Environ(), env...)
		return cmd
	}, answers)
	s.admin = s.Client(func(o *redis.Options) { // it sends nothing that a test did not cause
		o.Protocol, o.MaxRetries, o.DisableIdentity = 2, -1, true
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	})
	return s
}

// serverArgs are the arguments of every server but a Sentinel. A replica that
// asks for a full sync gets it at once and without files: the default is to
// wait five seconds for others to ask too.
func serverArgs(dir string, port int) []string {
	return []string{
		"--bind", host, "--port", strconv.Itoa(port), "--dir", dir,
		"--protected-mode", "no", "--save", "", "--appendonly", "no",
		"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0",
	}
}

// answers reports whether the server at addr is ready for commands, and is that
// process, not one that took the port first. It dials anew each time: a pool of
// connections would punish the refusals of a server that is just starting by pauses.
func answers(addr string, pid int) bool {
	conn, err := net.DialTimeout("tcp", addr, pingLimit)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(pingLimit))
	_, _ = io.WriteString(conn, "PING\r\nINFO server\r\nQUIT\r\n") // what fails has no reply
	reply, _ := io.ReadAll(conn)
	return bytes.HasPrefix(reply, []byte("+PONG")) && bytes.Contains(reply, fmt.Appendf(nil, "process_id:%d\r\n", pid))
}

// Client returns a client of the server that is closed when the test ends. The
// options are those of go-redis by default; opts may change them.
func (s *Server) Client(opts ...func(*redis.Options)) *redis.Client {
	return newClient(s.t, redis.NewClient, &redis.Options{Addr: s.Addr()}, opts)
}

// newClient applies opts, and closes the client when the test ends.
func newClient[O any, C io.Closer](t testing.TB, open func(*O) C, options *O, opts []func(*O)) C {
	for _, opt := range opts {
		opt(options)
	}
	client := open(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Calls returns how often the server executed the named commands, in sum, since
// it started or since [Server.ResetStats]. It counts as INFO commandstats does:
// with calls that failed, with those that a script made, and on a replica with
// those that its primary replicated.
func (s *Server) Calls(command ...string) (sum int64) {
	s.t.Helper()
	stats := s.info("Commandstats")
	for _, name := range command {
		var n int64 // stays 0 where there is no line, for what was not called
		_, _ = fmt.Sscanf(stats["cmdstat_"+strings.ToLower(name)], "calls=%d,", &n)
		sum += n
	}
	return sum
}

// ResetStats sets the counters that [Server.Calls] reads to 0.
func (s *Server) ResetStats() {
	s.t.Helper()
	s.Do("config", "resetstat")
}

// SetUser makes the user of a line as it stands in an ACL file, "user name rule rule…",
// and forgets what rights the user had before. Connections that the user has are closed.
func (s *Server) SetUser(line string) {
	s.t.Helper()
	words := strings.Fields(line)
	s.Do("acl", "deluser", words[1])
	check(s.t, s.admin.ACLSetUser(context.Background(), words[1], words[2:]...).Err())
}

// User makes a client log in.
func User(name, password string) func(*redis.Options) {
	return func(o *redis.Options) { o.Username, o.Password = name, password }
}

// Do runs one administrative command, which must succeed.
func (s *Server) Do(args ...any) *redis.Cmd {
	s.t.Helper()
	cmd := s.admin.Do(context.Background(), args...)
	if err := cmd.Err(); err != nil {
		s.t.Fatalf("redistest: %s: %v: %v", s.Addr(), args, err)
	}
	return cmd
}

// info returns the fields of one section of INFO, by its title.
func (s *Server) info(section string) map[string]string {
	s.t.Helper()
	all, err := s.admin.InfoMap(context.Background(), section).Result()
	check(s.t, err)
	return all[section]
}

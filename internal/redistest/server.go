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

// Server is one redis-server process on a loopback port. It keeps its port and
// its directory over [Process.Kill] and [Server.Restart].
type Server struct {
	*daemon
	admin *redis.Client
}

// Start runs a redis-server without persistence and returns when it answers.
// The arguments are added to its command line, so
//
//	redistest.Start(t, "--maxmemory", "10mb")
//
// sets a directive. Leave the default user as it is, because the methods of Server use
// it. A test of access rules adds a user, by [Server.SetUser].
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartEnv(t, nil, args...)
}

// StartEnv is [Start] with variables, each "name=value", in the server's environment.
func StartEnv(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return StartWith(t, func(dir string, port int) []string { return append(serverArgs(dir, port), args...) }, env...)
}

// StartWith is [StartEnv] with no other arguments than those that build returns for a
// directory of the server and a free port: a Sentinel for example needs a file.
func StartWith(t testing.TB, build func(dir string, port int) []string, env ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("redistest: redis-server is not installed: run `make redis` or `apt-get install redis-server`")
	}
	s := new(Server)
	s.daemon = startDaemon(t, func(port int) *exec.Cmd {
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

// serverArgs returns the arguments of ordinary servers. A replica gets a
// full sync at once and without files. By default it would wait five seconds for other
// replicas.
func serverArgs(dir string, port int) []string {
	return []string{
		"--bind", host, "--port", strconv.Itoa(port), "--dir", dir,
		"--protected-mode", "no", "--save", "", "--appendonly", "no",
		"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0",
	}
}

// answers reports whether the server at addr is ready for commands, and is that process,
// not one that took the port first. It dials anew each time, because a pool of
// connections would pause after refusals by a server that is just starting.
func answers(addr string, pid int) bool {
	const limit = 200 * time.Millisecond
	conn, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(limit))
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

// Calls returns how often the server has executed the named commands, in sum, since its
// start or [Server.ResetStats]. As in INFO commandstats, that includes calls that failed,
// calls by scripts, and on a replica the commands of its primary.
func (s *Server) Calls(command ...string) (sum int64) {
	s.t.Helper()
	stats := s.info("Commandstats")
	for _, name := range command {
		var n int64 // stays 0 without a line, because the command was not called
		_, _ = fmt.Sscanf(stats["cmdstat_"+strings.ToLower(name)], "calls=%d,", &n)
		sum += n
	}
	return sum
}

// Busy returns how long the server has executed the named commands, in sum and by INFO
// commandstats. That is elapsed time, so other load on the machine makes it longer.
func (s *Server) Busy(command ...string) (sum time.Duration) {
	s.t.Helper()
	stats := s.info("Commandstats")
	for _, name := range command {
		var calls, us int64 // stay 0 without a line
		_, _ = fmt.Sscanf(stats["cmdstat_"+strings.ToLower(name)], "calls=%d,usec=%d,", &calls, &us)
		sum += time.Duration(us) * time.Microsecond
	}
	return sum
}

// ResetStats sets the counters that [Server.Calls] and [Server.Busy] read to 0.
func (s *Server) ResetStats() {
	s.t.Helper()
	s.Do("config", "resetstat")
}

// SetUser creates the user of a line of an ACL file, "user name rule rule…". It replaces
// the rights that the user had and closes the user's connections.
func (s *Server) SetUser(line string) {
	s.t.Helper()
	words := strings.Fields(line)
	s.Do("acl", "deluser", words[1])
	check(s.t, s.admin.ACLSetUser(context.Background(), words[1], words[2:]...).Err())
}

// User returns an option for [Server.Client] that makes the client log in.
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

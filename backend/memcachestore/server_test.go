package memcachestore

import (
	"bufio"
	"net"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a memcached with these arguments, of the test's own.
func start(t testing.TB, args ...string) *redistest.Daemon {
	t.Helper()
	return redistest.StartDaemon(t, command(t, args...), func(addr string, pid int) bool {
		list, err := stats(addr)
		return err == nil && list["pid"] == strconv.Itoa(pid)
	})
}

// command returns a function that makes the command of a memcached.
func command(t testing.TB, args ...string) func(port int) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("memcached")
	require.NoError(t, err, "memcached is not installed: run `make memcached`")
	me, err := user.Current()
	require.NoError(t, err)
	return func(port int) *exec.Cmd {
		return exec.Command(path, append([]string{"-l", "127.0.0.1", "-p", strconv.Itoa(port), "-U", "0", "-t", "2", "-u", me.Username}, args...)...)
	}
}

// stats returns what a server counts.
func stats(addr string) (map[string]string, error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte("stats\r\n")); err != nil {
		return nil, err
	}
	list := make(map[string]string)
	lines := bufio.NewScanner(conn)
	for lines.Scan() && lines.Text() != "END" {
		if field := strings.Fields(lines.Text()); len(field) == 3 {
			list[field[1]] = field[2]
		}
	}
	return list, lines.Err()
}

// count is one of a server's counts.
func count(t testing.TB, addr, what string) int {
	t.Helper()
	list, err := stats(addr)
	require.NoError(t, err)
	n, err := strconv.Atoi(list[what])
	require.NoError(t, err, what)
	return n
}

// dial returns a client with a pool of its own, as another process would have.
func dial(t testing.TB, addr string) *memcache.Client {
	client := memcache.New(addr)
	client.Timeout, client.MaxIdleConns = 5*time.Second, 64
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func over(t testing.TB, addr string) *Store { return New(dial(t, addr)) }

var limit10 = backend.Limit{Tokens: 10, Window: time.Minute}

func take(t testing.TB, s *Store, key string, n int64) backend.TakeReply {
	t.Helper()
	r, err := s.Take(t.Context(), backend.TakeRequest{Key: key, Limit: limit10, Tokens: n})
	require.NoError(t, err)
	return r
}

func remaining(t testing.TB, s *Store, key string) int64 {
	t.Helper()
	state, err := s.Check(t.Context(), key, limit10)
	require.NoError(t, err)
	return state.Remaining
}

// failed is err as the store's, with its class.
func failed(t testing.TB, err error, class backend.Class) *backend.Error {
	t.Helper()
	var e *backend.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, class, e.Class, "%v", err)
	return e
}

package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// rows are what servers say, or do, instead of a reply.
type row struct {
	text    string
	class   backend.Class
	keyOnly bool
}

var rows = []row{
	{"-LOADING Redis is loading the dataset in memory", backend.Unavailable, false},
	{"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", backend.Unavailable, false},
	{"-CLUSTERDOWN The cluster is down", backend.Unavailable, false},
	{"-CLUSTERDOWN Hash slot not served", backend.Unavailable, true},
	{"-TRYAGAIN Multiple keys request during rehashing of slot", backend.Unavailable, true},
	{"-NOREPLICAS Not enough good replicas to write.", backend.Unavailable, false},
	{"-ERR max number of clients reached", backend.Unavailable, false},
	{"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", backend.Unavailable, false},
	{"-MOVED 12182 127.0.0.1:7002", backend.Rejected, true}, // to a client that does not follow
	{"-ASK 12182 127.0.0.1:7002", backend.Unavailable, true},
	{"-READONLY You can't write against a read only replica.", backend.Unavailable, false},
	{"-ERR Script attempted to access a non local key in a cluster node script: abc, on @user_script:58.", backend.Unknown, true},
	{"-OOM command not allowed when used memory > 'maxmemory'.", backend.Rejected, false},
	{"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", backend.Rejected, false},
	{"-NOPERM User u has no permissions to run the 'evalsha' command", backend.Rejected, false},
	{"-NOAUTH Authentication required.", backend.Rejected, false},
	{"-ERR Protocol error: unauthenticated multibulk length", backend.Rejected, false},
	{"-WRONGPASS invalid username-password pair or user is disabled.", backend.Rejected, false},
	{"-CROSSSLOT Keys in request don't hash to the same slot", backend.Rejected, true},
	{"-WRONGTYPE Operation against a key holding the wrong kind of value", backend.Rejected, true},
	{"-BADSTATE the count is not an integer", backend.Rejected, true},
	{"-ERR unknown command 'evalsha'", backend.Rejected, false},
	{"-OOMPH is another word", backend.Rejected, false},
	{"$-1", backend.Unknown, false},
	{hangUp, backend.Unknown, false},
	{reset, backend.Unknown, false},
	{silent, backend.Unknown, false},
	{"*12\r\n:1\r\n:2\r\n" + hangUp, backend.Unknown, false},
	{"*2\r\n:8\r\n:2", backend.Unknown, false},
	{":7", backend.Unknown, false},
	{"+OK", backend.Unknown, false},
	{"*1\r\n$3\r\nabc", backend.Unknown, false},
	{"?what", backend.Unknown, false},
}

// TestFaults: each script meets each answer once. It is repeated if it surely was not
// carried out, and only then. go-redis' options are its default.
func TestFaults(t *testing.T) {
	for _, f := range faults {
		for _, says := range f.says {
			if says != "NOSCRIPT" {
				require.True(t, slices.ContainsFunc(rows, func(r row) bool { return redis.HasErrorPrefix(redacted(r.text[1:]), says) }), "no row for %q", says)
			}
		}
	}
	for _, r := range rows {
		t.Run(r.text[:min(len(r.text), 12)], func(t *testing.T) {
			for _, sc := range scripts {
				testFault(t, r, sc)
			}
		})
	}
	for name, r := range scenes {
		t.Run(name, func(t *testing.T) { requireRow(t, r.class, false, r.play(t)) })
	}
}

// requireRow requires that err is such a fault.
func requireRow(t *testing.T, class backend.Class, keyOnly bool, err error) {
	t.Helper()
	failure, ok := errors.AsType[*backend.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, class, failure.Class, "%v", err)
	require.Equal(t, keyOnly, failure.KeyOnly, "%v", err)
}

// testFault lets the script be answered once with the text and then be served.
func testFault(t *testing.T, row row, sc *script) {
	t.Helper()
	text := row.text
	server := newScripted(t, func(n int, sc *script) string {
		if n > 0 {
			return served(sc)
		}
		if strings.HasSuffix(text, hangUp) || text == reset || text == silent {
			return text
		}
		return text + "\r\n"
	})
	timeout := 5 * time.Second
	if text == silent {
		timeout = 50 * time.Millisecond // for this it has to pass
	}
	s := New(server.client(t, func(o *redis.Options) { o.ReadTimeout = timeout }))
	err := one(t.Context(), s, sc)
	if row.class == backend.Unavailable {
		require.NoError(t, err, "%s", sc.op)
		require.Equal(t, 2, server.called(), "%s", sc.op)
		return
	}
	requireRow(t, row.class, row.keyOnly, err)
	require.NotContains(t, err.Error(), "unauthenticated") // it says NOAUTH instead
	require.Equal(t, 1, server.called(), "%s is never said again", sc.op)
}

// statements numbers those of one.
var statements atomic.Int64

// one calls the script by way of the store.
func one(ctx context.Context, s *Store, sc *script) (err error) {
	l := limit10
	l.Rolls = sc.keys == 1
	switch sc.op {
	case "sync":
		_, err = s.Sync(ctx, backend.Statement{Key: "k", Client: "a", Life: 1, Seq: statements.Add(1), Limit: l, Want: 4, Need: 4})
	case "check":
		_, err = s.Check(ctx, "k", l)
	case "reset":
		_, err = s.Reset(ctx, "k", l)
	}
	return err
}

// TestRepetitionsAreBounded: a failing server gets at most a tenth more commands, beside
// three. A time without failures saves up no more than these.
func TestRepetitionsAreBounded(t *testing.T) {
	for _, well := range []int{0, 4 * mostSaved} {
		server := newScripted(t, func(n int, sc *script) string {
			if n < well {
				return served(sc)
			}
			return "-LOADING\r\n"
		})
		s := New(server.client(t))
		for range well {
			require.NoError(t, one(t.Context(), s, syncScript))
		}
		const workers, each = 8, 40
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range each {
					assert.Error(t, one(t.Context(), s, syncScript))
				}
			})
		}
		wg.Wait()
		more := server.called() - well - workers*each
		require.LessOrEqual(t, more, workers*each/10+3)
		require.GreaterOrEqual(t, more, workers*each/11, "it does repeat")
	}
}

// scene is a failure that is no server's answer.
type scene struct {
	class backend.Class
	play  func(*testing.T) error
}

var scenes = map[string]scene{
	"left unsent": {backend.Unavailable, func(t *testing.T) error { return unsentBy(t, context.Canceled) }},
	"unsent":      {backend.Unavailable, func(t *testing.T) error { return unsentBy(t, context.DeadlineExceeded) }},
	"late": {backend.Unavailable, func(t *testing.T) error {
		server := newScripted(t, func(n int, sc *script) string {
			return "*2\r\n:1\r\n:1\r\n"
		})
		return one(t.Context(), New(server.client(t)), syncScript)
	}},
	"not replicated": {backend.Unknown, func(t *testing.T) error {
		server := redistest.Start(t) // without a replica
		return one(t.Context(), New(server.Client(), WithReplicaAck(1, time.Millisecond)), syncScript)
	}},
	"handshake": {backend.Rejected, func(t *testing.T) error {
		server := httptest.NewTLSServer(nil)
		t.Cleanup(server.Close)
		server.Config.ErrorLog = nil
		s := New(redis.NewClient(&redis.Options{Addr: server.Listener.Addr().String(), DialerRetries: 1, TLSConfig: &tls.Config{ServerName: "example.com"}}))
		t.Cleanup(func() { _ = s.client.Close() })
		return one(t.Context(), s, syncScript)
	}},
	"dial": {backend.Unavailable, func(t *testing.T) error {
		server := redistest.Start(t)
		server.Kill()
		return one(t.Context(), New(server.Client(func(o *redis.Options) { o.DialerRetries = 1 })), syncScript)
	}},
	"no nodes": {backend.Unavailable, func(t *testing.T) error {
		c := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return nil, nil }})
		t.Cleanup(func() { _ = c.Close() })
		return one(t.Context(), New(c), syncScript)
	}},
	"no sentinels": {backend.Unavailable, func(t *testing.T) error {
		sentinel := newScripted(t, func(int, *script) string { return silent }) // it answers OK where an address should be
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel.addr}, DialerRetries: 1})
		t.Cleanup(func() { _ = c.Close() })
		return one(t.Context(), New(c), syncScript)
	}},
	"NOSCRIPT": {backend.Unavailable, func(t *testing.T) error {
		server := newScripted(t, func(int, *script) string { return "-NOSCRIPT No matching script. Please use EVAL.\r\n" })
		err := one(t.Context(), New(server.client(t)), syncScript)
		require.Equal(t, 2*2, server.called(), "each time by its hash and by its text")
		return err
	}},
}

// unsentBy is the failure of a call whose context ends so while it is queued.
func unsentBy(t *testing.T, end error) error {
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	ctx := ending{t.Context(), make(chan struct{}), end}
	failed := make(chan error, 1)
	x.queue(ctx, "k", 1, func(_ backend.Reply, err error) { failed <- err })
	close(ctx.done)
	err := <-failed
	x.proxy.Hold(false)
	x.wg.Wait()
	return err
}

// ending is a context that ends when a test says so.
type ending struct {
	context.Context
	done chan struct{}
	end  error
}

func (e ending) Done() <-chan struct{} { return e.done }

func (e ending) Err() error {
	select {
	case <-e.done:
		return e.end
	default:
		return nil
	}
}

// TestUnsentButRefused: a cluster's client that cannot learn where the slots are.
// The call was not sent, but that is no fault that time or another node cures.
func TestUnsentButRefused(t *testing.T) {
	server := redistest.Start(t)
	server.SetUser("user poor on >pw ~* +@all -cluster")
	secure := httptest.NewUnstartedServer(nil)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	for _, row := range []struct {
		name   string
		class  backend.Class
		o      redis.ClusterOptions
		closed bool
	}{
		{name: "WRONGPASS", class: backend.Rejected, o: redis.ClusterOptions{Username: "poor", Password: "wrong"}},
		{name: "NOPERM", class: backend.Rejected, o: redis.ClusterOptions{Username: "poor", Password: "pw"}},
		{name: "handshake", class: backend.Rejected, o: redis.ClusterOptions{Addrs: []string{secure.Listener.Addr().String()}, DialerRetries: 1, TLSConfig: &tls.Config{ServerName: "example.com"}}},
		{name: "closed", class: backend.Rejected, closed: true},
		{name: "unsent", class: backend.Unavailable, o: redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, DialerRetries: 1}}, // nobody is there
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.o.Addrs == nil {
				row.o.Addrs = []string{server.Addr()}
			}
			c := redis.NewClusterClient(&row.o)
			t.Cleanup(func() { _ = c.Close() })
			if row.closed {
				require.NoError(t, c.Close())
			}
			err := one(t.Context(), New(c, WithReplicaAck(1, time.Second)), syncScript)
			requireRow(t, row.class, false, err)
		})
	}
}

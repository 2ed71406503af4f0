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
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// texts are what servers say, or do, instead of a reply, by the row of faults that
// it belongs to.
var texts = map[string][]string{
	"LOADING":         {"-LOADING Redis is loading the dataset in memory"},
	"MASTERDOWN":      {"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."},
	"CLUSTERDOWN":     {"-CLUSTERDOWN The cluster is down"},
	"slot not served": {"-CLUSTERDOWN Hash slot not served"},
	"TRYAGAIN":        {"-TRYAGAIN Multiple keys request during rehashing of slot"},
	"NOREPLICAS":      {"-NOREPLICAS Not enough good replicas to write."},
	"max clients":     {"-ERR max number of clients reached"},
	"BUSY":            {"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."},
	"MOVED":           {"-MOVED 12182 127.0.0.1:7002"}, // to a client that does not follow
	"ASK":             {"-ASK 12182 127.0.0.1:7002"},
	"READONLY":        {"-READONLY You can't write against a read only replica."},
	"OOM":             {"-OOM command not allowed when used memory > 'maxmemory'."},
	"MISCONF":         {"-MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."},
	"NOPERM":          {"-NOPERM User u has no permissions to run the 'evalsha' command"},
	"NOAUTH":          {"-NOAUTH Authentication required.", "-ERR Protocol error: unauthenticated multibulk length"},
	"WRONGPASS":       {"-WRONGPASS invalid username-password pair or user is disabled."},
	"CROSSSLOT":       {"-CROSSSLOT Keys in request don't hash to the same slot"},
	"WRONGTYPE":       {"-WRONGTYPE Operation against a key holding the wrong kind of value"},
	"BADSTATE":        {"-BADSTATE the count is not an integer"},
	"no reply":        {"$-1"},
	"connection":      {hangUp, reset, silent, "*12\r\n:1\r\n:2\r\n" + hangUp},
	"other reply":     {"-ERR unknown command 'evalsha'", "-ERR value is not an integer"},
	"malformed":       {"*2\r\n:1\r\n:2", ":7", "+OK", "*1\r\n$3\r\nabc", "?what"},
}

// TestFaults: for every row of the table, each script meets that answer once, and
// is said again or not. go-redis' options are its default.
func TestFaults(t *testing.T) {
	for name := range scenes {
		require.True(t, slices.ContainsFunc(faults, func(f fault) bool { return f.name == name }), "no row %q", name)
	}
	for _, row := range append(faults, faultOf(errors.New("?"))) {
		if scenes[row.name] != nil {
			t.Run(row.name, func(t *testing.T) { requireRow(t, row, scenes[row.name](t)) })
			continue
		}
		require.NotEmpty(t, texts[row.name], "no test of %q", row.name)
		for _, text := range texts[row.name] {
			t.Run(row.name+"/"+text[:min(len(text), 12)], func(t *testing.T) {
				for _, sc := range scripts {
					testFault(t, row, sc, text)
				}
			})
		}
	}
}

// requireRow requires that err is a fault of the row.
func requireRow(t *testing.T, row fault, err error) {
	t.Helper()
	failure, ok := errors.AsType[*backend.Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, row.class, failure.Class, "%v", err)
	require.Equal(t, row.name, faultOf(failure.Err).name, "%v", err)
	require.Equal(t, slices.Contains(ofKeys, row.name), failure.KeyOnly, "%v", err)
}

// ofKeys are the rows that say nothing of a server's other keys.
var ofKeys = []string{"slot not served", "TRYAGAIN", "MOVED", "ASK", "CROSSSLOT", "WRONGTYPE", "BADSTATE"}

// testFault lets the script be answered once with the text and then be served.
func testFault(t *testing.T, row fault, sc *script, text string) {
	t.Helper()
	server := newScripted(t, func(n int, sc *script) string {
		if n > 0 {
			return served(sc)
		}
		if before, ok := strings.CutSuffix(text, hangUp); ok && before != "" {
			return before // and then nothing: half a reply
		}
		if text == hangUp || text == reset || text == silent {
			return text
		}
		return text + "\r\n"
	})
	timeout := 5 * time.Second
	if text == silent || strings.HasSuffix(text, hangUp) && text != hangUp {
		timeout = 50 * time.Millisecond // for this it has to pass
	}
	s := New(server.client(t, func(o *redis.Options) { o.ReadTimeout = timeout }))
	err := one(t.Context(), s, sc)
	repeats := row.class == backend.Unavailable || row.class == backend.Unknown && sc != takeScript
	if repeats {
		require.NoError(t, err, "%s", sc.op)
		require.Equal(t, 2, server.called(), "%s", sc.op)
		return
	}
	requireRow(t, row, err)
	require.Equal(t, 1, server.called(), "%s is never said again", sc.op)
}

// one calls the script by way of the store.
func one(ctx context.Context, s *Store, sc *script) (err error) {
	switch sc {
	case syncScript:
		_, err = s.Sync(ctx, backend.SyncRequest{Key: "k", Client: "a", Limit: limit10, Want: 4, Strand: -1})
	case takeScript:
		_, err = s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 2})
	case checkScript:
		_, err = s.Check(ctx, "k", limit10)
	case refundScript:
		_, err = s.Refund(ctx, backend.RefundRequest{Key: "k", Window: backend.Window(time.Now().UnixMilli() + 1000), Client: "r", Total: 2})
	}
	return err
}

// scenes are the rows that are no server's answer.
var scenes = map[string]func(*testing.T) error{
	"left unsent": func(t *testing.T) error { return unsentBy(t, context.Canceled) },
	"unsent":      func(t *testing.T) error { return unsentBy(t, context.DeadlineExceeded) },
	"late": func(t *testing.T) error {
		server := newScripted(t, func(n int, sc *script) string {
			return strings.Replace(served(sc), ":0", ":1", 1)
		})
		return one(t.Context(), New(server.client(t)), takeScript)
	},
	"pool timeout": func(t *testing.T) error {
		server := newScripted(t, func(int, *script) string { return silent })
		s := New(server.client(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, time.Millisecond }))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = one(ctx, s, takeScript) }()
		require.Eventually(t, func() bool { return server.called() == 1 }, soon, time.Millisecond)
		return one(t.Context(), s, takeScript)
	},
	"not replicated": func(t *testing.T) error {
		server := redistest.Start(t) // without a replica
		return one(t.Context(), New(server.Client(), WithReplicaAck(1, time.Millisecond)), syncScript)
	},
	"handshake": func(t *testing.T) error {
		server := httptest.NewTLSServer(nil)
		t.Cleanup(server.Close)
		server.Config.ErrorLog = nil
		s := New(redis.NewClient(&redis.Options{Addr: server.Listener.Addr().String(), DialerRetries: 1, TLSConfig: &tls.Config{ServerName: "example.com"}}))
		t.Cleanup(func() { _ = s.client.Close() })
		return one(t.Context(), s, takeScript)
	},
	"dial": func(t *testing.T) error {
		server := redistest.Start(t)
		server.Kill()
		return one(t.Context(), New(server.Client(func(o *redis.Options) { o.DialerRetries = 1 })), takeScript)
	},
	"no nodes": func(t *testing.T) error {
		c := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) { return nil, nil }})
		t.Cleanup(func() { _ = c.Close() })
		return one(t.Context(), New(c), takeScript)
	},
	"no sentinels": func(t *testing.T) error {
		sentinel := newScripted(t, func(int, *script) string { return silent }) // it answers OK where an address should be
		c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel.addr}, DialerRetries: 1})
		t.Cleanup(func() { _ = c.Close() })
		return one(t.Context(), New(c), takeScript)
	},
	"closed": func(t *testing.T) error {
		c := newScripted(t, nil).client(t)
		require.NoError(t, c.Close())
		return one(t.Context(), New(c), takeScript)
	},
	"NOSCRIPT": func(t *testing.T) error {
		server := newScripted(t, func(int, *script) string { return "-NOSCRIPT No matching script. Please use EVAL.\r\n" })
		err := one(t.Context(), New(server.client(t)), takeScript)
		require.Equal(t, 2*min(attemptsUnavailable, 1+reserve), server.called(), "each time by its hash and by its text")
		return err
	},
	"cancelled": func(t *testing.T) error {
		server := newScripted(t, func(int, *script) string { return silent })
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() { failed <- one(ctx, New(server.client(t)), syncScript) }()
		require.Eventually(t, func() bool { return server.called() == 1 }, soon, time.Millisecond)
		cancel()
		return <-failed
	},
	"deadline": func(t *testing.T) error {
		server := newScripted(t, func(int, *script) string { return silent })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		return one(ctx, New(server.client(t)), syncScript)
	},
}

// unsentBy is the failure of a call whose context ends so while it is queued.
func unsentBy(t *testing.T, end error) error {
	x := newCrowd(t)
	x.jam(t.Context(), x.allowed)
	ctx := ending{t.Context(), make(chan struct{}), end}
	failed := make(chan error, 1)
	x.queue(ctx, "k", 1, func(_ backend.TakeReply, err error) { failed <- err })
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
		o      redis.ClusterOptions
		closed bool
	}{
		{name: "WRONGPASS", o: redis.ClusterOptions{Username: "poor", Password: "wrong"}},
		{name: "NOPERM", o: redis.ClusterOptions{Username: "poor", Password: "pw"}},
		{name: "handshake", o: redis.ClusterOptions{Addrs: []string{secure.Listener.Addr().String()}, DialerRetries: 1, TLSConfig: &tls.Config{ServerName: "example.com"}}},
		{name: "closed", closed: true},
		{name: "unsent", o: redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}, DialerRetries: 1}}, // nobody is there
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
			err := one(t.Context(), New(c, WithReplicaAck(1, time.Second)), takeScript)
			require.ErrorIs(t, err, errUnsent)
			i := slices.IndexFunc(faults, func(f fault) bool { return f.name == row.name })
			requireRow(t, faults[i], err)
		})
	}
}

package memcachestore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// tap is a connection on which a test may act before a command leaves.
type tap struct {
	net.Conn
	before func(command string)
}

func (c tap) Write(b []byte) (int, error) {
	command, _, _ := strings.Cut(string(b), " ")
	c.before(command)
	return c.Conn.Write(b)
}

// tapped is a store whose commands before sees, each before it leaves.
func tapped(t testing.TB, addr string, before func(command string)) *Store {
	client := dial(t, addr)
	client.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return tap{conn, before}, nil
	}
	return New(client)
}

func order(g int64, w backend.Window) backend.SyncRequest {
	return backend.SyncRequest{Key: "k", Client: "x", Limit: limit10, Window: w, Granted: g, Want: 2, Need: 2, Strand: -1}
}

// TestLostReply: the write was carried out and nobody heard it. A sync finds out by
// the ledger; a take says that it does not know.
func TestLostReply(t *testing.T) {
	addr := start(t).Addr()
	proxy := redistest.NewProxy(t, addr)
	s := over(t, proxy.Addr())

	proxy.SwallowReply("add ", 1) // the first write of a key
	r, err := s.Sync(t.Context(), order(0, 0))
	require.NoError(t, err)
	require.EqualValues(t, 1, proxy.Swallowed())
	require.EqualValues(t, 2, r.Recovered, "the second attempt is handed what the first was granted")
	require.EqualValues(t, 2, r.Granted)

	proxy.SwallowReply("cas ", 1)
	r, err = s.Sync(t.Context(), order(2, r.Window))
	require.NoError(t, err)
	require.EqualValues(t, 2, proxy.Swallowed())
	require.EqualValues(t, 2, r.Recovered)
	require.EqualValues(t, 4, r.Granted)
	require.EqualValues(t, 6, remaining(t, s, "k"), "charged once each")

	proxy.SwallowReply("cas ", 1)
	_, err = s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 3})
	failed(t, err, backend.Unknown)
	require.EqualValues(t, 3, proxy.Swallowed())
	require.EqualValues(t, 3, remaining(t, s, "k"), "never sent twice")

	proxy.SwallowReply("cas ", 1)
	back, err := s.Refund(t.Context(), backend.RefundRequest{Key: "k", Window: r.Window, Client: "r", Total: 1})
	require.NoError(t, err)
	require.EqualValues(t, 1, back)
	require.EqualValues(t, 4, proxy.Swallowed())
	require.EqualValues(t, 4, remaining(t, s, "k"), "sent twice, counted once")

	proxy.SwallowReply("gets ", 1) // nothing was written yet
	require.True(t, take(t, s, "k", 1).Allowed)
	require.EqualValues(t, 5, proxy.Swallowed())
	require.EqualValues(t, 3, remaining(t, s, "k"))

	proxy.SwallowReply("cas ", 1)
	_, err = s.Reset(t.Context(), backend.ResetRequest{Key: "k", Limit: limit10})
	failed(t, err, backend.Unknown)
	require.EqualValues(t, 6, proxy.Swallowed())
	require.EqualValues(t, 10, remaining(t, s, "k"), "never sent twice")
	late, err := s.Sync(t.Context(), order(4, r.Window))
	require.NoError(t, err)
	require.EqualValues(t, 2, late.Granted, "and what was held before is void")
}

// cutting is a connection that ends within a reply, once.
type cutting struct {
	net.Conn
	armed *atomic.Bool
}

func (c cutting) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.armed.CompareAndSwap(true, false) {
		return n / 2, io.EOF
	}
	return n, err
}

// TestCutWithinAValue: a connection that ends in the middle of an item is a broken one too.
func TestCutWithinAValue(t *testing.T) {
	var armed atomic.Bool
	client := dial(t, start(t).Addr())
	client.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return cutting{conn, &armed}, err
	}
	s := New(client)
	require.True(t, take(t, s, "k", 1).Allowed)
	armed.Store(true)
	require.True(t, take(t, s, "k", 1).Allowed)
	require.False(t, armed.Load())
	require.EqualValues(t, 8, remaining(t, s, "k"))
}

// TestLostAndAway: the reply to a sync's write is lost, and then the server is away.
// That it cannot be reached does not mean that nothing was charged.
func TestLostAndAway(t *testing.T) {
	proxy := redistest.NewProxy(t, start(t).Addr())
	s := tapped(t, proxy.Addr(), func(command string) {
		if command == "gets" && proxy.Swallowed() > 0 {
			proxy.DropRequests("gets ", attempts)
		}
	})
	proxy.SwallowReply("add ", 1)
	_, err := s.Sync(t.Context(), order(0, 0))
	failed(t, err, backend.Unknown)
	require.EqualValues(t, 1, proxy.Swallowed())

	_, err = s.Sync(t.Context(), order(0, 0))
	failed(t, err, backend.Unavailable)
	require.EqualValues(t, maxCuts+maxCuts+1, proxy.Dropped(), "a few times, not a storm")
	proxy.DropRequests("", 0)
	r, err := over(t, proxy.Addr()).Sync(t.Context(), order(0, 0))
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Recovered)
	require.EqualValues(t, 8, r.Remaining)
}

// TestContended: when somebody else is quicker each time, the call gives up, has
// done nothing, and says so.
func TestContended(t *testing.T) {
	addr := start(t).Addr()
	other := over(t, addr)
	l := backend.Limit{Tokens: 1_000_000, Window: time.Minute}
	request := backend.TakeRequest{Key: "k", Limit: l, Tokens: 1}
	var writes atomic.Int64
	s := tapped(t, addr, func(command string) {
		if command == "cas" || command == "add" {
			writes.Add(1)
			_, err := other.Take(context.Background(), request)
			require.NoError(t, err)
		}
	})
	_, err := s.Take(t.Context(), request) // the first attempt adds, the others swap
	require.True(t, failed(t, err, backend.Unavailable).KeyOnly)
	require.ErrorIs(t, err, ErrContended)
	require.EqualValues(t, attempts, writes.Load(), "it has tried")
	state, err := s.Check(t.Context(), "k", l)
	require.NoError(t, err)
	require.Equal(t, l.Tokens-attempts, state.Remaining, "only the other has charged")
}

// TestPauseEnds: a call whose context ends between two attempts says so, also where its
// reply is quicker than its caller.
func TestPauseEnds(t *testing.T) {
	addr := start(t).Addr()
	other := over(t, addr)
	ctx, cancel := context.WithCancel(t.Context())
	s := tapped(t, addr, func(command string) {
		if command == "add" {
			cancel()
			take(t, other, "k", 1)
		}
	})
	c := &call[int64]{store: s, op: "take", key: s.name("k"), step: func(c *counter.Counter, now int64) int64 {
		c.Take(backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1}, now)
		return 1
	}}
	reply, err := c.try(ctx)
	failed(t, err, backend.Unavailable)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, ErrContended)
	require.Zero(t, reply)
}

// TestJudge: what the errors of a write mean.
func TestJudge(t *testing.T) {
	line := func(text string) error {
		return fmt.Errorf("memcache: unexpected response line from %q: %q", "cas", text+"\r\n")
	}
	for _, row := range []struct {
		err  error
		want backend.Class
	}{
		{memcache.ErrCASConflict, backend.Unavailable},
		{memcache.ErrNotStored, backend.Unavailable},
		{memcache.ErrCacheMiss, backend.Unavailable},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, backend.Unavailable},
		{&memcache.ConnectTimeoutError{}, backend.Unavailable},
		{memcache.ErrNoServers, backend.Unavailable},
		{line("SERVER_ERROR out of memory storing object"), backend.Rejected},
		{line("SERVER_ERROR object too large for cache"), backend.Rejected},
		{line("CLIENT_ERROR bad data chunk"), backend.Rejected},
		{line("ERROR"), backend.Rejected},
		{line("ERROR Too many open connections"), backend.Unavailable},
		{line("STORE"), backend.Unknown},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, backend.Unknown},
		{&net.OpError{Op: "write", Err: syscall.EPIPE}, backend.Unknown},
		{io.EOF, backend.Unknown},
	} {
		class, _ := judge(row.err)
		require.Equal(t, row.want, class, "%v", row.err)
	}
}

// leaving is a store whose caller's context ends when its first such command is about
// to leave, which it does when release is called. That returns when the call has ended.
func leaving(t *testing.T, addr, when string) (s *Store, ctx context.Context, sent *atomic.Int64, release func()) {
	running, gate := goleak.IgnoreCurrent(), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	sent = new(atomic.Int64)
	s = tapped(t, addr, func(command string) {
		if command == when {
			cancel()
			<-gate
		}
		sent.Add(1)
	})
	return s, ctx, sent, func() {
		close(gate)
		goleak.VerifyNone(t, running)
	}
}

// TestLeaveBeforeWrite: a caller who leaves while the item is read has charged
// nothing, and nothing is written when the server answers at last.
func TestLeaveBeforeWrite(t *testing.T) {
	addr := start(t).Addr()
	s, ctx, sent, release := leaving(t, addr, "gets")
	_, err := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 3})
	failed(t, err, backend.Unavailable)
	require.ErrorIs(t, err, context.Canceled)
	release()
	require.EqualValues(t, 1, sent.Load(), "only the read")
	require.EqualValues(t, 10, remaining(t, over(t, addr), "k"))
}

// TestLeaveDuringWrite: a caller who leaves while the item is written does not know,
// and what nobody heard of is given back.
func TestLeaveDuringWrite(t *testing.T) {
	addr := start(t).Addr()
	other := over(t, addr)
	take(t, other, "k", 1)
	s, ctx, sent, release := leaving(t, addr, "cas")
	_, err := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 3})
	failed(t, err, backend.Unknown)
	require.ErrorIs(t, err, context.Canceled)
	release()
	require.EqualValues(t, 4, sent.Load(), "to charge and to give back")
	require.EqualValues(t, 9, remaining(t, other, "k"))
}

// TestLeaveRefused: what was not charged is not given back.
func TestLeaveRefused(t *testing.T) {
	addr := start(t).Addr()
	other := over(t, addr)
	take(t, other, "k", 9)
	s, ctx, _, release := leaving(t, addr, "gets")
	_, err := s.Take(ctx, backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 3})
	failed(t, err, backend.Unavailable)
	release()
	require.EqualValues(t, 1, remaining(t, other, "k"))
}

// TestHung: a server that does not answer keeps nobody longer than the context.
func TestHung(t *testing.T) {
	proxy := redistest.NewProxy(t, start(t).Addr())
	client := dial(t, proxy.Addr())
	client.Timeout = time.Second // of the goroutines left behind
	s := New(client)
	take(t, s, "k", 1)
	proxy.Hold(true)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := s.Sync(ctx, order(0, 0))
		cancel()
		failed(t, err, backend.Unavailable)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	_, err := s.Sync(context.Background(), order(0, 0)) // no context: the client's Timeout
	failed(t, err, backend.Unavailable)
	proxy.Hold(false)
	require.EqualValues(t, 9, remaining(t, s, "k"), "reads that arrive late charge nothing")
}

// TestAway: nothing was done, until the server is back.
func TestAway(t *testing.T) {
	server := start(t)
	s := over(t, server.Addr())
	take(t, s, "k", 1)
	server.Kill()
	_, err := over(t, server.Addr()).Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
	require.Equal(t, "take", failed(t, err, backend.Unavailable).Op)
	_, err = s.Sync(t.Context(), order(0, 0))
	failed(t, err, backend.Unavailable)
	server.Restart()
	require.True(t, take(t, s, "k", 1).Allowed)
}

// TestStaleConnections: after a restart a pool is full of dead connections. No call
// fails by them, and none charges twice.
func TestStaleConnections(t *testing.T) {
	const conns = 16
	server := start(t)
	s := over(t, server.Addr())
	var waiting atomic.Int64
	all := make(chan struct{})
	warm := tapped(t, server.Addr(), func(command string) {
		if command == "gets" && waiting.Add(1) == conns {
			close(all)
		}
		<-all
	})
	l := backend.Limit{Tokens: 1000, Window: time.Minute}
	request := backend.TakeRequest{Key: "k", Limit: l, Tokens: 1}
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			_, err := warm.Check(context.Background(), "k", l)
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	require.EqualValues(t, conns, count(t, server.Addr(), "curr_connections")-1) // without the one that asks
	server.Restart()
	_, err := warm.Take(t.Context(), request)
	require.NoError(t, err)
	state, err := s.Check(t.Context(), "k", l)
	require.NoError(t, err)
	require.EqualValues(t, 999, state.Remaining)
}

// A server that wants a login, or does not know gets, must be mended by an operator. One
// that has no memory or too many connections may serve soon.
func TestAnswersToAReadThatAreErrors(t *testing.T) {
	for answer, want := range map[string]backend.Class{
		"CLIENT_ERROR unauthenticated": backend.Rejected, // memcached -Y
		"ERROR":                        backend.Rejected,
		"SERVER_ERROR out of memory writing get response": backend.Unavailable,
		"ERROR Too many open connections":                 backend.Unavailable,
		"VALUE ERROR":                                     backend.Unavailable,
	} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var served sync.WaitGroup
		served.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = bufio.NewReader(conn).ReadString('\n')
				_, _ = io.WriteString(conn, answer+"\r\n")
				_ = conn.Close()
			}
		})
		_, err = over(t, listener.Addr().String()).Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
		require.False(t, failed(t, err, want).KeyOnly, answer)
		require.NoError(t, listener.Close())
		served.Wait()
	}
}

// A login that is missing concerns all keys, so callers hear of it at once.
func TestNoLogin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(file, []byte("user:password\n"), 0o600))
	server := redistest.StartDaemon(t, command(t, "-Y", file), func(addr string, _ int) bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	_, err := over(t, server.Addr()).Sync(t.Context(), order(0, 0))
	require.ErrorContains(t, failed(t, err, backend.Rejected), "unauthenticated")
}

// A function of the client's that panics, or ends its goroutine, ends its caller's call and
// nothing else.
func TestPanicOfTheClient(t *testing.T) {
	client := memcache.New("127.0.0.1:1")
	s := New(client)
	client.DialContext = func(context.Context, string, string) (net.Conn, error) { panic("dial") }
	require.PanicsWithValue(t, "dial", func() { _, _ = s.Sync(t.Context(), order(0, 0)) })
	client.DialContext = func(context.Context, string, string) (net.Conn, error) {
		runtime.Goexit()
		return nil, nil
	}
	_, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
	require.Error(t, err)
}

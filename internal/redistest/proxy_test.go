package redistest_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// dial opens a connection on which nothing waits for ever.
func dial(addr string) (net.Conn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(patience))
}

// setup returns a server, a proxy in front of it, and an impatient client that
// has a connection through the proxy.
func setup(t *testing.T) (*redistest.Server, *redistest.Proxy, *redis.Client) {
	t.Helper()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(impatient, func(o *redis.Options) {
		o.Addr = proxy.Addr()
		o.ReadTimeout = patience
	})
	require.NoError(t, client.Ping(ctx).Err())
	return server, proxy, client
}

func TestProxyForwards(t *testing.T) {
	_, proxy, client := setup(t)
	value := strings.Repeat("x", 5<<20) // many chunks
	require.NoError(t, client.Set(ctx, "key", value, 0).Err())
	require.Equal(t, value, client.Get(ctx, "key").Val())
	for _, faults := range []int64{
		proxy.Swallowed(), proxy.Dropped(), proxy.Delayed(), proxy.Held(), proxy.CutConns(),
	} {
		require.Zero(t, faults)
	}
}

func TestSwallowReply(t *testing.T) {
	server, proxy, client := setup(t)
	proxy.SwallowReply("INCR", 2)
	for i := range int64(2) {
		require.ErrorIs(t, client.Incr(ctx, "key").Err(), io.EOF)
		require.Equal(t, i+1, proxy.Swallowed())
		require.Equal(t, i+1, server.Calls("incr"), "executed once")
		require.NoError(t, client.Ping(ctx).Err(), "other requests are spared")
	}
	require.Equal(t, int64(3), client.Incr(ctx, "key").Val())
	require.Equal(t, int64(2), proxy.Swallowed())
}

// TestSwallowReplyAfterOthers sends the request while a reply to an earlier one
// of the same connection is outstanding.
func TestSwallowReplyAfterOthers(t *testing.T) {
	server, proxy, _ := setup(t)
	conn, err := dial(proxy.Addr())
	require.NoError(t, err)
	defer conn.Close()
	proxy.SwallowReply("incr", 1)
	require.NoError(t, writeAll(conn, "EVAL 'for i=1,100000 do end' 0\r\n"))
	require.NoError(t, writeAll(conn, "INCR key\r\n"))
	_, err = io.ReadAll(conn)
	require.NoError(t, err)
	require.Equal(t, int64(1), proxy.Swallowed())
	require.Equal(t, int64(1), server.Calls("incr"))
}

func TestDropRequests(t *testing.T) {
	server, proxy, client := setup(t)
	proxy.DropRequests("INCR", 2)
	for i := range int64(2) {
		require.ErrorIs(t, client.Incr(ctx, "key").Err(), io.EOF)
		require.Equal(t, i+1, proxy.Dropped())
	}
	require.Zero(t, server.Calls("incr"))
	require.Equal(t, int64(1), client.Incr(ctx, "key").Val())
	require.Equal(t, int64(2), proxy.Dropped())
}

// TestRepeat has a request executed twice. The client notices nothing.
func TestRepeat(t *testing.T) {
	server, proxy, client := setup(t)
	proxy.Repeat(func(chunk []byte) bool { return strings.Contains(string(chunk), "incr") }, 2, time.Millisecond)
	require.Equal(t, int64(1), client.Incr(ctx, "key").Val())
	require.Eventually(t, func() bool { return proxy.Repeated() == 1 }, patience, interval)
	require.Equal(t, "2", client.Get(ctx, "key").Val(), "others are spared")

	proxy.DropRequests("incr", 1)
	require.ErrorIs(t, client.Incr(ctx, "key").Err(), io.EOF)
	require.Eventually(t, func() bool { return proxy.Repeated() == 2 }, patience, interval, "it only comes late")
	require.Equal(t, int64(4), client.Incr(ctx, "key").Val(), "others are spared")
	require.Equal(t, int64(4), server.Calls("incr"))
}

// TestRepeatEndsWithTheTest would otherwise wait for the copy.
func TestRepeatEndsWithTheTest(t *testing.T) {
	t.Run("copy under way", func(t *testing.T) {
		_, proxy, client := setup(t)
		proxy.Repeat(func(chunk []byte) bool { return strings.Contains(string(chunk), "incr") }, 1, time.Hour)
		require.NoError(t, client.Incr(ctx, "key").Err())
	})
}

func TestDelay(t *testing.T) {
	const delay = 100 * time.Millisecond
	_, proxy, client := setup(t)
	proxy.Delay(delay)
	start := time.Now()
	require.NoError(t, client.Ping(ctx).Err())
	require.GreaterOrEqual(t, time.Since(start), delay)
	delayed := proxy.Delayed()
	require.Positive(t, delayed)

	proxy.Delay(0)
	require.NoError(t, client.Ping(ctx).Err())
	require.Equal(t, delayed, proxy.Delayed())
}

func TestCut(t *testing.T) {
	_, proxy, client := setup(t)
	conn, err := dial(proxy.Addr())
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, writeAll(conn, "PING\r\n"))
	_, err = conn.Read(make([]byte, 64))
	require.NoError(t, err)

	proxy.Cut()
	_, err = conn.Read(make([]byte, 64))
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, int64(2), proxy.CutConns())
	proxy.Cut()
	require.Equal(t, int64(2), proxy.CutConns(), "none is left")
	require.NoError(t, client.Ping(ctx).Err(), "new ones are welcome")
}

func TestRefuse(t *testing.T) {
	_, proxy, client := setup(t)
	proxy.Refuse(true)
	proxy.Refuse(true)
	require.NoError(t, client.Ping(ctx).Err(), "current connections stay")
	_, err := dial(proxy.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	proxy.Cut()
	require.ErrorIs(t, client.Ping(ctx).Err(), syscall.ECONNREFUSED)
	proxy.Refuse(false)
	proxy.Refuse(false)
	require.NoError(t, client.Ping(ctx).Err())
}

func TestHoldDeliversLate(t *testing.T) {
	server, proxy, client := setup(t)
	proxy.Hold(true)
	proxy.Hold(true)
	require.ErrorIs(t, incrWithin(client, 50*time.Millisecond), os.ErrDeadlineExceeded)
	require.Positive(t, proxy.Held())
	require.Zero(t, server.Calls("incr"))

	proxy.Hold(false)
	proxy.Hold(false)
	require.Eventually(t, func() bool { return server.Calls("incr") == 1 }, patience, interval)
	require.NoError(t, client.Ping(ctx).Err())
}

// incrWithin gives up after d: the client's own timeout is patient.
func incrWithin(client *redis.Client, d time.Duration) error {
	return client.WithTimeout(d).Incr(ctx, "key").Err()
}

// TestHoldDeliversAllOfALeftConnection has the client leave with several
// requests under way. They are large, so that the replies to the first, which
// have nowhere to go, come while the last are still being delivered.
func TestHoldDeliversAllOfALeftConnection(t *testing.T) {
	const requests, size = 20, 1 << 20
	server, proxy, _ := setup(t)
	conn, err := dial(proxy.Addr())
	require.NoError(t, err)
	proxy.Hold(true)
	set := fmt.Sprintf("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$%d\r\n%s\r\n",
		size, strings.Repeat("x", size))
	for range requests {
		require.NoError(t, writeAll(conn, set))
	}
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return proxy.HeldBytes() == requests*int64(len(set)) }, patience, interval)
	require.Zero(t, server.Calls("set"))
	proxy.Hold(false)
	require.Eventually(t, func() bool {
		return server.Calls("set") == requests
	}, patience, interval)
}

func TestCutLosesWhatIsHeld(t *testing.T) {
	server, proxy, client := setup(t)
	proxy.Hold(true)
	require.Error(t, incrWithin(client, 50*time.Millisecond))
	require.Positive(t, proxy.Held())
	proxy.Cut()
	proxy.Hold(false)
	require.NoError(t, client.Ping(ctx).Err())
	require.Zero(t, server.Calls("incr"))
}

func TestDialerGoesDirectlyToOthers(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	proxy := redistest.NewProxy(t, a.Addr())
	proxy.Refuse(true)
	dial := redistest.Dialer(proxy)
	_, err := dial(context.Background(), "tcp", a.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	conn, err := dial(context.Background(), "tcp", b.Addr())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func writeAll(conn net.Conn, text string) error {
	_, err := io.WriteString(conn, text)
	return err
}

func TestLoseMessages(t *testing.T) {
	_, proxy, client := setup(t)
	sub := client.Subscribe(ctx, "channel")
	defer sub.Close()
	_, err := sub.Receive(ctx)
	require.NoError(t, err)
	proxy.LoseMessages(1)
	for _, text := range []string{"lost", "heard"} { // the answer to a command is no message
		require.EqualValues(t, 1, client.Publish(ctx, "channel", text).Val())
		require.Eventually(t, func() bool { return proxy.Lost() == 1 }, patience, time.Millisecond)
	}
	m, err := sub.ReceiveMessage(ctx)
	require.NoError(t, err)
	require.Equal(t, "heard", m.Payload)
}

// TestRefuseKeyless: of a pipeline it refuses the scripts that name no key, in their places.
func TestRefuseKeyless(t *testing.T) {
	_, proxy, client := setup(t)
	one, sum := "return 1", redis.NewScript("return 1").Hash()
	require.NoError(t, client.Eval(ctx, one, nil).Err(), "and Redis knows the script from here on")
	ask := func() (errs []bool) {
		replies, _ := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, "eval", "*3\r\n$4\r\neval\r\n$1\r\n \r\n$1\r\n0\r\n", 0) // a value that looks like one
			p.Eval(ctx, one, nil)
			p.EvalSha(ctx, sum, []string{"k"}, 0)
			p.EvalShaRO(ctx, sum, nil)
			p.EvalRO(ctx, one, nil, 1)
			p.Get(ctx, "eval")
			return nil
		})
		for _, r := range replies {
			errs = append(errs, r.Err() != nil)
		}
		return errs
	}
	require.Equal(t, make([]bool, 6), ask())
	proxy.RefuseKeyless(true)
	require.Equal(t, []bool{false, true, false, true, true, false}, ask())
	require.EqualValues(t, 3, proxy.Keyless())
	proxy.Heal()
	require.Equal(t, make([]bool, 6), ask())
	require.EqualValues(t, 3, proxy.Keyless())
}

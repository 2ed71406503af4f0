package memcachestore

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// fill stores items like those of other keys, of all sizes, until stop. An attack
// with keys that are used once looks like that.
func fill(t *testing.T, addr string, stop func(n int) bool) {
	t.Helper()
	const burst = 1000
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	replies := bufio.NewReader(conn)
	for n := 0; !stop(n); n += burst {
		require.Less(t, n, 1_000_000, "memory that does not fill")
		var b strings.Builder
		for i := range burst {
			value := "reservoir/2 1764000060000 60000 1 1 0 0 0\n" + strings.Repeat("1 0 0 0 1 \"x\"\n", i%8)
			if i%9 == 8 {
				value = "reservoir/2 1764000060000 60000 10\n" // direct calls only
			}
			fmt.Fprintf(&b, "set reservoir/%d%s 0 60 %d noreply\r\n%s\r\n", n+i, strings.Repeat("x", i%16), len(value), value)
		}
		b.WriteString("mn\r\n")
		_, err := conn.Write([]byte(b.String()))
		require.NoError(t, err)
		for line := ""; line != "MN\r\n"; { // out of memory is told in spite of noreply
			line, err = replies.ReadString('\n')
			require.NoError(t, err)
		}
	}
}

// TestEviction: a memory that is full of other keys throws a live window away. Who
// holds tokens of it tells the store, which learns first, and nothing is admitted
// twice; who has only direct calls gets another limit. This is what -M is for.
func TestEviction(t *testing.T) {
	addr := start(t, "-m", "2").Addr()
	s := over(t, addr)
	first, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "x", Limit: limit10, Want: 8, Need: 8, Strand: -1})
	require.NoError(t, err)
	require.EqualValues(t, 8, first.Grant)
	require.True(t, take(t, s, "direct", 10).Allowed)

	fill(t, addr, func(n int) bool { return n == 100_000 }) // of which some 17,000 fit; to look at a key would keep it
	require.Positive(t, count(t, addr, "evictions"))
	require.EqualValues(t, 10, remaining(t, s, "k"))
	require.EqualValues(t, 10, remaining(t, s, "direct"))

	again, err := s.Sync(t.Context(), order(8, first.Window))
	require.NoError(t, err)
	require.True(t, again.Learning, "the loss is noticed")
	require.EqualValues(t, 8, again.Reasserted)
	require.Equal(t, first.Window, again.Window, "the reset is the same")
	require.LessOrEqual(t, again.Granted, limit10.Tokens)
	require.False(t, take(t, s, "k", 3).Allowed)

	require.True(t, take(t, s, "direct", 10).Allowed, "nobody knows of the first ten")
}

// TestNoEviction: with -M a full memory refuses every write, to old keys too, by an
// error that says so, and keeps what it has.
func TestNoEviction(t *testing.T) {
	addr := start(t, "-m", "2", "-M").Addr()
	s := over(t, addr)
	require.True(t, take(t, s, "k", 8).Allowed)
	write := func(key string) error {
		_, err := s.Take(t.Context(), backend.TakeRequest{Key: key, Limit: limit10, Tokens: 1})
		return err
	}
	fill(t, addr, func(n int) bool { return write(fmt.Sprint("new", n)) != nil })
	require.Zero(t, count(t, addr, "evictions"))
	why := failed(t, write("another"), backend.Rejected)
	require.ErrorContains(t, why, "out of memory")
	require.False(t, why.KeyOnly)
	failed(t, write("k"), backend.Rejected)
	require.EqualValues(t, 2, remaining(t, s, "k"), "it is still counted")
	_, err := s.Sync(t.Context(), order(0, 0))
	failed(t, err, backend.Rejected)
	require.EqualValues(t, 2, remaining(t, s, "k"))
}

// TestRestart: everything is gone, and told anew by who holds tokens.
func TestRestart(t *testing.T) {
	server := start(t)
	s := over(t, server.Addr())
	first, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "x", Limit: limit10, Want: 6, Need: 6, Strand: -1})
	require.NoError(t, err)
	require.True(t, take(t, s, "k", 2).Allowed)
	server.Restart()
	require.EqualValues(t, 10, remaining(t, s, "k"))

	again, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "x", Limit: limit10, Window: first.Window, Granted: 6})
	require.NoError(t, err)
	require.Equal(t, first.Window, again.Window)
	require.EqualValues(t, 6, again.Reasserted)
	require.True(t, again.Learning)
	require.EqualValues(t, 4, remaining(t, s, "k"), "but for the direct call, of which nobody knows")
}

// TestForeign: what somebody else keeps by the key's name is no count, and stays.
func TestForeign(t *testing.T) {
	client := dial(t, start(t).Addr())
	s := New(client)
	for _, value := range []string{"7", "", "reservoir/2 1764000060000 5 0 0\n"} {
		require.NoError(t, client.Set(&memcache.Item{Key: s.name("k"), Value: []byte(value)}))
		_, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
		require.True(t, failed(t, err, backend.Rejected).KeyOnly, "other keys are served")
		_, err = s.Sync(t.Context(), order(0, 0))
		require.True(t, failed(t, err, backend.Rejected).KeyOnly)
		item, err := client.Get(s.name("k"))
		require.NoError(t, err)
		require.Equal(t, value, string(item.Value))
	}
}

// ledger is a counter with as many clients of 5 tokens each as make such a size.
func ledger(size int) (value []byte, end backend.Window, clients int) {
	end = backend.Window(time.Now().Add(time.Minute).UnixMilli())
	value = fmt.Appendf(nil, "reservoir/2 %d 60000 500000 500000 0 0 0\n", end)
	for ; len(value) < size-40; clients++ {
		value = fmt.Appendf(value, "5 0 0 0 1 \"%014d\"\n", clients) // as long as a limiter's name
	}
	return value, end, clients
}

// TestLedgerFull: a key has no more clients than fit into an item, by our bound or by
// the server's (-I). Those that it has go on.
func TestLedgerFull(t *testing.T) {
	for _, row := range []struct {
		what    string
		args    []string
		size    int
		clients int // at least
		is      string
	}{
		{"ours", nil, maxValue, 30_000, ErrLedgerFull.Error()},
		{"the server's", []string{"-I", "512k"}, 524_100, 15_000, "too large"},
	} {
		t.Run(row.what, func(t *testing.T) {
			client := dial(t, start(t, row.args...).Addr())
			s := New(client)
			l := backend.Limit{Tokens: 1_000_000, Window: time.Minute}
			value, end, clients := ledger(row.size)
			require.NoError(t, client.Set(&memcache.Item{Key: s.name("k"), Value: value}), "memcached takes as much")
			require.Greater(t, clients, row.clients)

			say := backend.SyncRequest{Key: "k", Client: strings.Repeat("n", 64), Limit: l, Want: 5, Need: 5, Strand: -1}
			var err error
			for i := 0; err == nil && i < 10; i++ {
				say.Client = fmt.Sprintf("%064d", i)
				_, err = s.Sync(t.Context(), say)
			}
			full := failed(t, err, backend.Rejected)
			require.ErrorContains(t, full, row.is)
			require.True(t, full.KeyOnly, "other keys are served")

			say.Client, say.Window, say.Granted, say.Want, say.Need = fmt.Sprintf("%014d", 7), end, 5, 1, 1
			r, err := s.Sync(t.Context(), say)
			require.NoError(t, err)
			require.EqualValues(t, 6, r.Granted)
			require.GreaterOrEqual(t, r.Clients, int64(clients))
			direct, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: l, Tokens: 1})
			require.NoError(t, err)
			require.True(t, direct.Allowed)
		})
	}
}

// TestNothingToWrite: a refusal, a look and a statement that changes nothing are reads.
func TestNothingToWrite(t *testing.T) {
	addr := start(t).Addr()
	s := over(t, addr)
	require.EqualValues(t, 10, remaining(t, s, "k"))
	_, err := s.Sync(t.Context(), backend.SyncRequest{Key: "k", Client: "x", Limit: limit10})
	require.NoError(t, err)
	require.Zero(t, count(t, addr, "cmd_set"), "no window opens by that")

	first, err := s.Sync(t.Context(), order(0, 0))
	require.NoError(t, err)
	take(t, s, "k", 8)
	require.Equal(t, 2, count(t, addr, "cmd_set"))
	require.False(t, take(t, s, "k", 1).Allowed)
	for range 2 { // the first notes that the limit is used up
		again, err := s.Sync(t.Context(), order(2, first.Window))
		require.NoError(t, err)
		require.Zero(t, again.Grant)
	}
	remaining(t, s, "k")
	_, err = s.Refund(t.Context(), backend.RefundRequest{Key: "k", Window: first.Window + 1, Client: "r", Total: 1})
	require.NoError(t, err)
	_, err = s.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, 3, count(t, addr, "cmd_set"))
}

// TestNoCAS: a server that has no compare-and-swap would let writes overwrite each
// other. It is not used.
func TestNoCAS(t *testing.T) {
	s := over(t, start(t, "-C").Addr())
	take(t, s, "k", 1) // there is nothing to swap yet
	_, err := s.Take(t.Context(), backend.TakeRequest{Key: "k", Limit: limit10, Tokens: 1})
	failed(t, err, backend.Rejected)
	require.ErrorIs(t, err, errNoCAS)
}

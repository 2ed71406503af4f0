package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// roll charges a rolling limit under the real clock.
func roll(t *testing.T, s *redisstore.Store, key string, n int64) backend.TakeReply {
	t.Helper()
	r, err := s.TakeRolling(t.Context(), backend.TakeRequest{Key: key, Limit: rolling10, Tokens: n, Within: time.Second})
	require.NoError(t, err)
	return r
}

// TestRollingLayout shows what lies in Redis, and that it goes.
func TestRollingLayout(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client, redisstore.WithPrefix("rl:"))
	now := time.UnixMicro(1_900_000_000_500_000)
	ctx := storeclock.With(t.Context(), now)
	sync := func(r backend.SyncRequest) backend.SyncReply {
		r.Key, r.Limit, r.Exact = "user 1", rolling10, true
		got, err := s.SyncRolling(ctx, r)
		require.NoError(t, err)
		return got
	}
	a := sync(backend.SyncRequest{Client: "process.0", Want: 4, Need: 1})
	b := sync(backend.SyncRequest{Client: "b", Want: 2})
	require.Equal(t, map[string]string{
		"h": "1900000000500000 0 6 6 2 5", "c": "60000", "L": "6", // of slice 633333333 + 7, which is 28 modulo 32
		"process.0": "0 7 4 4+1", "..b": "0 7 2 2+0",
	}, client.HGetAll(ctx, "rl:{user%201}:60s:roll").Val())
	left := client.PTTL(ctx, "rl:{user%201}:60s:roll").Val()
	require.Greater(t, left, 26*3*time.Second)
	require.Less(t, left, 36*3*time.Second)
	require.EqualValues(t, 1, client.DBSize(ctx).Val(), "a key of its own")

	sync(backend.SyncRequest{Client: "b", Account: b.Account, Window: b.Window, Granted: 2, Returned: 1, Debt: 3, Leaving: true})
	sync(backend.SyncRequest{Client: "process.0", Account: a.Account, Window: a.Window, Granted: 4, Spent: []backend.Spent{{Slice: backend.MaxTokens, Tokens: 1}}})
	require.Equal(t, map[string]string{
		"h": "1900000000500000 0 8 10 1", "c": "60000", "L": "4", "E": "4", "process.0": "0 7 4 3", "..b": "~0 7 2 1 1 0 3",
	}, client.HGetAll(ctx, "rl:{user%201}:60s:roll").Val())

	ctx = storeclock.With(t.Context(), now.Add(time.Hour)) // nothing of it matters any more
	sync(backend.SyncRequest{Client: "new.0", Want: 1, Need: 1})
	require.Equal(t, map[string]string{"h": "1900003600500000 0 1 1 1", "c": "60000 0 0 0 0 0 0 1", "T": "1"}["h"], client.HGet(ctx, "rl:{user%201}:60s:roll", "h").Val())
	require.ElementsMatch(t, []string{"h", "c", "<", "new.0", "process.0", "..b"}, client.HKeys(ctx, "rl:{user%201}:60s:roll").Val(), "clients of another era are deleted later")

	short := backend.Limit{Tokens: 10, Window: backend.MinRolling}.Rolling()
	_, err := s.TakeRolling(t.Context(), backend.TakeRequest{Key: "short", Limit: short, Tokens: 1})
	require.NoError(t, err)
	require.NoError(t, client.Del(t.Context(), "rl:{user%201}:60s:roll").Err())
	require.Eventually(t, func() bool { return client.DBSize(t.Context()).Val() == 0 }, 10*time.Second, 20*time.Millisecond)
}

// TestRollingClockAfterSilence: a ring that begins anew goes on after the last one, until the server's clock has come so far.
// Until then it does not expire.
func TestRollingClockAfterSilence(t *testing.T) {
	client := redistest.Start(t).Client()
	s, now := redisstore.New(client), time.UnixMicro(1_900_000_000_000_000)
	take := func(at time.Duration) backend.TakeReply {
		r, err := s.TakeRolling(storeclock.With(t.Context(), now.Add(at)), backend.TakeRequest{Key: "k", Limit: rolling10, Tokens: 1, Within: time.Second})
		require.NoError(t, err)
		require.True(t, r.Allowed)
		return r
	}
	first := take(0)
	require.Equal(t, first.Window, take(-time.Hour).Window)
	left := client.PTTL(t.Context(), "{k}:60s:roll").Val()
	require.Greater(t, left, time.Hour+29*3*time.Second)
	require.Less(t, left, time.Hour+36*3*time.Second)

	again := take(-time.Hour / 2)
	require.Equal(t, 29*3*time.Second, time.Duration(again.Window.End-first.Window.End)*time.Millisecond, "in the first slice in which all was over")
	require.Equal(t, 21*3*time.Second, again.Left)
	left = client.PTTL(t.Context(), "{k}:60s:roll").Val()
	require.Greater(t, left, time.Hour/2+58*3*time.Second)
	require.Less(t, left, time.Hour/2+65*3*time.Second)
	require.Equal(t, first.Window.End+time.Hour.Milliseconds(), take(time.Hour).Window.End)
}

// TestRollingBytes: what a busy key takes, with all of its slices in use.
func TestRollingBytes(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	limit := backend.Limit{Tokens: 60_000, Window: time.Minute}.Rolling()
	bytes := func(clients int) int64 {
		key := fmt.Sprintf("user:%06d", clients)
		accounts := make([]backend.SyncRequest, clients)
		for i := range accounts {
			accounts[i] = backend.SyncRequest{Key: key, Client: fmt.Sprintf("ABCDEFGHIJ%02d.0", i), Limit: limit, Need: 1, Want: int64(2500 / clients)}
		}
		start := time.Now()
		for step := range 60 { // three windows, a slice each
			for i := range accounts {
				r := &accounts[i]
				r.Spent = []backend.Spent{{Slice: backend.MaxTokens, Tokens: max(r.Granted-7, 0)}}
				got, err := s.SyncRolling(storeclock.With(t.Context(), start.Add(time.Duration(step*300+i)*10*time.Millisecond)), *r)
				require.NoError(t, err)
				r.Account, r.Window, r.Granted, r.Total, r.Peers = got.Account, got.Window, got.Granted, got.Total, got.Clients
			}
		}
		return client.MemoryUsage(t.Context(), "{"+key+"}:60s:roll", 0).Val()
	}
	one, many := bytes(1), bytes(41)
	t.Logf("%d bytes with one client, %d with 41", one, many)
	require.LessOrEqual(t, one, int64(350))
	require.LessOrEqual(t, many, one+40*40)
}

// TestRollingOnReplica: a replica answers a Check.
func TestRollingOnReplica(t *testing.T) {
	r := redistest.StartReplicated(t, 1)
	replica := r.Replicas[0].Client()
	s := redisstore.New(r.Primary.Client(), redisstore.WithReplicas(replica))
	roll(t, s, "k", 4)
	require.Eventually(t, func() bool { return replica.Exists(t.Context(), "{k}:60s:roll").Val() == 1 }, 5*time.Second, 2*time.Millisecond)
	r.Primary.ResetStats()
	state, err := s.Check(t.Context(), "k", rolling10)
	require.NoError(t, err)
	require.EqualValues(t, 6, state.Remaining)
	require.Zero(t, r.Primary.Calls("evalsha_ro", "eval_ro"))
}

// TestRollingAck: what a lost reply granted, and what no replica has, are told apart.
func TestRollingAck(t *testing.T) {
	r := redistest.StartReplicated(t, 1)
	s := redisstore.New(r.Primary.Client(), redisstore.WithReplicaAck(1, 100*time.Millisecond))
	q := backend.SyncRequest{Key: "k", Client: "a.1", Limit: rolling10, Want: 4, Need: 1, Exact: true}
	r.Link(0).Hold(true)
	for op, call := range map[string]func() error{
		"sync": func() error { _, err := s.SyncRolling(t.Context(), q); return err },
		"take": func() error {
			_, err := s.TakeRolling(t.Context(), backend.TakeRequest{Key: "k", Limit: rolling10, Tokens: 1})
			return err
		},
	} {
		err := call()
		require.ErrorIs(t, err, redisstore.ErrNotReplicated, op)
		require.Equal(t, backend.Unknown, class(t, err), op)
	}
	other := redisstore.New(r.Primary.Client(), redisstore.WithReplicaAck(1, 100*time.Millisecond)) // another connection
	r.Primary.ResetStats()
	_, err := other.SyncRolling(t.Context(), q)
	require.ErrorIs(t, err, redisstore.ErrNotReplicated, "the same again is not usable either")
	require.EqualValues(t, 1, r.Primary.Calls("hset"), "written anew, for WAIT to speak of it")
	r.Link(0).Hold(false)
	r.AwaitSync()
	got, err := s.SyncRolling(t.Context(), q)
	require.NoError(t, err)
	require.EqualValues(t, 4, got.Recovered)
	require.EqualValues(t, 5, got.Remaining, "charged once")
}

// TestRollingHalfAccess: what the script lacks a right to never admits more.
func TestRollingHalfAccess(t *testing.T) {
	server := redistest.Start(t)
	s := redisstore.New(server.Client())
	for _, missing := range []string{"hset", "hmget", "hdel", "hrandfield", "pexpireat", "publish"} {
		server.SetUser("user poor on >" + aclPassword + " ~* &* +@all -" + missing)
		poor := redisstore.New(server.Client(redistest.User("poor", aclPassword)))
		now := time.Now()
		granted := int64(0)
		for step := range 200 {
			at := storeclock.With(t.Context(), now.Add(time.Duration(step)*time.Second))
			for who, store := range map[string]*redisstore.Store{"a.1": s, "b.1": poor} {
				got, err := store.TakeRolling(at, backend.TakeRequest{Key: missing, Limit: rolling10, Tokens: 1})
				if got.Allowed && err == nil {
					granted++
				}
				_, _ = store.SyncRolling(at, backend.SyncRequest{Key: missing + "2", Client: who, Limit: rolling10, Want: 10, Need: 10, Exact: true})
				_ = who
			}
		}
		require.LessOrEqual(t, granted, int64(40), missing)
		in, err := s.Inspect(storeclock.With(t.Context(), now.Add(199*time.Second)), missing+"2")
		require.NoError(t, err)
		for _, c := range in {
			require.LessOrEqual(t, c.Used, int64(10), missing)
		}
	}
}

// TestRollingForeign puts anything into the hash. An error of the store changes nothing, and no
// answer grants more than the limit.
func TestRollingForeign(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	rnd := rand.New(rand.NewPCG(1, 2))
	now := time.Now().UnixMicro()
	pieces := []string{"", " ", "0", "1", "-1", "~", "+", "@", "nan", "inf", "0x10", "1e3", "9007199254740991", "9007199254740993", "99999999999999999999",
		fmt.Sprint(now), fmt.Sprint(now - 1_000_000), "60000", "20", "3", "4 4", "\x00", "\xff", " 10 5", " 4 4 2+1"}
	text := func(good string) string {
		if rnd.IntN(3) > 0 {
			return good
		}
		parts := []string{}
		for range rnd.IntN(4) {
			parts = append(parts, pieces[rnd.IntN(len(pieces))])
		}
		return strings.Join(parts, "")
	}
	refused, answered := 0, 0
	for range 4000 {
		require.NoError(t, client.Del(t.Context(), "{k}:60s:roll").Err())
		fields := []any{"h", text(fmt.Sprintf("%d 1 3 5 1 2", now-5)), "c", text("60000"), "a.1", text("0 4 3 3+1"), "b.1", text("0 4 0 0+0"),
			string(rune('0' + rnd.IntN(32))), text("3"), string(rune('0' + rnd.IntN(32))), text("1")}
		require.NoError(t, client.HSet(t.Context(), "{k}:60s:roll", fields...).Err())
		before := client.HGetAll(t.Context(), "{k}:60s:roll").Val()
		var err error
		switch rnd.IntN(4) {
		case 0:
			var r backend.SyncReply
			r, err = s.SyncRolling(t.Context(), backend.SyncRequest{Key: "k", Client: "a.1", Limit: rolling10, Want: 9, Need: 9, Exact: rnd.IntN(2) == 0})
			assert.LessOrEqual(t, r.Grant-r.Recovered, int64(10))
		case 1:
			_, err = s.TakeRolling(t.Context(), backend.TakeRequest{Key: "k", Limit: rolling10, Tokens: 2})
		case 2:
			_, err = s.SettleRolling(t.Context(), backend.SettleRequest{Key: "k", Window: backend.Window{End: now/1000 + 60_000}, Tokens: -1, Limit: rolling10})
		default:
			_, err = s.Inspect(t.Context(), "k")
			typed(t, err)
			_, err = s.Check(t.Context(), "k", rolling10)
		}
		if typed(t, err); err == nil {
			answered++
			continue
		}
		refused++
		require.Equal(t, backend.Rejected, class(t, err), "%v: %v", before, err)
		require.Equal(t, before, client.HGetAll(t.Context(), "{k}:60s:roll").Val(), "%v", err)
	}
	require.Positive(t, refused)
	require.Positive(t, answered)
}

// TestRollingInAnOpenSlot: a slot is on its way, and the ring is still here, or there already. No call
// needs to make another key, or to know that there is none.
func TestRollingInAnOpenSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := redisstore.New(c.Client())
	q := backend.SyncRequest{Key: "k", Client: "a.1", Limit: rolling10, Want: 2, Need: 2, Exact: true}
	_, err := s.SyncRolling(t.Context(), q)
	require.NoError(t, err)
	from, to := c.NodeOf("k"), c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	c.OpenSlot(from, to, c.SlotOf("k"))
	for _, moved := range []bool{false, true} {
		if moved {
			from.MigrateKeys(to, "{k}:60s:roll")
		}
		taken := roll(t, s, "k", 3)
		require.True(t, taken.Allowed)
		settled, err := s.SettleRolling(t.Context(), backend.SettleRequest{Key: "k", Window: taken.Window, Tokens: -3, Limit: rolling10})
		require.NoError(t, err)
		require.True(t, settled.Open)
		got, err := s.SyncRolling(t.Context(), q)
		require.NoError(t, err)
		require.EqualValues(t, 2, got.Recovered)
		state, err := s.Check(t.Context(), "k", rolling10)
		require.NoError(t, err)
		require.EqualValues(t, 8, state.Remaining)
	}
}

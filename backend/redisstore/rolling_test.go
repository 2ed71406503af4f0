package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// TestRollingLayout shows what lies in Redis, and what Inspect makes of it.
func TestRollingLayout(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client, redisstore.WithPrefix("rl:"))
	const counter = "rl:{user%201}:60s:roll"
	now := time.UnixMicro(1_900_000_000_500_000) // in bucket 633333333
	ctx := storeclock.With(t.Context(), now)
	ask := func(h *holder, n, change int64) backend.Reply {
		t.Helper()
		r, err := h.ask(ctx, n, change)
		require.NoError(t, err)
		return r
	}
	inspect := func() backend.Contents {
		t.Helper()
		all, err := s.Inspect(ctx, "user 1")
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0]
	}
	a, b := newHolder(s, "process.0", "user 1", rolling10), newHolder(s, "b", "user 1", rolling10)
	a.next.Life, a.next.Want, a.next.Need, a.next.Seq, a.next.Pace = 1<<52, 4, 1, 1, 20
	r, err := s.Sync(ctx, a.next)
	require.NoError(t, err)
	require.Equal(t, []backend.Change{{Bucket: 633333333, Tokens: 2}, {Bucket: 633333334, Tokens: 1}, {Bucket: 633333335, Tokens: 1}}, r.Grants)
	a.next.Known = 1
	ask(b, 2, 0)
	require.Equal(t, map[string]string{
		"head":      "0 2 6 23 1900000000500000 22 0",
		"idle":      "+3 0 0 0 0",
		"1":         "0,0,0,0,0,4,1,1", // buckets 633333328 and after: that divided by 8, modulo 5
		"process.0": "0 4503599627370496 1 633333333 0 2 1*2+3",
		"b":         "0 1 1 633333333 0 2",
	}, client.HGetAll(ctx, counter).Val())
	require.Equal(t, backend.Contents{
		Counter: "60s:roll", Window: backend.Window{End: 1900000068000}, Left: 67500 * time.Millisecond, Used: 6, Idle: 3,
		Clients: []backend.Account{{Client: "b"}, {Client: "process.0", Idle: 3}},
	}, inspect())
	require.InDelta(t, 121_000, client.PTTL(ctx, counter).Val().Milliseconds(), 5000)
	require.EqualValues(t, 1, client.DBSize(ctx).Val(), "a key of its own")

	a.next.Changes, a.next.Want, a.next.Need, a.next.Seq = []backend.Change{{Bucket: 633333335, Tokens: -1}, {Tokens: 3}}, 0, 0, 2
	_, err = s.Sync(ctx, a.next)
	require.NoError(t, err)
	b.next.Leaving = true
	ask(b, 0, -1)
	require.Equal(t, map[string]string{
		"head":      "0 1 7 22 1900000000500000 22 0",
		"idle":      "+0 0 0 0 0",
		"1":         "0,0,0,0,0,6,1,0",
		"process.0": "0 4503599627370496 2 633333333 0 3 0 -1",
		"b":         "~0 1 2 633333333 0 -1",
	}, client.HGetAll(ctx, counter).Val())

	void, err := s.Reset(ctx, "user 1", rolling10)
	require.NoError(t, err)
	require.Equal(t, backend.Window{End: 1900000065000}, void)
	require.Equal(t, "1900000000500 0 0 0 1900000000500000 0 0", client.HGet(ctx, counter, "head").Val())
	all, err := s.Inspect(ctx, "user 1")
	require.NoError(t, err)
	require.Empty(t, all)
	ask(b, 1, 0)
	require.Equal(t, []backend.Account{{Client: "b", Left: true}}, inspect().Clients, "the other's is of another generation")

	short := backend.Limit{Tokens: 10, Window: backend.MinRolling}.Rolling()
	_, err = charge(t.Context(), s, "short", short, 1)
	require.NoError(t, err)
	require.NoError(t, client.Del(t.Context(), counter).Err())
	require.Eventually(t, func() bool { return client.DBSize(t.Context()).Val() == 0 }, 10*time.Second, 20*time.Millisecond)
}

// TestRollingClock: the server's clock steps back, and the ring's goes on. What every method says of the time is the ring's, but what
// the store learns from it is the server's.
func TestRollingClock(t *testing.T) {
	client := redistest.Start(t).Client()
	s, now := redisstore.New(client), time.Now()
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), now.Add(d)) }
	first, err := charge(at(time.Hour), s, "k", rolling10, 1)
	require.NoError(t, err)
	later, err := charge(at(0), s, "k", rolling10, 1)
	require.NoError(t, err)
	require.Equal(t, first.Window, later.Window)
	require.Equal(t, []int64{now.Add(time.Hour).UnixMicro(), int64(first.Left)}, []int64{later.Now, int64(later.Left)})
	state, err := s.Check(at(time.Second), "k", rolling10)
	require.NoError(t, err)
	require.Equal(t, first.Left-time.Second, state.Left)
	in, err := s.Inspect(at(time.Second), "k")
	require.NoError(t, err)
	require.Equal(t, []backend.Contents{{Counter: "60s:roll", Window: first.Window, Left: state.Left, Used: 2}}, in)

	h := newHolder(s, "a.1", "k", rolling10)
	for range 2 {
		_, err = h.ask(t.Context(), 1, 0)
		require.NoError(t, err)
	}
	h.next.Seq--
	void, err := s.Sync(t.Context(), h.next)
	require.NoError(t, err)
	require.True(t, void.Void)
	require.Greater(t, void.Now, now.Add(time.Hour).UnixMicro())
	require.Less(t, void.Now, time.Now().Add(time.Hour).UnixMicro())
	_, err = s.Reset(t.Context(), "k", rolling10)
	require.NoError(t, err)
	_, err = s.Check(t.Context(), "k", rolling10)
	require.NoError(t, err)
	require.Less(t, redisstore.Ahead(s), time.Minute, "the server's clock is ours")
}

// TestRollingHalfAccess: what the script lacks a right to never admits more.
func TestRollingHalfAccess(t *testing.T) {
	server := redistest.Start(t)
	s := redisstore.New(server.Client())
	large := backend.Limit{Tokens: 200, Window: time.Minute}.Rolling()
	for _, missing := range []string{"hset", "hmget", "hlen", "hdel", "hrandfield", "pexpire", "publish", "time"} {
		server.SetUser("user poor on >" + aclPassword + " ~* &* +@all -" + missing)
		poor := redisstore.New(server.Client(redistest.User("poor", aclPassword)))
		now, failures, spent := time.Now(), 0, map[int64]int64{}
		for i := range 80 { // so many accounts that some are deleted
			_, err := newHolder(s, fmt.Sprint("p.", i), missing, large).ask(storeclock.With(t.Context(), now), 1, 0)
			require.NoError(t, err)
		}
		spent[backend.Bucket(now.UnixMicro(), time.Minute)] = 80
		all := []*holder{newHolder(s, "a.1", missing, large), newHolder(poor, "b.1", missing, large)}
		for step := range 120 {
			at := storeclock.With(t.Context(), now.Add(time.Duration(step)*time.Second))
			for i := range all {
				h := all[(i+step)%2]
				r, err := h.ask(at, 30, 0)
				if err != nil {
					failures++
				}
				for _, g := range r.Grants {
					spent[g.Bucket] += g.Tokens
				}
			}
		}
		require.Equal(t, missing != "publish" && missing != "time", failures > 0, missing) // a test gives the time
		for first := range spent {
			sum := int64(0)
			for i := range int64(backend.Buckets + 1) {
				sum += spent[first+i]
			}
			require.LessOrEqual(t, sum, large.Tokens, missing)
		}
	}
}

// TestRollingForeign puts anything into the hash. An error of the store changes nothing, and no
// answer grants more than the limit.
func TestRollingForeign(t *testing.T) {
	client := redistest.Start(t).Client()
	s := redisstore.New(client)
	rnd := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	low := backend.Bucket(now.UnixMicro(), time.Minute) - backend.Buckets
	pieces := []string{"", " ", "0", "1", "-1", "~", "+", "@", ".", "nan", "inf", "0x10", "1e3", "9007199254740991", "9007199254740993", "99999999999999999999",
		fmt.Sprint(now.UnixMicro()), fmt.Sprint(low), "60000", "20", "3", "4 4", "\x00", "\xff", " 10 5", " 4 4 2+1"}
	text := func(good string) string {
		switch words := regexp.MustCompile(`[^ ,]+[ ,]?`).FindAllString(good, -1); rnd.IntN(4) {
		case 0, 1:
			return good
		case 2: // one word is another
			words[rnd.IntN(len(words))] = pieces[rnd.IntN(len(pieces))]
			return strings.Join(words, "")
		default:
			parts := []string{}
			for range rnd.IntN(4) {
				parts = append(parts, pieces[rnd.IntN(len(pieces))])
			}
			return strings.Join(parts, "")
		}
	}
	const ring = "{k}:60s:roll"
	refused, answered := 0, 0
	for range 4000 {
		require.NoError(t, client.Del(t.Context(), ring).Err())
		fields := []any{"head", text(fmt.Sprintf("0 2 6 21 %d 1 1 3 0", now.UnixMicro())), "idle", text("+3 0 0 0 0"), fmt.Sprint(low / 8 % 5), text("0,0,1,0,0,0,0,0"),
			fmt.Sprint((low + 20) / 8 % 5), text("0,0,0,0,2,1,1,1"), "a.1", text(fmt.Sprintf("0 1 1 %d 0 3 1*2", low+20)), "b.1", text(fmt.Sprintf("0 1 1 %d -3 1 1+3", low+20))}
		require.NoError(t, client.HSet(t.Context(), ring, fields...).Err())
		before := client.HGetAll(t.Context(), ring).Val()
		var err error
		var r backend.Reply
		switch rnd.IntN(5) {
		case 0:
			h := newHolder(s, "a.1", "k", rolling10)
			h.next.Seq, h.next.Known, h.bucket = 1, rnd.Int64N(2), low+20
			r, err = h.ask(t.Context(), 9, 1-rnd.Int64N(3))
		case 1:
			r, err = charge(t.Context(), s, "k", rolling10, 2)
		case 2:
			_, err = s.Reset(t.Context(), "k", rolling10)
		case 3:
			_, err = s.Inspect(t.Context(), "k")
		default:
			_, err = s.Check(t.Context(), "k", rolling10)
		}
		if typed(t, err); err == nil {
			answered++
			require.True(t, r.Grant == 0 || r.Used <= 10, "%v: %+v", before, r)
			continue
		}
		refused++
		require.Equal(t, backend.Rejected, class(t, err), "%v: %v", before, err)
		require.Equal(t, before, client.HGetAll(t.Context(), ring).Val(), "%v", err)
	}
	require.Positive(t, refused)
	require.Positive(t, answered)
	for what, put := range map[string]func() error{
		"WRONGTYPE": func() error { return client.Set(t.Context(), ring, "x", 0).Err() },
		"BADSTATE":  func() error { return client.HSet(t.Context(), ring, "head", "0 1 3").Err() },
	} {
		require.NoError(t, client.Del(t.Context(), ring).Err())
		require.NoError(t, put())
		for _, c := range callsOf(s, "k")[4:] {
			require.ErrorContains(t, c.do(t.Context()), what)
		}
		_, err := s.Inspect(t.Context(), "k")
		require.Equal(t, backend.Rejected, class(t, err))
	}
	for _, counts := range []string{"many", "0,0,0", "99999999999999999,99999999999999999,99999999999999999,99999999999999999,99999999999999999,99999999999999999,99999999999999999,99999999999999999"} {
		require.NoError(t, client.Del(t.Context(), ring).Err())
		for field := range 5 {
			require.NoError(t, client.HSet(t.Context(), ring, field, counts, "head", fmt.Sprintf("0 1 3 21 %d 1 1", time.Now().UnixMicro())).Err())
		}
		for _, c := range callsOf(s, "k")[4:6] {
			require.ErrorContains(t, c.do(t.Context()), "BADSTATE", counts)
		}
	}
}

// TestRollingInAnOpenSlot: a slot is on its way, and the ring is still here, or there already. No call
// needs to make another key, or to know that there is none; also one that deletes old accounts goes on.
func TestRollingInAnOpenSlot(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 2, 0)
	s := redisstore.New(c.Client())
	large := backend.Limit{Tokens: 200, Window: time.Minute}.Rolling()
	base := time.Now()
	at := func(d time.Duration) context.Context { return storeclock.With(t.Context(), base.Add(d)) }
	for i := range 80 {
		_, err := newHolder(s, fmt.Sprint("p.", i), "k", large).ask(at(0), 1, 0)
		require.NoError(t, err)
	}
	a := newHolder(s, "a.1", "k", large)
	from, to := sides(c, "k")
	c.OpenSlot(from, to, c.SlotOf("k"))
	later := 90 * time.Second
	for _, node := range []*redistest.Server{from, to} {
		if node == to {
			from.MigrateKeys(to, "{k}:60s:roll")
		}
		fields := node.Client().HLen(t.Context(), "{k}:60s:roll").Val()
		for range 10 {
			later += 3 * time.Second
			r, err := a.ask(at(later), 3, 0)
			require.NoError(t, err)
			require.EqualValues(t, 3, r.Grant)
			_, err = a.ask(at(later), 0, -2)
			require.NoError(t, err)
			r, err = charge(at(later), s, "k", large, 2)
			require.NoError(t, err)
			require.EqualValues(t, 2, r.Grant)
		}
		state, err := s.Check(at(later), "k", large)
		require.NoError(t, err)
		require.EqualValues(t, map[*redistest.Server]int64{from: 170, to: 140}[node], state.Remaining)
		require.Equal(t, node == from, node.Client().HLen(t.Context(), "{k}:60s:roll").Val() < fields, "some accounts went")
		if node == to {
			_, err = s.Reset(at(later), "k", large)
			require.NoError(t, err)
			r, err := a.ask(at(later), 3, -1)
			require.NoError(t, err)
			require.EqualValues(t, 3, r.Used)
		}
	}
}

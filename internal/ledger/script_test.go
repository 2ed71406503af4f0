package ledger

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/lua"
)

// script runs the rules of package lua on a server, with a given time.
type script struct {
	redis.UniversalClient
	statement, void *redis.Script
	keys            []string
}

func scripts(c redis.UniversalClient, key string) *script {
	keys := []string{"{" + key + "}:60s", "{" + key + "}:60s:exp", "{" + key + "}:60s:own"}
	return &script{c, redis.NewScript(lua.Sync), redis.NewScript(lua.Reset), keys}
}

// reset voids the open window.
func (s *script) reset(t *testing.T, length, now int64) []int64 {
	v, err := s.void.Run(context.Background(), s, s.keys, length, 0, now).Int64Slice()
	require.NoError(t, err)
	return v
}

func (s *script) sync(t *testing.T, q backend.Statement, now int64) backend.Reply {
	how := 64
	for i, bit := range []bool{q.Exact, q.Deaf, q.Waited, q.Leaving, q.Runs, q.GaveUp} {
		if bit {
			how += 1 << i
		}
	}
	args := []any{q.Client, q.Limit.Tokens, q.Limit.Window.Milliseconds(), q.Need, how}
	if period := q.Begin != 0; q.Client != "" || q.Change != 0 || period {
		args = append(args, q.Want, q.Least, q.Life, q.Seq)
		if q.Window.End|q.Change|q.Pace != 0 || period {
			args = append(args, name(q.Window), q.Mine, q.Change, q.Used, q.Idle)
			if !q.Exact || period {
				args = append(args, q.Pace, q.Run)
			}
			if period {
				args = append(args, q.Begin, q.End)
			}
		}
	}
	if q.Hold > 0 {
		args[4] = how + 128
		args = append(args, (q.Hold+time.Millisecond-1)/time.Millisecond)
	}
	v, err := s.statement.Run(context.Background(), s, s.keys, append(args, 0, now)...).Int64Slice()
	require.NoError(t, err)
	v = append(v, make([]int64, 12)...)
	r := backend.Reply{Astray: v[0]&2 != 0, Void: v[0]&4 != 0, Now: v[1], Used: v[4], Mine: v[5], Grant: v[6], Clients: v[7], Lasted: time.Duration(v[8]) * time.Millisecond, Idle: v[9], Called: v[10]}
	if r.Astray || r.Void {
		return r
	}
	if r.Window = (backend.Window{End: v[2], Gen: v[3]}); v[2] != 0 {
		r.Left = time.Duration(v[2]*1000-v[1]) * time.Microsecond
	}
	r.Remaining = max(q.Limit.Tokens-r.Used, 0)
	if r.Held = time.Duration(v[11]) * time.Microsecond; r.Held > 0 {
		r.Remaining = 0
	}
	return r
}

// name is the text of w.
func name(w backend.Window) string {
	if w.Gen > 0 {
		return fmt.Sprintf("%d.%d", w.End, w.Gen)
	}
	return fmt.Sprint(w.End)
}

// fixed is a limit of a window of so many ms.
func fixed(tokens, length int64) backend.Limit {
	return backend.Limit{Tokens: tokens, Window: time.Duration(length) * time.Millisecond}
}

// later is a time by which no time to live of these tests has passed.
func later() int64 { return time.Now().Add(time.Hour).Truncate(time.Second).UnixMicro() }

// TestSlotThatMoves: all keys of a slot that is on its way are still here. No script deletes what it
// writes next, because a key that is deleted there cannot be written again until the slot has moved.
func TestSlotThatMoves(t *testing.T) {
	c := redistest.StartCluster(t, 2, 0)
	minute := int64(60_000)
	ask := func(client string, seq int64) backend.Statement {
		return backend.Statement{Client: client, Life: 1, Seq: seq, Want: 1, Need: 1, Limit: fixed(1000, minute), Hints: backend.Hints{Exact: true}}
	}
	for name, then := range map[string]func(t *testing.T, s *script, now int64){
		"the next window, with a ledger to tidy": func(t *testing.T, s *script, now int64) {
			require.Equal(t, int64(1), s.sync(t, ask("p1.1", 2), now+minute*1000).Used)
			require.Equal(t, int64(101), s.HLen(context.Background(), s.keys[2]).Val(), "nothing is deleted there")
		},
		"a reset, and a window after it": func(t *testing.T, s *script, now int64) {
			v := s.reset(t, minute, now+1)
			r := s.sync(t, ask("p1.1", 2), now+2)
			require.Equal(t, int64(1), r.Used)
			require.Equal(t, v[4], r.Window.Gen)
		},
		"a clock that steps back": func(t *testing.T, s *script, now int64) {
			require.Equal(t, int64(101), s.sync(t, ask("p1.1", 2), now-3*minute*1000).Used)
		},
		"a hold": func(t *testing.T, s *script, now int64) {
			s.sync(t, backend.Statement{Hold: 2 * time.Minute, Limit: fixed(1000, minute)}, now+1)
			require.Zero(t, s.sync(t, ask("p1.1", 2), now+minute*1000).Grant)
		},
		"without an account": func(t *testing.T, s *script, now int64) {
			q := backend.Statement{Need: 3, Limit: fixed(1000, minute)}
			require.Equal(t, int64(3), s.sync(t, q, now+minute*1000).Used)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, now := scripts(c.Client(), name), later()
			for i := range 100 {
				s.sync(t, ask(fmt.Sprintf("p%d.1", i), 1), now)
			}
			from, to := c.NodeOf(name), c.Nodes[0]
			if from == to {
				to = c.Nodes[1]
			}
			c.OpenSlot(from, to, c.SlotOf(name))
			then(t, s, now)
		})
	}
}

// TestBesideGitHubs: GitHub's script counts in the same window. Whoever opens it, both see one count and one
// end, and a count never stays without a time to live, though its clock is seconds behind.
func TestBesideGitHubs(t *testing.T) {
	text, err := os.ReadFile("../../backend/redisstore/testdata/rate.lua")
	require.NoError(t, err)
	c := redistest.Start(t).Client()
	rate := func(s *script, n int, now int64) []int64 {
		v, err := c.Eval(context.Background(), string(text), s.keys[:1], n, now/1_000_000+60, float64(now)/1e6).Int64Slice()
		require.NoError(t, err)
		return v
	}
	for _, first := range []bool{true, false} {
		s, now := scripts(c, fmt.Sprint("k", first)), time.Now().Truncate(time.Second).UnixMicro()
		if first {
			rate(s, 5, now)
		}
		q := backend.Statement{Client: "p.1", Life: 1, Seq: 1, Want: 10, Need: 10, Limit: fixed(100, 60_000)}
		r := s.sync(t, q, now)
		used := rate(s, 7, now-2_000_000)
		require.Equal(t, []int64{r.Used + 7, r.Window.End / 1000}, used)
		q.Seq, q.Window, q.Mine, q.Used, q.Runs, q.Want, q.Need = 2, r.Window, r.Mine, r.Used, true, 0, 0
		q.Change = -4
		r = s.sync(t, q, now)
		require.Equal(t, used[0]-4, r.Used)
		expires := func(key string) int64 { return c.PExpireTime(context.Background(), key).Val().Milliseconds() }
		require.GreaterOrEqual(t, expires(s.keys[1]), r.Window.End+1000)
		require.GreaterOrEqual(t, expires(s.keys[0]), expires(s.keys[1]), "INCRBY would make a count without a time to live")
		s.Del(context.Background(), s.keys[0]) // a count that is lost is restored with its time to live
		require.Equal(t, int64(1), rate(s, 1, now)[0])
		require.Zero(t, expires(s.keys[0]), "it has none")
		q.Seq, q.Mine, q.Change = 3, r.Mine, 0
		require.Equal(t, r.Mine, s.sync(t, q, now).Used)
		require.GreaterOrEqual(t, expires(s.keys[0]), expires(s.keys[1]))
	}
}

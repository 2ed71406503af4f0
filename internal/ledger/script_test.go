package ledger

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
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

// text is what the three keys should hold.
func (c *Counter) text() (count, end string, own map[string]string) {
	if count, end = fmt.Sprint(c.count), fmt.Sprintf("%.3f", float64(c.end)/1000); c.end%1000 == 0 {
		end = fmt.Sprint(c.end / 1000)
	}
	if c.head == nil {
		return count, end, map[string]string{}
	}
	h := c.head
	own = map[string]string{"head": fmt.Sprintf("%s %d %d", name(h.Window), h.sum, h.clients)}
	if h.hold > 0 {
		own["head"] += fmt.Sprintf("!%d", h.hold)
	}
	if h.claimable+h.before+h.exhausted > 0 {
		own["head"] += fmt.Sprintf(" %d %d %d", h.claimable, h.before, h.exhausted)
	}
	if h.idle > 0 || h.calls > 0 || h.told > 0 {
		own["head"] += fmt.Sprintf("+%d %d %d %d %d", h.idle, h.out, h.calls, h.told, h.at)
	}
	for client, a := range h.accounts {
		own[client] = fmt.Sprintf("%s %d %d %d", name(a.Window), a.life, a.seq, a.mine)
		if a.left {
			own[client] = "~" + own[client]
		}
		if a.called {
			own[client] += "+"
		} else if a.idle > 0 {
			own[client] += fmt.Sprintf("+%d", a.idle)
		}
	}
	return count, end, own
}

// TestScriptsAgree gives the scripts and the rules in Go the same requests, of honest and of
// dishonest clients, with lost keys, clock steps and Resets.
func TestScriptsAgree(t *testing.T) {
	server := redistest.Start(t)
	s := scripts(server.Client(), "k")
	ctx := context.Background()
	heard := s.PSubscribe(ctx, "reservoir:*")
	defer heard.Close()
	messages := heard.Channel(redis.WithChannelSize(100_000))
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 2))
	some := func(n int64) int64 { return rnd.Int64N(n + 1) }
	shift := 20 * 365 * 24 * time.Hour // no time to live ends during the test
	open, granted, held, kinds := 0, 0, 0, map[backend.Kind]int{}
	for range *Runs {
		var c Counter
		require.NoError(t, s.FlushDB(ctx).Err())
		now := time.Now().Add(shift).UnixMicro()
		length := []int64{100, 1001, 10_000, 60_000}[rnd.IntN(4)]
		limit := []int64{1, 12, 40, 1000, 100_000, backend.MaxTokens}[rnd.IntN(6)]
		calendar := rnd.IntN(3) == 0
		replies := map[string]backend.Reply{}
		seqs := map[string]int64{}
		for range 60 {
			if now += some(length * 1000 / 20); rnd.IntN(40) == 0 {
				now -= some(3 * length * 1000)
			}
			switch rnd.IntN(60) {
			case 0:
				s.Del(ctx, s.keys[0])
				c.LoseCount()
			case 1:
				s.Del(ctx, s.keys[1])
				c.LoseEnd()
			case 2:
				s.Del(ctx, s.keys[2])
				c.LoseLedger()
			case 3:
				v := s.reset(t, length, now)
				void, next := c.Reset(fixed(1, length), now)
				require.Equal(t, []int64{0, now, void.End, void.Gen, next.Gen}, v)
				require.Equal(t, fmt.Sprintf("4 %d %d 0 {k}:60s", void.End, void.Gen), (<-messages).Payload)
			}
			client := []string{"", "p1.1", "p1.2", "p2.1", "p3.7"}[rnd.IntN(5)]
			last := replies[client]
			q := backend.Statement{Client: client, Life: 1 + some(1)*some(1), Limit: fixed(limit, length), Want: some(1) * some(min(2*limit, backend.MaxTokens))}
			seqs[client] += some(3) - min(some(40)/40*3, 1)
			q.Seq, q.Need = max(seqs[client], 0), some(q.Want)
			q.Least = some(q.Need)
			q.Window, q.Mine, q.Used = last.Window, last.Mine, last.Used
			if rnd.IntN(10) == 0 {
				q.Window.Gen += some(2)
			}
			if q.Runs = rnd.IntN(4) > 0; q.Mine > 0 {
				q.Change = some(min(q.Mine, 1000)) - some(q.Mine)
			}
			if calendar {
				q.Begin = now / 1000 / length * length
				if q.End = q.Begin + length; rnd.IntN(20) == 0 {
					q.Begin, q.End = q.Begin+length, q.End+length
				}
			}
			q.Exact, q.Deaf, q.Waited, q.Leaving, q.GaveUp = rnd.IntN(3) == 0, rnd.IntN(6) == 0, rnd.IntN(3) == 0, rnd.IntN(9) == 0, rnd.IntN(9) == 0
			if q.Mine > 0 && !q.Deaf {
				q.Idle = some(min(q.Mine, backend.MaxTokens/8))
			}
			q.Pace, q.Run = some(1)*some(min(limit, 1e12)), some(1)*some(min(limit, 1e12))
			if client == "" {
				q.Want = 0
				q.Need, q.Change = some(min(limit, 20)), max(0, some(20)-13)
			}
			q.Hold = hold(rnd, length)
			want, told := c.Sync(q, now)
			got := s.sync(t, q, now)
			require.Equal(t, want, got, "%+v at %d", q, now)
			if want.Held > 0 {
				held++
			}
			if !want.Void && !want.Astray {
				replies[client] = want
			}
			if want.Window.End != 0 {
				open++
			}
			if want.Grant > 0 {
				granted++
			}
			var told1, told2 []string
			for _, m := range told {
				kinds[m.Kind]++
				told1 = append(told1, fmt.Sprintf("%s %d %d %d %d {k}:60s", m.Process, m.Kind, m.Window.End, m.Window.Gen, m.Limit))
				got := <-messages
				told2 = append(told2, strings.TrimPrefix(got.Channel, "reservoir:")+" "+got.Payload)
			}
			slices.Sort(told1)
			slices.Sort(told2)
			require.Equal(t, told1, told2)
			count, end, own := c.text()
			is, err := s.HGetAll(ctx, s.keys[2]).Result()
			require.NoError(t, err)
			require.Equal(t, own, is, "%+v at %d", q, now)
			if c.end*1000 > now { // what is over may stay
				require.Equal(t, count, cmp.Or(s.Get(ctx, s.keys[0]).Val(), "0"), "%+v at %d", q, now)
				require.Equal(t, end, cmp.Or(s.Get(ctx, s.keys[1]).Val(), "0"))
			}
		}
	}
	require.Positive(t, open)
	require.Positive(t, granted)
	require.Positive(t, held)
	t.Logf("%d replies with an open window, %d while held, %d grants, messages: %v", open, held, granted, kinds)
}

// hold is mostly none.
func hold(rnd *rand.Rand, length int64) time.Duration {
	if rnd.IntN(30) > 0 {
		return 0
	}
	return time.Duration(1 + rnd.Int64N(length*1_000_000/2<<rnd.Int64N(3)))
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

// TestTidy: a ledger is bounded by its clients. Accounts of old windows go when a window opens with more than
// 63 of them.
func TestTidy(t *testing.T) {
	for clients, left := range map[int]int{62: 63, 63: 1} {
		s, now := scripts(redistest.Start(t).Client(), "k"), later()
		var c Counter
		ask := func(client string, now int64) {
			q := backend.Statement{Client: client, Life: 1, Seq: 1, Want: 1, Need: 1, Limit: fixed(1000, 60_000)}
			s.sync(t, q, now)
			c.Sync(q, now)
		}
		for i := range clients {
			ask(fmt.Sprintf("p%d.1", i), now)
		}
		ask("q.1", now+60_000_000)
		_, _, own := c.text()
		require.Equal(t, own, s.HGetAll(context.Background(), s.keys[2]).Val())
		require.Len(t, own, left+1)
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

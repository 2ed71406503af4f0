package ledger

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
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
	*redis.Client
	statement, void *redis.Script
	keys            []string
}

func (s *script) sync(t *testing.T, q Statement, now int64) Reply {
	how := 32
	for i, bit := range []bool{q.Exact, q.Deaf, q.Waited, q.Leaving, q.Runs} {
		if bit {
			how += 1 << i
		}
	}
	args := []any{q.Client, q.Limit, q.Length, q.Want, q.Need, q.Least, how, q.Life, q.Seq}
	if q.Begin != 0 || q.Window != (Window{}) || q.Mine != 0 || q.Change != 0 || q.Idle != 0 || q.Pace != 0 {
		args = append(args, q.Window.End, q.Window.Gen, q.Mine, q.Change, q.Used, q.Idle, q.Pace, q.Run)
		if q.Begin != 0 {
			args = append(args, q.Begin, q.End)
		}
	}
	v, err := s.statement.Run(context.Background(), s, s.keys, append(args, 0, now)...).Int64Slice()
	require.NoError(t, err)
	v = append(v, make([]int64, 11)...)
	return Reply{Astray: v[0]&2 != 0, Void: v[0]&4 != 0, Now: v[1], Window: Window{v[2], v[3]}, Used: v[4], Mine: v[5], Grant: v[6], Clients: v[7], Lasted: v[8], Idle: v[9], Called: v[10]}
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
	name := func(w Window) string {
		if w.Gen > 0 {
			return fmt.Sprintf("%d.%d", w.End, w.Gen)
		}
		return fmt.Sprint(w.End)
	}
	own = map[string]string{"head": fmt.Sprintf("%s %d %d", name(h.Window), h.sum, h.clients)}
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
	s := &script{Client: server.Client(), statement: redis.NewScript(lua.Statement), void: redis.NewScript(lua.Void), keys: []string{"{k}:60s", "{k}:60s:exp", "{k}:60s:own"}}
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
	open, granted, kinds := 0, 0, map[backend.Kind]int{}
	for range *Runs {
		var c Counter
		require.NoError(t, s.FlushDB(ctx).Err())
		now := time.Now().Add(shift).UnixMicro()
		length := []int64{100, 1001, 10_000, 60_000}[rnd.IntN(4)]
		limit := []int64{1, 12, 40, 1000, 100_000, backend.MaxTokens}[rnd.IntN(6)]
		calendar := rnd.IntN(3) == 0
		replies := map[string]Reply{}
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
				v, err := s.void.Run(ctx, s, s.keys, length, 0, now).Int64Slice()
				require.NoError(t, err)
				void, next := c.Reset(now)
				require.Equal(t, []int64{0, now, void.End, void.Gen, next.Gen}, v)
				require.Equal(t, fmt.Sprintf("4 %d %d 0 {k}:60s", void.End, void.Gen), (<-messages).Payload)
			}
			name := []string{"", "p1.1", "p1.2", "p2.1", "p3.7"}[rnd.IntN(5)]
			last := replies[name]
			q := Statement{Client: name, Life: 1 + some(1)*some(1), Limit: limit, Length: length, Want: some(1) * some(min(2*limit, backend.MaxTokens))}
			seqs[name] += some(3) - min(some(40)/40*3, 1)
			q.Seq, q.Need = max(seqs[name], 0), some(q.Want)
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
			q.Exact, q.Deaf, q.Waited, q.Leaving = rnd.IntN(3) == 0, rnd.IntN(6) == 0, rnd.IntN(3) == 0, rnd.IntN(9) == 0
			if q.Mine > 0 && !q.Deaf {
				q.Idle = some(min(q.Mine, backend.MaxTokens/8))
			}
			q.Pace, q.Run = some(1)*some(min(limit, 1e12)), some(1)*some(min(limit, 1e12))
			if name == "" {
				q.Want = 0
				if q.Need = some(min(limit, 20)); rnd.IntN(3) > 0 {
					q.Change = 0
				}
			}
			want, told := c.Sync(q, now)
			got := s.sync(t, q, now)
			require.Equal(t, want, got, "%+v at %d", q, now)
			if !want.Void && !want.Astray {
				replies[name] = want
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
	t.Logf("%d replies with an open window, %d grants, messages: %v", open, granted, kinds)
}

package ledger

import (
	"context"
	"fmt"
	"maps"
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

// roll makes a statement of a rolling limit.
func (s *script) roll(t *testing.T, q backend.Statement, now int64) backend.Reply {
	how := 64
	for bit, is := range map[int]bool{1: q.Exact, 2: q.Deaf, 8: q.Leaving} {
		if is {
			how += bit
		}
	}
	var changes []string
	for _, d := range q.Changes {
		changes = append(changes, fmt.Sprint(d.Bucket, " ", d.Tokens))
	}
	args := []any{q.Client, q.Limit.Tokens, q.Limit.Window.Milliseconds(), q.Need, how, q.Within.Microseconds(), q.Want, q.Least,
		q.Life, q.Seq, q.Window.Gen, q.Known, q.Idle, q.Pace, q.After, strings.Join(changes, " ")}
	if q.Hold > 0 {
		args[4] = how + 128
		args = append(args, (q.Hold+time.Millisecond-1)/time.Millisecond)
	}
	v, err := s.statement.Run(context.Background(), s, s.keys, append(args, 0, now)...).Int64Slice()
	require.NoError(t, err)
	r := backend.Reply{Now: v[1] + v[5], Void: v[0]&4 != 0}
	if r.Void {
		return r
	}
	r.State = backend.State{Window: backend.Window{End: v[2], Gen: v[3]}, Remaining: max(q.Limit.Tokens-v[4], 0), Frees: time.Duration(v[11]) * time.Microsecond}
	if r.Held = time.Duration(v[8]) * time.Microsecond; r.Held > 0 {
		r.Remaining = 0
	}
	if v[2] != 0 {
		r.Left = time.Duration(v[2]*1000-r.Now) * time.Microsecond
	}
	r.Used, r.Grant, r.Clients, r.Idle, r.Called = v[4], v[6], v[7], v[9], v[10]
	for g := range slices.Chunk(v[12:], 2) {
		r.Grants = append(r.Grants, backend.Change{Bucket: g[0], Tokens: g[1]})
	}
	return r
}

// rollText is what the hash should hold.
func (c *Counter) rollText() map[string]string {
	h, r := c.head, c.ring
	head := fmt.Sprintf("%d %d %d %d %d %d %d", h.Gen, h.clients, c.count, len(r.counts), r.last, r.asked, r.before)
	if r.promised > 0 || r.off > 0 || h.hold > 0 {
		head += fmt.Sprintf(" %d %d", r.promised, r.off)
	}
	if h.hold > 0 {
		head += fmt.Sprintf("!%d", h.hold)
	}
	own := map[string]string{"head": head}
	if h.idle > 0 || h.recalls != (recalls{}) {
		own["idle"] = fmt.Sprintf("+%d %d %d %d %d", h.idle, h.out, h.calls, h.told, h.at)
	}
	groups := map[string][]string{} // of eight buckets
	for i, n := range r.counts {
		bucket := r.low + int64(i)
		name := fmt.Sprint(bucket / 8 % 5)
		if n == 0 {
			continue
		}
		if groups[name] == nil {
			groups[name] = slices.Repeat([]string{"0"}, 8)
		}
		groups[name][bucket%8] = fmt.Sprint(n)
	}
	for name, list := range groups {
		own[name] = strings.Join(list, ",")
	}
	for client, a := range h.accounts {
		text := fmt.Sprintf("%d %d %d %d", a.Gen, a.life, a.seq, a.asked)
		if len(a.did) > 0 {
			text += fmt.Sprint(" ", a.did[0].Bucket-a.asked)
			did := map[int64]int64{}
			for _, d := range a.did {
				did[d.Bucket] = d.Tokens
			}
			for bucket, last := a.did[0].Bucket, a.did[len(a.did)-1].Bucket; bucket <= last; {
				n, times := did[bucket], int64(1)
				for bucket+times <= last && did[bucket+times] == n {
					times++
				}
				if text += fmt.Sprint(" ", n); times > 1 {
					text += fmt.Sprint("*", times)
				}
				bucket += times
			}
		}
		if a.left {
			text = "~" + text
		}
		if a.called {
			text += "+"
		} else if a.idle > 0 {
			text += fmt.Sprintf("+%d", a.idle)
		}
		own[client] = text
	}
	return own
}

// TestRollScript gives the script and the rules in Go the same requests about a rolling limit, of honest and of dishonest
// clients, with clock steps and lost data.
func TestRollScript(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	s, check := &script{client, redis.NewScript(lua.Roll), redis.NewScript(lua.RollReset), []string{"{k}:60s:roll"}}, redis.NewScript(lua.RollCheck)
	ctx := context.Background()
	heard := s.PSubscribe(ctx, "reservoir:*")
	defer heard.Close()
	messages := heard.Channel(redis.WithChannelSize(100_000))
	seed := *seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	rnd := rand.New(rand.NewPCG(seed, 4))
	some := func(n int64) int64 { return rnd.Int64N(n + 1) }
	granted, refused, recalls, voided, held := 0, 0, 0, 0, int64(0)
	for range *Runs {
		var c Counter
		require.NoError(t, s.FlushDB(ctx).Err())
		now := time.Now().UnixMicro()
		length := []int64{1000, 1001, 10_000, 60_000}[rnd.IntN(4)]
		limit := []int64{1, 12, 40, 1000, 100_000, 1e12}[rnd.IntN(6)]
		replies, seqs, gens := map[string]backend.Reply{}, map[string]int64{}, int64(0)
		for range 80 {
			if now += some(length * 1000 / 15); rnd.IntN(40) == 0 {
				now -= some(3 * length * 1000)
			}
			if rnd.IntN(60) == 0 {
				s.Del(ctx, s.keys[0])
				c = Counter{}
			}
			if rnd.IntN(40) == 0 {
				v, err := s.void.Run(ctx, s, s.keys, length, 0, now).Int64Slice()
				require.NoError(t, err)
				void, next := c.Reset(fixed(1, length).Rolling(), now)
				require.Equal(t, []int64{0, now, void.End, void.Gen, next.Gen}, v)
				require.Equal(t, fmt.Sprintf("4 %d %d 0 {k}:60s:roll", void.End, void.Gen), (<-messages).Payload)
				gens = next.Gen
			}
			if rnd.IntN(80) == 0 {
				gens += some(2)
			}
			name := []string{"", "p1.1", "p1.2", "p2.1", "p3.7"}[rnd.IntN(5)]
			last := replies[name]
			q := backend.Statement{Client: name, Life: 1 + some(12)/12, Limit: fixed(limit, length).Rolling(), Want: some(3) * some(limit)}
			q.Want = min(q.Want, limit)
			seqs[name] += some(3) - min(some(40)/40*3, 1)
			q.Seq, q.Need = max(seqs[name], 1), some(q.Want)
			q.Least, q.Known = some(q.Need), max(seqs[name]-some(3), 0)
			q.Window.Gen = max(gens-some(1)*some(1), 0)
			present := backend.Bucket(now, q.Limit.Window)
			for _, g := range last.Grants {
				if rnd.IntN(3) == 0 {
					q.Changes = append(q.Changes, backend.Change{Bucket: g.Bucket, Tokens: some(3) - some(g.Tokens)})
				}
			}
			if rnd.IntN(9) == 0 {
				q.Changes = append(q.Changes, backend.Change{Bucket: max(present-30+some(60), 0) * some(1), Tokens: some(9) - 4})
			}
			q.Exact, q.Deaf, q.Leaving = rnd.IntN(3) == 0, rnd.IntN(6) == 0, rnd.IntN(9) == 0
			q.Idle, q.Pace = some(1)*some(min(last.Grant, 1e12)), some(1)*some(min(3*limit, 1e12))
			q.After = some(1) * max(present-2+some(14), 0)
			q.Within = time.Duration(some(1)*some(length*500)) * time.Microsecond
			if name == "" {
				q.Want, q.Least, q.Need = 0, 0, some(1)*some(min(limit, 20))
			}
			q.Hold = hold(rnd, length)
			want, told := c.Sync(q, now)
			got := s.roll(t, q, now)
			require.Equal(t, want, got, "%+v at %d", q, now)
			switch {
			case want.Void:
				voided++
			case want.Grant > 0:
				granted++
			case want.Frees > 0:
				refused++
			}
			if !want.Void {
				replies[name] = want
			}
			var told1, told2 []string
			for _, m := range told {
				recalls++
				told1 = append(told1, fmt.Sprintf("%s %d %d %d %d {k}:60s:roll", m.Process, m.Kind, m.Window.End, m.Window.Gen, m.Limit))
				got := <-messages
				told2 = append(told2, strings.TrimPrefix(got.Channel, "reservoir:")+" "+got.Payload)
			}
			slices.Sort(told1)
			slices.Sort(told2)
			require.Equal(t, told1, told2)
			v, err := check.RunRO(ctx, s, s.keys, length, limit, now+length).Int64Slice()
			require.NoError(t, err)
			state := c.Check(q.Limit, now+length)
			require.Equal(t, []int64{0, now + length, state.Window.End, state.Window.Gen}, v[:4])
			require.Equal(t, c.time(now+length), v[1]+v[5])
			require.Equal(t, state.Held.Microseconds(), v[7])
			if held += min(v[7], 1); v[7] == 0 {
				require.Equal(t, state.Remaining, max(limit-v[4], 0))
			}
			require.Equal(t, state.Frees.Microseconds(), v[6])
			if c.ring != nil {
				is := s.HGetAll(ctx, s.keys[0]).Val()
				maps.DeleteFunc(is, func(name, text string) bool { return text == "0,0,0,0,0,0,0,0" || text == "+0 0 0 0 0" })
				require.Equal(t, c.rollText(), is, "%+v at %d", q, now)
			}
		}
	}
	for _, n := range []int{granted, refused, recalls, voided, int(held)} {
		require.Positive(t, n)
	}
	t.Logf("%d grants, %d refusals, %d recalls, %d void, %d held", granted, refused, recalls, voided, held)
}

// TestRollTidies: a ring is bounded by its clients, as one with fixed windows is, and lives as long as tokens may count.
func TestRollTidies(t *testing.T) {
	s := &script{redistest.Start(t).Client(), redis.NewScript(lua.Roll), nil, []string{"{k}:60s:roll"}}
	ctx, now := context.Background(), time.Now().Truncate(3*time.Second).UnixMicro()
	ask := func(client string, seq, now int64) backend.Reply {
		q := backend.Statement{Client: client, Life: 1, Seq: seq, Want: 2, Need: 1, Limit: fixed(1000, 60_000).Rolling()}
		q.Exact = true
		return s.roll(t, q, now)
	}
	for i := range 100 {
		ask(fmt.Sprintf("p%d.1", i), 1, now)
	}
	require.Equal(t, int64(104), s.HLen(ctx, s.keys[0]).Val())
	require.InDelta(t, 121_000, s.PTTL(ctx, s.keys[0]).Val().Milliseconds(), 5000)
	r := ask("q.1", 1, now)
	require.Equal(t, []int64{101, 100}, []int64{r.Clients, r.Idle})
	for i := range int64(80) {
		r = ask("q.1", 2+i, now+(31+i)*3_000_000)
	}
	fields := s.HLen(ctx, s.keys[0]).Val() - 6
	require.InDelta(t, 56, fields, 2, "at most 57 clients, the head, what is idle and the counts, of which a few go at a time")
	require.Equal(t, []int64{fields - 1, fields - 2}, []int64{r.Clients, r.Idle})
}

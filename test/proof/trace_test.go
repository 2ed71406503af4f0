package proof

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/chance"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// event is one request of the trace.
type event struct {
	at  time.Duration
	key int
	n   int64
}

// The trace: three and a half windows of three keys, of which one is never used
// up, one nearly, and one many times over.
const (
	traceLimit  = 200
	traceWindow = time.Second
	traceEnd    = 3500 * time.Millisecond
	traceMost   = 4 // tokens of one request
	traceKeys   = 3
)

func newTrace(seed uint64) (list []event) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	for at := time.Duration(0); at < traceEnd; at += time.Microsecond + time.Duration(rnd.Int64N(int64(7*time.Millisecond))) {
		key := []int{0, 1, 1, 2, 2, 2, 2}[rnd.IntN(7)]
		list = append(list, event{at, key, 1 + rnd.Int64N([]int64{1, 1, traceMost}[rnd.IntN(3)])})
	}
	return list
}

// exact is what a store without clients decides: the plain rule of a fixed window.
func exact(trace []event, base time.Time) (list []bool) {
	var keys [traceKeys]state
	for _, e := range trace {
		q := request{op: "take", now: base.Add(e.at).UnixMicro(), limit: backend.Limit{Tokens: traceLimit, Window: traceWindow}, tokens: e.n}
		o := keys[e.key].after(q)[0]
		keys[e.key] = o.next
		list = append(list, o.reply.allowed)
	}
	return list
}

// policy is how a limiter gets its tokens, and how many may be stranded: so many
// in each process, or so large a part of the limit in all together.
type policy struct {
	name  string
	opt   reservoir.Option
	each  int64
	share float64
	exact bool // one process alone decides as the store does
}

var policies = []policy{
	{"direct", reservoir.WithDirect(), 0, 0, true},
	{"fixed 1", reservoir.WithBatch(reservoir.Fixed(1)), 1, 0, true},
	{"fixed 1000", reservoir.WithBatch(reservoir.Fixed(1000)), traceLimit, 0, false},
	{"ladder", reservoir.WithBatch(reservoir.Ladder(1, 20)), 20, 0, false},
	{"adaptive", reservoir.WithBatch(reservoir.Adaptive(1, 0)), 0, 0.25, false},
}

// both is a store that can be looked into.
type both interface {
	backend.Store
	backend.Inspector
}

// course is what became of a trace.
type course struct {
	allowed []bool
	spent   map[slot]int64
	total   int64 // tokens
	sources map[reservoir.Source]int
}

// slot is a window of a key.
type slot struct {
	key int
	end int64 // Unix ms
}

// replay sends the trace to so many processes, in virtual time, and says which
// law did not hold.
func replay(t *testing.T, e *elsewhere, trace []event, p policy, processes int) (out course, fault string) {
	synctest.Test(t, func(t *testing.T) {
		var keys [traceKeys]string
		for i := range keys {
			keys[i] = newKey()
		}
		var all []*reservoir.Limiter
		for range processes {
			l, err := reservoir.New(e, reservoir.Limit{Tokens: traceLimit, Window: traceWindow}, p.opt)
			require.NoError(t, err)
			all = append(all, l)
		}
		start := time.Now()
		out = send(t, trace, all, keys)
		synctest.Wait()
		fault = e.balanced(t, all, keys, out)
		if text := out.bounded(trace, start.Add(e.ahead), p, processes); text != "" {
			fault = text
		}
	})
	return out, fault
}

func send(t *testing.T, trace []event, all []*reservoir.Limiter, keys [traceKeys]string) course {
	out := course{spent: map[slot]int64{}, sources: map[reservoir.Source]int{}}
	start, rnd := time.Now(), rand.New(rand.NewPCG(uint64(len(all)), 2))
	for _, x := range trace {
		time.Sleep(time.Until(start.Add(x.at)))
		r, err := all[rnd.IntN(len(all))].AllowN(t.Context(), keys[x.key], x.n)
		require.NoError(t, err)
		out.allowed = append(out.allowed, r.Allowed)
		out.sources[r.Source]++
		if r.Allowed {
			out.spent[slot{x.key, r.Reset.UnixMilli()}] += x.n
			out.total += x.n
		}
	}
	return out
}

// balanced: what the store has charged is what was spent and what is held, and
// after all is handed back what was spent alone.
func (e *elsewhere) balanced(t *testing.T, all []*reservoir.Limiter, keys [traceKeys]string, out course) string {
	var held, sum int64
	for _, l := range all {
		held += l.Stats().Held
	}
	if used, open := e.used(t, keys, out); used != open+held {
		return fmt.Sprintf("%d tokens are charged, %d spent, %d held", used, open, held)
	}
	for _, l := range all {
		require.NoError(t, l.Close(context.Background()))
		s := l.Stats()
		if s.Held != 0 || s.Taken+s.Refunded != s.Spent+s.Returned+s.Expired {
			return fmt.Sprintf("the books: %+v", s)
		}
		sum += s.Spent
	}
	if sum != out.total {
		return fmt.Sprintf("callers were told %d tokens, and the limiters count %d", out.total, sum)
	}
	if used, open := e.used(t, keys, out); used != open {
		return fmt.Sprintf("%d tokens are charged, %d spent, and none held", used, open)
	}
	return ""
}

// used is what is charged in the windows that are open, and was spent in them.
func (e *elsewhere) used(t *testing.T, keys [traceKeys]string, out course) (used, spent int64) {
	for i, key := range keys {
		c, err := over(e, func(ctx context.Context) (backend.Contents, error) { return e.store.Inspect(ctx, key) })
		require.NoError(t, err)
		if c.Window.Time().Before(time.Now().Add(e.ahead)) {
			continue // by the server's clock it is still open
		}
		used += c.Used
		spent += out.spent[slot{i, int64(c.Window)}]
	}
	return used, spent
}

// bounded: no window is overspent, and of one that more was asked of than there is
// nothing is left but what may be stranded.
func (out course) bounded(trace []event, base time.Time, p policy, processes int) string {
	exhausted := 0
	for at, spent := range out.spent {
		if spent > traceLimit {
			return fmt.Sprintf("%d tokens spent of %d", spent, traceLimit)
		}
		demand := demandOf(trace, base, at)
		if at.end > base.Add(traceEnd).UnixMilli() || demand < traceLimit+traceMost {
			continue
		}
		exhausted++
		least := traceLimit - traceMost + 1 - int64(p.share*traceLimit)
		if processes > 1 {
			least -= p.each * int64(processes)
		}
		if spent < least {
			return fmt.Sprintf("%d tokens spent of %d, %d were asked", spent, traceLimit, demand)
		}
	}
	if exhausted == 0 || len(out.spent) < 3*traceKeys {
		return fmt.Sprintf("%d windows of %d were exhausted", exhausted, len(out.spent))
	}
	return ""
}

// demandOf is what was asked for within a window.
func demandOf(trace []event, base time.Time, at slot) (tokens int64) {
	end := time.UnixMilli(at.end)
	for _, x := range trace {
		if when := base.Add(x.at); x.key == at.key && when.Before(end) && when.After(end.Add(-traceWindow)) {
			tokens += x.n
		}
	}
	return tokens
}

// stores are all kinds of store.
func stores(t *testing.T) map[string]both {
	shards := map[string]backend.Store{}
	for i := range 3 {
		shards[fmt.Sprint("s", i)] = redisstore.New(redistest.Start(t).Client())
	}
	three, err := sharding.New(shards)
	require.NoError(t, err)
	return map[string]both{
		"memory":       memstore.New(),
		"single":       redisstore.New(redistest.Start(t).Client()),
		"cluster":      redisstore.New(redistest.StartCluster(t, 3, 0).Client()),
		"three shards": three,
	}
}

// TestTrace: one trace under every policy, by one process and by eight, on every
// kind of store: the same bounds hold, and what decides without stock, or with one
// token of it, decides as the plain rule does.
func TestTrace(t *testing.T) {
	defer chance.Seed(1)()
	trace := newTrace(1)
	reference := map[string][]bool{}
	all := stores(t)
	for _, name := range []string{"memory", "single", "cluster", "three shards"} {
		e := newElsewhere(t, all[name])
		for _, p := range policies {
			for _, processes := range []int{1, 8} {
				run := fmt.Sprintf("%s, %d", p.name, processes)
				t.Run(fmt.Sprintf("%s/%s/%d", name, p.name, processes), func(t *testing.T) {
					out, fault := replay(t, e, trace, p, processes)
					require.Empty(t, fault)
					require.Positive(t, out.sources[reservoir.Denied], "refusals from memory")
					if p.exact && processes == 1 {
						require.Equal(t, exact(trace, bubbleStart.Add(e.ahead)), out.allowed)
					}
					if name == "memory" {
						reference[run] = out.allowed
					} else if processes == 1 {
						require.Equal(t, reference[run], out.allowed, "as on the embedded store")
					}
				})
			}
		}
	}
}

// TestTraceNotices: the trace notices each of these deliberate bugs, by one policy
// at least.
func TestTraceNotices(t *testing.T) {
	defer chance.Seed(1)()
	trace := newTrace(1)
	for name, row := range map[string]struct {
		store  func(s backend.Store) backend.Store
		policy int
	}{
		"a give-back is forgotten":     {store: bugs["a give-back is forgotten"], policy: 2},
		"a repetition charges again":   {store: bugs["a repetition charges again"], policy: 1},
		"a window that does not end":   {store: bugs["a window that does not end"], policy: 0},
		"everybody is let in":          {store: everybody, policy: 0},
		"half of the limit is held up": {store: half, policy: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := memstore.New()
			e := newElsewhere(t, struct {
				backend.Store
				backend.Inspector
			}{row.store(s), s})
			out, fault := replay(t, e, trace, policies[row.policy], 1)
			if fault == "" && slices.Equal(out.allowed, exact(trace, bubbleStart.Add(e.ahead))) {
				t.Error("nobody noticed")
			}
			t.Log(fault)
		})
	}
}

func everybody(s backend.Store) backend.Store {
	return saboteur{Store: s, take: func(ctx context.Context, r backend.TakeRequest) (backend.TakeReply, error) {
		reply, err := s.Take(ctx, r)
		reply.Allowed = true
		return reply, err
	}}
}

func half(s backend.Store) backend.Store {
	return saboteur{Store: s, sync: func(ctx context.Context, r backend.SyncRequest) (backend.SyncReply, error) {
		r.Limit.Tokens /= 2
		return s.Sync(ctx, r)
	}}
}

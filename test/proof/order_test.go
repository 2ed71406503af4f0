package proof

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

var histories = flag.Int("histories", 80, "how many concurrent histories TestOrder checks, of each kind")

// rules are the model in porcupine's form: some order of all operations, in which
// none is before one that had ended before it began, must explain every reply.
var rules = porcupine.NondeterministicModel{
	Init: func() []any { return []any{state{}} },
	Step: func(s, in, out any) []any { return s.(state).step(in.(request), out.(reply)) },
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(request).key
			byKey[key] = append(byKey[key], o)
		}
		var list [][]porcupine.Operation
		for _, h := range byKey {
			list = append(list, h)
		}
		return list
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

// crowd is some clients and direct callers, all at once on two keys, and what they
// were told.
type crowd struct {
	target
	keys  [2]string
	limit backend.Limit
	lossy bool
	sent  *sendings // where the network below makes faults of its own; nil = it makes none

	clock atomic.Int64 // us since base

	mu      sync.Mutex
	history []porcupine.Operation
	start   time.Time
	faults  int
	tickets []request // takes that may be settled
	letters []request // statements that may turn up again
	seen    map[string]int
}

// faultsMost is how many operations of a history have outcomes that nobody knows:
// each doubles what may have happened.
const faultsMost = 6

// never is when an operation returns whose outcome is unknown.
const never = int64(1) << 62

func newCrowd(t target, lossy bool, seen map[string]int, rnd *rand.Rand) *crowd {
	return &crowd{
		target: t, lossy: lossy, seen: seen, start: time.Now(),
		keys:  [2]string{newKey(), newKey()},
		limit: backend.Limit{Tokens: []int64{5, 20, 60}[rnd.IntN(3)], Window: window},
	}
}

// run lets everybody loose for so many operations each.
func (c *crowd) run(seed uint64, each int) {
	var all sync.WaitGroup
	for who := range people {
		all.Go(func() { c.client(who, each, rand.New(rand.NewPCG(seed, uint64(who)))) })
	}
	all.Go(func() { c.callers(each, rand.New(rand.NewPCG(seed, people))) })
	all.Wait()
}

// client keeps accounts, spends and gives back, as a limiter does.
func (c *crowd) client(who, each int, rnd *rand.Rand) {
	accounts := map[string]*holder{}
	for range each {
		c.tick(rnd)
		key := c.keys[rnd.IntN(2)]
		h := accounts[key]
		if h == nil {
			h = &holder{who: who}
			accounts[key] = h
		}
		if n := h.stock(); n > 0 {
			h.spent += rnd.Int64N(n + 1)
		}
		if n := h.stock(); n > 0 && rnd.IntN(3) == 0 {
			h.back += 1 + rnd.Int64N(n)
			c.note("give-back")
		}
		want := rnd.Int64N(c.limit.Tokens/[]int64{1, 4, 4}[rnd.IntN(3)] + 2)
		q := request{op: "sync", key: key, who: who, limit: c.limit, now: c.now()}
		q.sync = h.statement(key, c.limit, want, rnd.Int64N(want+1), []int64{-1, 0, 2}[rnd.IntN(3)])
		if r := c.send(q, rnd); !r.unknown {
			h.hear(r.sync)
		}
	}
}

// callers take, look, refund, repeat old statements, and lose data.
func (c *crowd) callers(each int, rnd *rand.Rand) {
	for range each {
		c.tick(rnd)
		q := request{key: c.keys[rnd.IntN(2)], limit: c.limit, now: c.now()}
		switch k := rnd.IntN(20); {
		case k < 8:
			q.op, q.tokens = "take", 1+rnd.Int64N(c.limit.Tokens)
		case k < 11:
			q.op = "check"
		case k < 15:
			if !c.old(&c.tickets, &q, rnd) {
				continue
			}
		case k < 19 || !c.lossy:
			if !c.old(&c.letters, &q, rnd) {
				continue
			}
			c.note("repeated")
		default:
			q.op = "lose"
			c.note("lost data")
		}
		c.send(q, rnd)
	}
}

// old draws one of a list: of what may be settled, or said again.
func (c *crowd) old(list *[]request, q *request, rnd *rand.Rand) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(*list) == 0 {
		return false
	}
	i := rnd.IntN(len(*list))
	was := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	was.now = q.now
	*q = was
	return true
}

// tick moves the clock of all, now and then over the end of a window.
func (c *crowd) tick(rnd *rand.Rand) {
	steps := []time.Duration{0, time.Microsecond, 900 * time.Microsecond, time.Second, time.Second, 9 * time.Second}
	c.clock.Add(steps[rnd.IntN(len(steps))].Microseconds())
}

func (c *crowd) now() int64 { return base + c.clock.Load() }

func (c *crowd) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[what]++
}

// send carries out q over a network that loses requests and replies, and writes
// down what is known of it.
func (c *crowd) send(q request, rnd *rand.Rand) reply {
	fate := c.fate(rnd)
	before := c.sent.of(q)
	call := time.Since(c.start).Nanoseconds()
	r, err := reply{unknown: true}, error(nil)
	if fate != "lost request" {
		r, err = c.do(q)
	}
	if fate != "" || err != nil {
		r = reply{unknown: true}
	}
	end := time.Since(c.start).Nanoseconds()
	again := c.sent.of(q) - before - 1
	for range again { // the store has said it again, and heard only the last answer
		c.write(q, reply{unknown: true}, call, never)
		c.note("said again")
	}
	if r.unknown {
		end = never
	}
	c.write(q, r, call, end)
	c.remember(q, r)
	return r
}

// fate is what the network does to the next call; "" is nothing.
func (c *crowd) fate(rnd *rand.Rand) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent != nil || c.faults == faultsMost || rnd.IntN(8) > 0 {
		return ""
	}
	c.faults++
	what := []string{"lost request", "lost reply"}[rnd.IntN(2)]
	c.seen[what]++
	return what
}

func (c *crowd) write(q request, r reply, call, end int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history = append(c.history, porcupine.Operation{ClientId: q.who, Input: q, Call: call, Output: r, Return: end})
}

// remember keeps what later operations go by, and notes what was seen.
func (c *crowd) remember(q request, r reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case q.op == "sync":
		c.letters = append(c.letters, q)
	case q.op == "take" && r.allowed:
		q.op, q.window, q.tokens = "settle", r.state.Window, -q.tokens
		if q.tokens%2 != 0 { // some have used more
			q.tokens = -q.tokens
		}
		c.tickets = append(c.tickets, q)
	}
	for what, was := range map[string]bool{
		"refused take":          q.op == "take" && !r.unknown && !r.allowed,
		"allowed take":          r.allowed,
		"refunded":              r.settled.Open && q.tokens < 0,
		"settled above":         r.settled.Open && q.tokens > 0,
		"late settlement":       q.op == "settle" && !r.unknown && !r.settled.Open,
		"recovered":             r.sync.Recovered > 0,
		"recovered and granted": r.sync.Recovered > 0 && r.sync.Grant > r.sync.Recovered,
		"re-asserted":           r.sync.Reasserted > 0,
		"carried":               r.sync.Carried,
		"learning":              r.sync.Learning,
		"exhausted":             q.op == "sync" && r.sync.Window != 0 && r.sync.Remaining == 0,
		"rolled":                q.op == "sync" && q.sync.Window != 0 && r.sync.Window > q.sync.Window,
		"unknown":               r.unknown,
	} {
		if was {
			c.seen[what]++
		}
	}
}

// check looks for an order that explains the history, and returns why there is
// none.
func (c *crowd) check() string {
	slices.SortStableFunc(c.history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	switch porcupine.CheckOperationsTimeout(rules.ToModel(), c.history, time.Minute) {
	case porcupine.Ok:
		return ""
	case porcupine.Unknown:
		return "the search took too long"
	}
	text := "no order explains this:"
	for _, o := range c.history {
		text += fmt.Sprintf("\n[%d, %d] %+v -> %+v", o.Call, o.Return, o.Input, o.Output)
	}
	return text
}

// TestOrder: whatever many clients are told by a real server at once, on a network
// that loses requests and replies, one order of all that they did explains it.
func TestOrder(t *testing.T) {
	server := redistest.Start(t)
	store := redisstore.New(server.Client())
	for _, lossy := range []bool{false, true} {
		t.Run(fmt.Sprint("lossy=", lossy), func(t *testing.T) {
			seen := map[string]int{}
			for i := range *histories {
				seed := rand.Uint64()
				c := newCrowd(onRedis(t, store, server.Client()), lossy, seen, rand.New(rand.NewPCG(seed, 99)))
				c.run(seed, 14)
				require.Empty(t, c.check(), "history %d, seed %d", i, seed)
			}
			places := []string{
				"lost request", "lost reply", "unknown", "repeated", "give-back", "refused take", "allowed take", "refunded", "settled above",
				"late settlement", "recovered", "recovered and granted", "exhausted", "rolled",
			}
			if lossy {
				places = append(places, "lost data", "re-asserted", "learning", "carried")
			}
			visited(t, seen, places)
		})
	}
}

func visited(t *testing.T, seen map[string]int, places []string) {
	t.Helper()
	for _, what := range places {
		assert.Positive(t, seen[what], "never seen: %s", what)
	}
	t.Log(seen)
}

// TestOrderOverTheWire: the same with faults on the connection, where the store
// says a statement again by itself, and never a take or a settlement.
func TestOrderOverTheWire(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := server.Client(func(o *redis.Options) { o.Addr = proxy.Addr() })
	sent := &sendings{times: map[string]int{}}
	client.AddHook(sent)
	store := redisstore.New(client)
	seen := map[string]int{}
	for i := range *histories {
		seed := rand.Uint64()
		c := newCrowd(onRedis(t, store, server.Client()), false, seen, rand.New(rand.NewPCG(seed, 99)))
		c.sent = sent
		c.run(seed, 4)
		for range 2 { // two faults a history
			proxy.SwallowReply("evalsha", 1)
			c.run(seed+1, 2)
			proxy.DropRequests("evalsha", 1)
			c.run(seed+2, 2)
		}
		require.Empty(t, c.check(), "history %d, seed %d", i, seed)
	}
	assert.Positive(t, proxy.Swallowed())
	assert.Positive(t, proxy.Dropped())
	visited(t, seen, []string{"said again", "recovered", "rolled", "allowed take", "refused take", "exhausted"})
}

// TestOrderNotices: the search notices each of these deliberate bugs.
func TestOrderNotices(t *testing.T) {
	try := func(s backend.Store, seed uint64) string {
		c := newCrowd(target{Store: s}, false, map[string]int{}, rand.New(rand.NewPCG(seed, 99)))
		c.run(seed, 14)
		return c.check()
	}
	for name, bug := range bugs {
		if name == "debt is forgotten" || name == "a reset leaves what was charged" {
			continue // the crowd does neither
		}
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) {
				if try(bug(memstore.New()), seed) != "" {
					t.Logf("in history %d", seed)
					return
				}
			}
			t.Error("nobody noticed")
		})
	}
	t.Run("none", func(t *testing.T) {
		for seed := range uint64(20) {
			require.Empty(t, try(memstore.New(), seed))
		}
	})
}

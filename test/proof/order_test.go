// Package proof looks for one order that explains all that many clients were told at once, lets a naive model judge what they
// got, and looks for an interval that sees more of a rolling limit than it allows.
package proof

import (
	"cmp"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	randv2 "math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/naive/hand"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

var histories = flag.Int("histories", 80, "how many concurrent histories TestOrder checks, of each kind")

func TestMain(m *testing.M) { redistest.Main(m) }

// window is how long windows last by the tests' own clock. A server deletes by its own
// clock what is over, so they begin an hour ahead of it.
const window = time.Minute

// base is the instant from which tests count, Unix us.
var base = time.Now().Add(time.Hour).Truncate(time.Second).UnixMicro()

// request is one operation on one key.
type request struct {
	op    string // sync, direct, overrun, check, reset or lose
	key   string
	now   int64 // by the store's clock, Unix us
	limit backend.Limit
	sync  backend.Statement // of sync, and without a client of direct and overrun
}

// states reports whether q is a statement.
func (q request) states() bool { return q.op == "sync" || q.op == "direct" || q.op == "overrun" }

// direct makes of q a statement without a client, which needs tokens or, if window is given, has used them.
func (q request) direct(tokens int64, window backend.Window) request {
	q.op, q.sync = "direct", backend.Statement{Key: q.key, Limit: q.limit, Need: tokens}
	if window.End != 0 {
		q.op, q.sync.Need, q.sync.Change, q.sync.Window = "overrun", 0, tokens, window
	}
	return q
}

// reply is the result of an operation. An unknown one may have been anything.
type reply struct {
	unknown bool
	state   backend.State
	void    backend.Window
	sync    backend.Reply
}

// step carries out q on a copy of c and reports whether r is the right reply.
func step(c ledger.Counter, q request, r reply) (bool, ledger.Counter) {
	c = c.Clone()
	want := reply{unknown: r.unknown}
	switch {
	case q.states():
		want.sync, _ = c.Sync(q.sync, q.now)
	case q.op == "check":
		want.state = c.Check(q.limit, q.now)
	case q.op == "reset":
		want.void, _ = c.Reset(q.limit, q.now)
	default:
		c = ledger.Counter{}
	}
	return r.unknown || reflect.DeepEqual(r, want), c
}

// rules are the steps of package ledger. Some order of all operations, in which none is
// before another that had returned before it was called, must explain every reply.
// The suite in backendtest compares the scripts with the same steps, one by one.
var rules = porcupine.Model{
	Init: func() any { return ledger.Counter{} },
	Step: func(s, in, out any) (bool, any) {
		return step(s.(ledger.Counter), in.(request), out.(reply))
	},
	Equal: reflect.DeepEqual,
	Partition: func(history []porcupine.Operation) (list [][]porcupine.Operation) {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(request).key
			byKey[key] = append(byKey[key], o)
		}
		for _, h := range byKey {
			list = append(list, h)
		}
		return list
	},
}

// crowd is some clients and a direct caller, all at once on two keys of a store, and what
// they were told.
type crowd struct {
	backend.Store
	lose     func(key string) // deletes what the store has of key; nil = it keeps its data
	keys     [2]string
	limit    backend.Limit
	accounts [clients]map[string]*holder // by key
	clock    atomic.Int64                // us since base
	start    time.Time
	still    bool // the clock stands, and the model judges what all get

	mu      sync.Mutex
	history []porcupine.Operation
	wrong   string // what an account said that is not so
	faults  int
	tickets []request // overruns of direct calls that may be charged
	letters []request // statements that may arrive again
	seen    map[string]int
	logs    map[string]*naive.Log // by key
	vague   map[string]bool       // keys to which a call may have charged what nobody knows of, or given it back
}

const (
	clients = 4

	// faultsMost bounds the operations of a history whose results are unknown, because
	// each of them doubles the number of possible orders.
	faultsMost = 6

	// never is when an operation returns whose result is unknown.
	never = int64(1) << 62
)

// newCrowd draws a limit. Its keys are new to the store.
func newCrowd(s backend.Store, seed uint64, seen map[string]int) *crowd {
	rnd := randv2.New(randv2.NewPCG(seed, 99))
	c := &crowd{
		Store: s, keys: [2]string{rand.Text(), rand.Text()}, start: time.Now(), seen: seen,
		limit: backend.Limit{Tokens: []int64{5, 20, 60}[rnd.IntN(3)], Window: window},
		still: seed%2 == 0, logs: make(map[string]*naive.Log), vague: make(map[string]bool),
	}
	for _, key := range c.keys {
		c.logs[key] = &naive.Log{Limit: c.limit.Tokens}
	}
	return c
}

// run lets each make some operations, and returns why no order explains them, or nothing.
func (c *crowd) run(seed uint64) string {
	const each = 14
	var all sync.WaitGroup
	for who := range clients {
		c.accounts[who] = map[string]*holder{c.keys[0]: {}, c.keys[1]: {}}
		all.Go(func() { c.client(who, each, randv2.New(randv2.NewPCG(seed, uint64(who)))) })
	}
	all.Go(func() { c.caller(each, randv2.New(randv2.NewPCG(seed, clients))) })
	all.Wait()
	for who, accounts := range c.accounts { // an old statement may have charged something since each one's last
		for key, h := range accounts {
			c.settle(who, key, h)
		}
	}
	c.rest()
	return cmp.Or(c.wrong, c.check())
}

// holder is a client's account of one key, and what has happened to it.
type holder struct {
	hand.Hand
	spent int64 // in its life
	paid  int64 // debt that was charged, in its life
	moved tokens.Moved
}

// judge tells the model of a key something. It is wrong if time stands still: else the clocks of calls may be in any order.
func (c *crowd) judge(key string, tell func(*naive.Log) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := tell(c.logs[key]); err != nil && c.still {
		c.wrong = cmp.Or(c.wrong, err.Error())
	}
}

// client keeps accounts, spends, overruns and gives back, as a limiter does.
func (c *crowd) client(who, each int, rnd *randv2.Rand) {
	accounts := c.accounts[who]
	for range each {
		key, now := c.tick(rnd)
		h := accounts[key]
		n := rnd.Int64N(h.Held + 1)
		h.Held, h.spent = h.Held-n, h.spent+n
		if n > 0 {
			c.judge(key, func(l *naive.Log) error { return l.Spend(now, who, h.Name(c.limit), n) })
		}
		if back := rnd.Int64N(h.Held + 1); back > 0 && rnd.IntN(3) == 0 {
			c.judge(key, func(l *naive.Log) error { return h.GiveBack(c.limit, l, who, back) })
			c.saw("give-back", true)
		}
		if h.Window.End != 0 && rnd.IntN(8) == 0 {
			for range 1 + rnd.Int64N(5) {
				c.judge(key, func(l *naive.Log) error { h.Declare(c.limit, l, who, now); return nil })
			}
			c.saw("overrun", true)
		}
		want := rnd.Int64N(c.limit.Tokens/[]int64{1, 4, 4}[rnd.IntN(3)] + 2)
		q := request{op: "sync", key: key, limit: c.limit, now: now, sync: *h.Ask(c.limit, key, fmt.Sprint("p", who), want, now)}
		q.sync.Need, q.sync.Exact, q.sync.Deaf = rnd.Int64N(want+1), rnd.IntN(3) == 0, false
		if r := c.send(q, c.fate(rnd)); !r.unknown {
			c.apply(who, key, h, q, r.sync)
		}
	}
}

// apply applies a reply to h, and compares the account with what has happened.
func (c *crowd) apply(who int, key string, h *holder, q request, r backend.Reply) {
	c.judge(key, func(l *naive.Log) error {
		return h.Apply(c.limit, l, who, hand.Call{Q: &q.sync, R: &r, Sent: q.now}, q.now)
	})
	m := h.Moved
	h.paid += m.Taken - r.Grant
	h.moved.Taken += m.Taken
	h.moved.Returned += m.Returned
	h.moved.Expired += m.Expired
	c.that(min(m.Taken-r.Grant, m.Returned, m.Expired) >= 0, "%+v moved back", m)
	spent := h.Account.Balance - h.Held - h.Unconfirmed()
	c.that(spent == h.spent+h.paid, "the account has %d spent, which were %d and a debt of %d", spent, h.spent, h.paid)
	c.that(h.moved.Taken == spent+h.moved.Returned+h.moved.Expired+h.Held+h.Unconfirmed(), "%+v does not balance", h)
}

// settle makes h's last statement, on a good network. Then nothing is outstanding.
func (c *crowd) settle(who int, key string, h *holder) {
	now := base + c.clock.Load()
	q := request{op: "sync", key: key, limit: c.limit, now: now, sync: *h.Ask(c.limit, key, fmt.Sprint("p", who), 0, now)}
	q.sync.Exact, q.sync.Deaf = false, false
	c.apply(who, key, h, q, c.send(q, "").sync)
	c.that(h.Unpaid()+h.Unconfirmed() == 0, "%+v is outstanding", h)
}

// rest compares what is free, when all have settled, with what the model says.
func (c *crowd) rest() {
	for _, key := range c.keys {
		now := base + c.clock.Load()
		r := c.send(request{op: "check", key: key, limit: c.limit, now: now}, "")
		l := c.logs[key]
		least, most := l.Free(now, hand.Name(c.limit, r.state.Window, 0))
		free := r.state.Remaining
		c.that(!c.still || c.vague[key] || len(l.Losses) > 0 || least <= free && free <= most, "at rest %d tokens are free, for %d to %d: %+v", free, least, most, l)
	}
}

// note tells the model what a call of the caller does: before it is made what it may lose or give back, and after it what
// it was charged.
func (c *crowd) note(q request, r reply, made bool) {
	const who = clients
	w := hand.Name(c.limit, r.sync.Window, 0)
	c.judge(q.key, func(l *naive.Log) error {
		switch {
		case q.op == "lose" && !made:
			l.Losses = append(l.Losses, base)
		case q.op == "reset" && !made:
			l.Resets = append(l.Resets, base)
		case charged(q, r):
			l.Declare(base, who, w, q.sync.Change)
		case q.op == "direct" && r.sync.Grant > 0:
			l.Grant(who, w, q.sync.Need)
			return l.Spend(base, who, w, q.sync.Need)
		}
		if made && r.unknown && (q.op == "direct" || q.op == "overrun") {
			c.vague[q.key] = true
		}
		return nil
	})
}

// charged reports whether an overrun was charged: its window is open.
func charged(q request, r reply) bool {
	return q.op == "overrun" && !r.unknown && r.sync.Window == q.sync.Window
}

func (c *crowd) that(ok bool, format string, args ...any) {
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.wrong = cmp.Or(c.wrong, fmt.Sprintf(format, args...))
	}
}

// caller makes statements without an account, checks and resets, repeats old statements, and makes the store
// lose its data.
func (c *crowd) caller(each int, rnd *randv2.Rand) {
	for range each {
		key, now := c.tick(rnd)
		q := request{key: key, limit: c.limit, now: now}
		switch k := rnd.IntN(20); {
		case k < 7:
			q = q.direct(1+rnd.Int64N(c.limit.Tokens), backend.Window{})
		case k < 10:
			q.op = "check"
		case k < 11:
			q.op = "reset"
		case k < 15:
			if !c.old(&c.tickets, &q, rnd) {
				continue
			}
		case k < 19 || c.lose == nil:
			if !c.old(&c.letters, &q, rnd) {
				continue
			}
			c.saw("repeated", true)
		default:
			q.op = "lose"
		}
		c.send(q, c.fate(rnd))
	}
}

// old moves one of list to q, with q's time.
func (c *crowd) old(list *[]request, q *request, rnd *randv2.Rand) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(*list) == 0 {
		return false
	}
	i, now := rnd.IntN(len(*list)), q.now
	*q = (*list)[i]
	q.now = now
	*list = slices.Delete(*list, i, i+1)
	return true
}

// tick moves the clock of all, sometimes over the end of a window, and draws a key.
func (c *crowd) tick(rnd *randv2.Rand) (key string, now int64) {
	if c.still {
		return c.keys[rnd.IntN(2)], base
	}
	steps := []time.Duration{0, time.Microsecond, 900 * time.Microsecond, time.Second, time.Second, 9 * time.Second}
	return c.keys[rnd.IntN(2)], base + c.clock.Add(steps[rnd.IntN(len(steps))].Microseconds())
}

// saw counts an event, so that a test knows that it has happened.
func (c *crowd) saw(what string, happened bool) {
	if happened {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.seen[what]++
	}
}

// send carries out q, unless its fate is that the request is lost, and records the operation.
func (c *crowd) send(q request, fate string) reply {
	call := time.Since(c.start).Nanoseconds()
	r := reply{unknown: true}
	c.note(q, r, false)
	if fate != "lost request" {
		got, err := c.do(q)
		c.that(err == nil, "%s: %v", q.op, err)
		if err == nil && fate == "" {
			r = got
		}
	}
	end := time.Since(c.start).Nanoseconds()
	if r.unknown {
		end = never
	}
	c.note(q, r, true)
	c.record(q, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history = append(c.history, porcupine.Operation{Input: q, Call: call, Output: r, Return: end})
	return r
}

// do carries out q at its time.
func (c *crowd) do(q request) (r reply, err error) {
	ctx := storeclock.With(context.Background(), time.UnixMicro(q.now))
	switch q.op {
	case "sync", "direct", "overrun":
		r.sync, err = c.Sync(ctx, q.sync)
	case "check":
		r.state, err = c.Check(ctx, q.key, q.limit)
	case "reset":
		r.void, err = c.Reset(ctx, q.key, q.limit)
	default:
		c.lose(q.key)
	}
	return r, err
}

// fate is what the network does to the next call; "" is nothing.
func (c *crowd) fate(rnd *randv2.Rand) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.faults == faultsMost || rnd.IntN(8) > 0 {
		return ""
	}
	c.faults++
	what := []string{"lost request", "lost reply"}[rnd.IntN(2)]
	c.seen[what]++
	return what
}

// record keeps what later operations need, and counts what happened.
func (c *crowd) record(q request, r reply) {
	c.saw(q.op, true)
	s := r.sync
	c.saw("refused", q.op == "direct" && !r.unknown && s.Grant == 0)
	c.saw("charged above", charged(q, r))
	c.saw("too late to charge", q.op == "overrun" && !r.unknown && !charged(q, r))
	c.saw("void", s.Void)
	c.saw("carried", s.Window != q.sync.Window && s.Mine > s.Grant)
	c.saw("used up", s.Lasted > 0)
	c.saw("above the limit", s.Used > q.limit.Tokens)
	c.saw("rolled", q.sync.Window.End != 0 && s.Window.End > q.sync.Window.End)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case q.op == "sync":
		c.letters = append(c.letters, q)
	case q.op == "direct" && s.Grant > 0:
		c.tickets = append(c.tickets, q.direct(q.sync.Need, s.Window))
	}
}

// check looks for an order that explains the history, and returns why there is none.
func (c *crowd) check() string {
	slices.SortStableFunc(c.history, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	result := porcupine.CheckOperationsTimeout(rules, c.history, time.Minute)
	if result == porcupine.Ok {
		return ""
	}
	text := fmt.Sprintf("%s: no order explains this:", result)
	for _, o := range c.history {
		text += fmt.Sprintf("\n[%d, %d] %+v -> %+v", o.Call, o.Return, o.Input, o.Output)
	}
	return text
}

// TestOrder: one order of all operations explains every reply that many clients of a real
// server got at once, on a network that loses requests and replies.
func TestOrder(t *testing.T) {
	server := redistest.Start(t)
	store, admin := redisstore.New(server.Client()), server.Client()
	lose := func(key string) {
		counter := "{" + key + "}:" + backend.Limit{Window: window}.Counter()
		assert.NoError(t, admin.Del(context.Background(), counter, counter+":exp", counter+":own").Err())
	}
	for _, lossy := range []bool{false, true} {
		t.Run(fmt.Sprint("lossy=", lossy), func(t *testing.T) {
			seen := map[string]int{}
			for range *histories {
				seed := randv2.Uint64()
				c := newCrowd(store, seed, seen)
				if lossy {
					c.lose = lose
				}
				require.Empty(t, c.run(seed), "seed %d", seed)
			}
			events := []string{
				"lost request", "lost reply", "repeated", "give-back", "overrun", "reset", "check", "direct", "refused", "charged above",
				"too late to charge", "void", "used up", "above the limit", "rolled",
			}
			if lossy {
				events = append(events, "lose", "carried")
			}
			for _, what := range events {
				assert.Positive(t, seen[what], "never happened: %s", what)
			}
			t.Log(seen)
		})
	}
}

// careless is a store that checks first and then takes, so that others come in between.
type careless struct{ backend.Store }

func (s careless) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	state, err := s.Check(ctx, q.Key, q.Limit)
	if err != nil || state.Window.End == 0 || q.Need == 0 || q.Client != "" {
		return s.Store.Sync(ctx, q)
	}
	runtime.Gosched()
	reply, err := s.Store.Sync(ctx, q)
	reply.State, reply.Used, reply.Grant = state, q.Limit.Tokens-state.Remaining, 0
	if state.Remaining >= q.Need {
		reply.Grant = q.Need
		reply.Remaining, reply.Used = reply.Remaining-q.Need, reply.Used+q.Need
	}
	return reply, err
}

// TestOrderNotices: no order explains what a careless store says.
func TestOrderNotices(t *testing.T) {
	for seed := range uint64(200) {
		require.Empty(t, newCrowd(memstore.New(), seed, map[string]int{}).run(seed))
		if newCrowd(careless{memstore.New()}, seed, map[string]int{}).run(seed) != "" {
			return
		}
	}
	t.Error("nobody noticed")
}

// lavish is a store that lets everybody in.
type lavish struct{ backend.Store }

func (s lavish) Sync(ctx context.Context, q backend.Statement) (backend.Reply, error) {
	reply, err := s.Store.Sync(ctx, q)
	if q.Client == "" {
		reply.Grant = q.Need
	}
	return reply, err
}

// TestModelNotices: the model finds that too much was spent, whatever porcupine says.
func TestModelNotices(t *testing.T) {
	for seed := uint64(0); seed < 200; seed += 2 {
		c := newCrowd(lavish{memstore.New()}, seed, map[string]int{})
		c.run(seed)
		if c.wrong != "" {
			assert.Contains(t, c.wrong, "tokens")
			return
		}
	}
	t.Error("nobody noticed")
}

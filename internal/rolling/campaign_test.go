package rolling

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend"
)

var (
	runs = flag.Uint64("runs", 1000, "how many random `runs` TestCampaign makes")
	seed = flag.Int64("seed", -1, "the one `run` that TestCampaign makes; the order of accounts still differs")
)

// TestCampaign lets clients that keep the rules of the contract loose on a ring, over a network
// that loses, delays, repeats and reorders. A judge with the only true clock finds at most L
// tokens spent in every interval of length T, and afterwards all of L is free again.
func TestCampaign(t *testing.T) {
	if *seed >= 0 {
		assert.Empty(t, newWorld(uint64(*seed), fault{}).run())
		return
	}
	all := campaign(t, *runs, fault{}, true)
	t.Logf("%d runs: %+v", *runs, all)
	for what, n := range map[string]int64{"reached": all.reached, "late": all.late, "void": all.void, "recovered": all.recovered, "called": all.called, "stepped": all.stepped, "refunded": all.refunded, "debt": all.debt} {
		assert.Positive(t, n, what)
	}
}

// TestSabotage shows that the judge of TestCampaign sees what it is there for: each fault makes a rule
// of the store or of the client void, and some run is over.
func TestSabotage(t *testing.T) {
	for name, f := range map[string]fault{
		"a slice too few counts":             {slices: true},
		"no clock of its own":                {clock: true},
		"a direct reply used late":           {direct: true},
		"refunds go to the stock":            {refund: true},
		"replies to old statements used":     {reply: true},
		"spent after the deadline":           {deadline: true},
		"spent in a slice before the true":   {early: true},
		"accounts are over with their lease": {account: true},
	} {
		t.Run(name, func(t *testing.T) {
			all := campaign(t, 600, f, false)
			assert.Positive(t, all.over)
		})
	}
}

// fault says which rule does not hold.
type fault struct{ slices, clock, direct, refund, reply, deadline, early, account, loses bool }

// tally says what has happened in all runs.
type tally struct {
	over, reached, tokens, statements         int64
	late, void, recovered, called, stepped    int64
	refunded, debt, direct, settled, returned int64
}

func (a *tally) add(b tally) {
	a.over, a.reached, a.tokens, a.statements = a.over+b.over, a.reached+b.reached, a.tokens+b.tokens, a.statements+b.statements
	a.late, a.void, a.recovered, a.called, a.stepped = a.late+b.late, a.void+b.void, a.recovered+b.recovered, a.called+b.called, a.stepped+b.stepped
	a.refunded, a.debt, a.direct, a.settled, a.returned = a.refunded+b.refunded, a.debt+b.debt, a.direct+b.direct, a.settled+b.settled, a.returned+b.returned
}

// campaign makes n runs, on all processors. The first that is over ends it and, if strict, fails the
// test.
func campaign(t *testing.T, n uint64, f fault, strict bool) (all tally) {
	var next atomic.Uint64
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < n; i = next.Add(1) - 1 {
				w := newWorld(i, f)
				text := w.run()
				if strict {
					assert.Empty(t, text, "to replay: go test ./internal/rolling -run='^TestCampaign$' -seed=%d", i)
				}
				if strict && text != "" || w.over > 0 {
					next.Store(n)
				}
				mu.Lock()
				all.add(w.tally)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return all
}

// world is one run. Its time is the true one, in ns: that of the store's clock, if that steps back
// not. Clients' clocks are derived from it.
type world struct {
	*rand.Rand
	fault
	tally
	t      int64
	length time.Duration
	tokens int64 // of the limit now
	ring   Ring
	back   int64 // by which the store's clock has stepped back, us

	loss, again, tardy, debts float64 // chances of a call or reply
	swift                     int64   // how long one takes that is not late, ns
	coarse                    bool    // clients do not know in which slice they spend
	patience                  int64   // until when after a direct call its request is settled, ns

	queue    []event
	order    int
	clients  []*client
	names    int
	spends   []*spend
	grants   []grant
	problems string
	worst    float64 // the largest sum of an interval, to the limit
	learnt   bool
}

type event struct {
	at    int64
	order int
	do    func()
}

// spend is an admission.
type spend struct {
	at, tokens int64
	window     backend.Window
}

// grant says that from then on no more than that many tokens may count.
type grant struct{ at, limit int64 }

func newWorld(seed uint64, f fault) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 28)), fault: f}
	lengths := []time.Duration{20 * time.Millisecond, 37 * time.Millisecond, time.Second, 20 * time.Second, time.Minute}
	w.length = lengths[w.IntN(len(lengths))]
	w.tokens = int64(5 * math.Pow(600, w.Float64()))
	w.loss, w.again, w.tardy, w.debts = w.some(0.3), w.some(0.2), w.some(0.3), max(0, w.some(0.3)-0.15)
	w.swift = int64(w.length) / []int64{1, 10, 100, 1000}[w.IntN(4)] / backend.Slices
	w.coarse, w.patience = w.IntN(4) == 0, int64(w.length)
	return w
}

// some is 0 in a third of the runs, and else at most that much.
func (w *world) some(most float64) float64 {
	return max(0, w.Float64()*1.5-0.5) * most
}

func (w *world) chance(p float64) bool { return w.Float64() < p }

// upTo is between 1 and n.
func (w *world) upTo(n int64) int64 { return 1 + w.Int64N(max(n, 1)) }

// after lets something happen later, after that many ns.
func (w *world) after(d int64, do func()) {
	e := event{w.t + d, w.order, do}
	w.order++
	i := len(w.queue)
	for w.queue = append(w.queue, e); i > 0 && e.before(w.queue[(i-1)/2]); i = (i - 1) / 2 {
		w.queue[i] = w.queue[(i-1)/2]
	}
	w.queue[i] = e
}

func (e event) before(f event) bool { return e.at < f.at || e.at == f.at && e.order < f.order }

// step lets the next event happen.
func (w *world) step() bool {
	n := len(w.queue) - 1
	if n < 0 || w.problems != "" {
		return false
	}
	first, last := w.queue[0], w.queue[n]
	w.queue[n] = event{}
	w.queue = w.queue[:n]
	for i := 0; n > 0; {
		j := 2*i + 1
		if j+1 < n && w.queue[j+1].before(w.queue[j]) {
			j++
		}
		if j >= n || last.before(w.queue[j]) {
			w.queue[i] = last
			break
		}
		w.queue[i] = w.queue[j]
		i = j
	}
	w.t = first.at
	first.do()
	return true
}

// delay is how long a call or a reply takes. A clock's reading is at most a microsecond old.
func (w *world) delay() int64 {
	if w.chance(w.tardy) {
		w.late++
		return w.upTo(int64(w.length) * 3 / 2)
	}
	return 1000 + w.upTo(w.swift)
}

// call carries something to the store and back, perhaps more than once, or not at all.
func (w *world) call(copies int, there func() (back func())) {
	for ; copies > 0; copies-- {
		if w.chance(w.loss) {
			continue
		}
		w.after(w.delay(), func() {
			w.sabotage()
			back := there()
			w.check()
			if !w.chance(w.loss) {
				w.after(w.delay(), back)
			}
		})
	}
}

// now is the store's clock, in us.
func (w *world) now() int64 { return start + w.t/1000 - w.back }

func (w *world) limit() backend.Limit { return limit(w.tokens, w.length) }

func (w *world) failf(format string, args ...any) {
	if w.problems == "" {
		w.problems = fmt.Sprintf(format, args...)
	}
}

// sabotage breaks the store's rules before a step.
func (w *world) sabotage() {
	r := &w.ring
	if w.clock {
		r.ahead, r.last = 0, 0
	}
	if !r.Open(w.now()) {
		return
	}
	if w.slices {
		r.drop(max(w.now()+r.ahead, r.last))
		r.sum -= *r.slot(r.low)
		*r.slot(r.low) = 0
	}
	if w.account {
		for name, a := range r.own {
			if a.slice < r.low+backend.Slices {
				if n := a.unspent(); n > 0 {
					r.add(a.slice, -n)
				}
				r.forget(a)
				delete(r.own, name)
			}
		}
	}
}

// check compares the ring's sums with what they sum.
func (w *world) check() {
	r := &w.ring
	if w.fault != (fault{}) || w.IntN(16) > 0 {
		return
	}
	sum, idle, present, out := int64(0), int64(0), int64(0), int64(0)
	for _, n := range r.count {
		sum += n
	}
	for _, a := range r.own {
		idle += a.idle
		if a.present {
			present++
		}
		if a.called {
			out++
		}
		if a.unspent() < 0 || a.idle < 0 || a.refunded > a.spent+a.debt {
			w.failf("account %+v", a)
		}
	}
	if sum != r.sum || idle != r.idle || present != r.present || out != r.out || sum < 0 {
		w.failf("sums %d, %d, %d, %d of %d, %d, %d, %d", r.sum, r.idle, r.present, r.out, sum, idle, present, out)
	}
}

// client keeps the rules of a client.
type client struct {
	*world
	rate     float64             // of its clock
	q        backend.SyncRequest // its account
	used     int64               // of the ring, by the last reply
	returned int64               // that this reply knows
	spent    int64               // in all
	stated   int64               // the part of it that this reply knows
	seq      int                 // of its last statement
	heard    int                 // statement whose reply was used
	sent, at int64               // that statement's time by its clock, and the ring's then
	deadline int64               // by its clock, ns: nothing is spent from then on
	gone     bool
	spends   []*spend
	habit    int
}

func (w *world) join(name string) *client {
	if name == "" {
		w.names++
		name = fmt.Sprintf("p%d.1", w.names)
	}
	c := &client{world: w, rate: 1 + (w.Float64()-0.5)*800e-6, habit: w.IntN(4)}
	c.q = backend.SyncRequest{Key: "k", Client: name}
	return c
}

func (c *client) now() int64 { return int64(float64(c.t) * c.rate) }

func (c *client) stock() int64 { return c.q.Granted - c.q.Returned - c.spent }

// slice is not earlier than the true one.
func (c *client) slice() int64 {
	if c.early {
		return max(backend.Slice(c.at, c.length)-1, 0)
	}
	if c.coarse {
		return backend.MaxTokens
	}
	return backend.Slice(c.at+1+int64(float64(c.now()-c.sent)*(1+500e-6))/1000, c.length)
}

// good is how long tokens may be spent that a reply charged.
func (c *client) good(left time.Duration) int64 {
	return int64(float64(left-c.length) * (1 - 500e-6))
}

// pair states that in all so many were spent until now.
func (c *client) pair() {
	p := &c.q.Spent
	s := backend.Spent{Slice: c.slice(), Tokens: c.spent}
	if n := len(*p); n > 0 {
		s.Slice = max(s.Slice, (*p)[n-1].Slice)
		if (*p)[n-1].Slice == s.Slice {
			*p = (*p)[:n-1]
		}
	}
	if *p = append(*p, s); len(*p) > backend.MaxSpent {
		*p = slices.Delete(*p, 0, 1)
	}
}

func (c *client) spend(n int64) {
	if n = min(n, c.stock()); n <= 0 || c.gone || c.now() >= c.deadline && !c.world.deadline {
		return
	}
	c.spent += n
	c.pair()
	c.spends = append(c.spends, c.admit(n, c.q.Window))
}

func (w *world) admit(n int64, window backend.Window) *spend {
	s := &spend{w.t, n, window}
	w.spends = append(w.spends, s)
	w.tally.tokens += n
	return s
}

// refund gives back some of what was spent before, of an account that is over too, but no more than was spent of this one.
func (c *client) refund() {
	if len(c.spends) == 0 {
		return
	}
	s := c.spends[c.IntN(len(c.spends))]
	most := min(s.tokens, c.spent-c.q.Refunded)
	if most <= 0 {
		return
	}
	n := c.upTo(most)
	s.tokens -= n
	c.refunded += n
	if c.fault.refund {
		c.spent -= n
		for i := range c.q.Spent {
			c.q.Spent[i].Tokens = min(c.q.Spent[i].Tokens, c.spent)
		}
		return
	}
	c.q.Refunded += n
	if c.q.RefundedIn.End == 0 || s.window.End < c.q.RefundedIn.End {
		c.q.RefundedIn = s.window
	}
}

// state sends a statement. It returns some of the stock, or all.
func (c *client) state(back, want int64) {
	if c.gone {
		return
	}
	back = min(back, c.stock())
	q := &c.q
	q.Returned += back
	c.tally.returned += back
	if c.chance(c.debts) {
		n := c.upTo(c.world.tokens / 10)
		q.Debt += n
		c.debt += n
	}
	q.Limit = c.limit()
	q.Want = want
	q.Need = min(want, c.Int64N(c.world.tokens+1))
	q.Least = min(q.Need, c.Int64N(2))
	q.Exact, q.Leaving, q.Waited = c.chance(0.5), want == 0 && c.chance(0.5), c.chance(0.5)
	q.Idle = c.upTo(c.stock()+2) - 2
	q.Used = max(c.used-(q.Returned-c.returned), 0)
	q.Peers, q.Pace = c.Int64N(4), c.Int64N(2*c.world.tokens)
	sent := *q
	sent.Spent = slices.Clone(q.Spent)
	if err := sent.Validate(); err != nil {
		c.failf("%v", err)
	}
	c.seq++
	at, seq, copies := c.now(), c.seq, 1
	for c.chance(c.again) && copies < 3 {
		copies++
	}
	c.statements++
	c.call(copies, func() func() {
		r := c.sync(sent)
		return func() { c.apply(r, sent, at, seq) }
	})
}

// sync is a statement's execution.
func (w *world) sync(q backend.SyncRequest) backend.SyncReply {
	r, messages := w.ring.Sync(q, w.now())
	if r.Grant > r.Recovered {
		w.grants = append(w.grants, grant{w.t, q.Limit.Tokens})
	}
	if w.fault == (fault{}) && (r.Reasserted > 0 || r.Learning) {
		w.failf("loss: %+v for %+v", r, q)
	}
	if w.learnt = w.learnt || r.Learning; r.Recovered > 0 {
		w.recovered++
	}
	for _, m := range messages {
		w.called++
		for _, c := range w.clients {
			if backend.Process(c.q.Client) == m.Process && !w.chance(w.loss) {
				w.after(w.delay(), func() { c.state(c.upTo(c.stock()), 0) })
			}
		}
	}
	return r
}

func (c *client) apply(r backend.SyncReply, q backend.SyncRequest, sent int64, seq int) {
	if c.gone || seq != c.seq && !c.reply || seq == c.heard {
		return
	}
	c.heard = seq
	a := &c.q
	if r.Account != a.Account {
		if a.Account != 0 {
			c.void++
		}
		a.Account, a.Returned, a.Debt, a.Refunded, a.RefundedIn, a.Spent = r.Account, r.Returned, r.Debt, 0, backend.Window{}, nil
		c.spent, q.Refunded = r.Granted-r.Returned-r.Grant, 0
		if c.spent > 0 {
			a.Spent = []backend.Spent{{Tokens: c.spent}}
		}
	}
	a.Granted, a.Window, a.Total = r.Granted, r.Window, r.Total
	if c.reply {
		a.Returned, a.Debt, c.spent = max(a.Returned, r.Returned), max(a.Debt, r.Debt), max(0, min(c.spent, r.Granted-r.Returned))
	}
	if a.Refunded == q.Refunded {
		a.RefundedIn = backend.Window{}
	}
	for len(a.Spent) > 1 && len(q.Spent) > 0 && a.Spent[0].Tokens <= q.Spent[len(q.Spent)-1].Tokens {
		a.Spent = slices.Delete(a.Spent, 0, 1)
	}
	c.stated = 0
	if n := len(q.Spent); n > 0 && r.Account == q.Account {
		c.stated = q.Spent[n-1].Tokens
	}
	c.used, c.returned = q.Limit.Tokens-r.Remaining+r.Over, r.Returned
	c.sent, c.at = sent, r.Window.End*1000-r.Left.Microseconds()
	c.deadline = sent + c.good(r.Left)
	if c.stock() < 0 && !c.reply {
		c.failf("a stock of %d: %+v", c.stock(), r)
	}
	c.plan(r)
}

// plan lets the client do next what may hurt most.
func (c *client) plan(r backend.SyncReply) {
	left := max(c.deadline-c.now(), 0)
	switch c.habit {
	case 0: // all at once
		c.spend(c.stock())
	case 1: // as late as possible
		c.after(max(int64(float64(left)/c.rate)-2, 0), func() { c.spend(c.stock()) })
	case 2: // it renews its lease, and spends in the next
		if left > 0 {
			c.after(max(left-c.upTo(2*c.swift), 0), func() { c.state(0, c.upTo(c.world.tokens)) })
		}
	}
	if r.Frees > 0 && c.chance(0.5) {
		c.after(int64(r.Frees), func() { c.state(0, c.world.tokens) })
	}
}

// direct makes a direct call. Its reply is used before its deadline only.
func (c *client) direct() {
	n := c.upTo(c.upTo(c.upTo(c.world.tokens)))
	q := backend.TakeRequest{Key: "k", Limit: c.limit(), Tokens: n, Within: time.Duration(c.Int64N(int64(c.length) / 2))}
	sent := c.now()
	c.call(1, func() func() {
		r := c.ring.Take(q, c.world.now())
		if r.Allowed {
			c.grants = append(c.grants, grant{c.t, q.Limit.Tokens})
		}
		return func() {
			if !r.Allowed || c.gone {
				return
			}
			if c.now() >= sent+c.good(r.Left) && !c.fault.direct {
				c.settle(r.Window, -n)
				return
			}
			c.tally.direct++
			s := c.admit(n, r.Window)
			c.after(c.Int64N(c.patience), func() {
				switch c.IntN(4) {
				case 0:
					c.settle(r.Window, c.upTo(n))
				case 1:
					back := c.upTo(n)
					s.tokens -= back
					c.settle(r.Window, -back)
				}
			})
		}
	})
}

func (c *client) settle(window backend.Window, n int64) {
	q := backend.SettleRequest{Key: "k", Window: window, Tokens: n, Limit: limit(c.world.tokens, c.length)}
	c.call(1, func() func() {
		if c.ring.Settle(q, c.world.now()).Open {
			c.settled++
		}
		return func() {}
	})
}

// act does something that a client may do at any time.
func (c *client) act() {
	most := c.world.tokens
	switch n := c.IntN(100); {
	case n < 40:
		c.spend(c.upTo(1 + c.stock()*int64(c.IntN(3))/2))
	case n < 75:
		c.state(0, c.upTo(most))
	case n < 80:
		c.state(c.upTo(c.stock()), c.Int64N(most))
	case n < 82:
		c.state(c.stock(), 0)
	case n < 90:
		c.direct()
	case n < 96:
		c.refund()
	case n < 98:
		c.restart()
	}
}

// restart kills the client. Another one begins in its place, sometimes one of the same name that
// remembers nothing, if the store knows all that was spent and returned.
func (c *client) restart() {
	name := ""
	if c.chance(0.5) && c.heard == c.seq && c.spent == c.stated {
		name = c.q.Client
	}
	c.gone = true
	c.clients[slices.Index(c.clients, c)] = c.join(name)
}

// run plays some windows, waits until all must be free again, and judges.
func (w *world) run() string {
	for range 1 + w.IntN(50) {
		w.clients = append(w.clients, w.join(""))
	}
	end := int64(w.length) * (3 + w.Int64N(4))
	silence, busy := int64(0), end
	if w.IntN(3) == 0 { // nobody acts until the ring is over, and then there are requests from before
		silence = int64(w.length) * 2
		busy, end = w.Int64N(end), end+silence
		w.patience = end
	}
	acts := 150 + w.IntN(400)
	for range acts {
		at := w.Int64N(end - silence)
		if at >= busy {
			at += silence
		}
		w.after(at, func() { w.clients[w.IntN(len(w.clients))].act() })
	}
	for range w.IntN(4) { // the store's clock steps back
		w.after(w.Int64N(end), func() {
			w.stepped++
			w.back += w.upTo(3 * w.length.Microseconds())
		})
	}
	if w.IntN(3) == 0 {
		for range w.upTo(4) {
			w.after(w.Int64N(end), func() { w.tokens = max(5, int64(float64(w.tokens)*(0.3+1.5*w.Float64()))) })
		}
	}
	if w.loses {
		copied := Ring{}
		w.after(w.Int64N(end/2), func() {
			if w.IntN(2) == 0 {
				copied = w.ring.Clone()
			}
		})
		w.after(end/2+w.Int64N(end/4), func() { w.ring = copied })
	}
	w.after(end, func() {
		for _, c := range w.clients {
			c.gone = true
		}
	})
	for n := 0; n < 20_000 && w.step(); n++ { // a fault may let clients state without end
	}
	w.quiet()
	w.judge()
	return w.problems
}

// quiet asserts that after the longest lease, and a window, all is free.
func (w *world) quiet() {
	if w.fault != (fault{}) && !w.loses || w.problems != "" {
		return
	}
	w.sync(backend.SyncRequest{Key: "k", Client: "p.probe", Limit: w.limit()})
	w.t += int64(w.length)*(backend.Slices+backend.Ahead+2)/backend.Slices + int64(w.length)/1000
	if s := w.ring.Check(w.limit(), w.now()); s.Remaining != w.tokens {
		w.failf("%d of %d are free: %+v", s.Remaining, w.tokens, s)
	}
	q := backend.SyncRequest{Key: "k", Client: "p.new", Limit: w.limit(), Want: w.tokens, Exact: true}
	r := w.sync(q)
	if r.Grant != w.tokens {
		w.failf("%d of %d are granted", r.Grant, w.tokens)
	}
	q.Account, q.Window, q.Granted, q.Total = r.Account, r.Window, r.Granted, r.Total
	for range 100 {
		q.Want = 0
		w.t += int64(w.length) / backend.Slices
		w.sync(q)
	}
	if w.check(); len(w.ring.own) != 1 || w.ring.present != 1 || w.ring.idle != 0 || w.ring.out != 0 || w.ring.sum != w.tokens {
		w.failf("accounts are left: %+v", w.ring)
	}
}

// judge compares what was spent in each interval with the limit of the last grant in it.
func (w *world) judge() {
	if w.problems != "" {
		return
	}
	first, g, sum, reached := 0, 0, int64(0), false
	for _, s := range w.spends {
		for sum += s.tokens; w.spends[first].at <= s.at-int64(w.length); first++ {
			sum -= w.spends[first].tokens
		}
		for g+1 < len(w.grants) && w.grants[g+1].at <= s.at {
			g++
		}
		most := w.grants[g].limit
		reached = reached || sum == most
		if w.worst = max(w.worst, float64(sum)/float64(most)); w.loses { // what was lost was granted under the limit of then
			for i := g; i >= 0 && w.grants[i].at >= s.at-2*int64(w.length); i-- {
				most = max(most, w.grants[i].limit)
			}
			most *= 2
		}
		if sum > most {
			w.over++
			w.failf("%d of %d between %v and %v, of a window of %v", sum, most, time.Duration(w.spends[first].at), time.Duration(s.at), w.length)
			return
		}
	}
	if reached {
		w.reached++
	}
}

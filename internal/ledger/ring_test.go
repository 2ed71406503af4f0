package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/tokens"
)

// The campaign of the rolling limit drives the rules and the accounts as that of the fixed ones does, and clients are suspended,
// too. Its judge is a list of spends: it looks at every interval of the window's length that begins at one.

// spend is n tokens that were spent at a time.
type spend struct{ at, n, gen int64 }

// result is what a request was charged, and may be refunded.
type result struct{ spend, bucket, n, gen, life int64 }

// roller is one limiter.
type roller struct {
	tokens.Account
	name      string
	life, gen int64
	held      int64
	lease     int64 // the bucket of the tokens in hand; 0 = none
	deadline  int64 // of the lease, us by its clock
	rate      int64 // by how much its clock is fast, in a million
	offset    int64
	seq, sent int64 // of the last statement, us by its clock
	inFlight  bool
	asleep    int64 // until then
	results   []result
}

// letter is a statement or a reply on its way.
type letter struct {
	at, life int64
	to       *roller
	q        backend.Statement
	r        backend.Reply
	reply    bool
}

type roll struct {
	*rand.Rand
	limit        backend.Limit
	us           int64 // the window's length
	lose, repeat float64
	refunds      float64
	now, clock   int64 // of the store, less real time
	start        int64
	c            ledger.Counter
	clients      []*roller
	names        int
	on           []letter
	spends       []spend
	direct       []backend.Change // charged without an account
	losses       int64
	losing       float64
	snapshot     ledger.Counter
	order        int64
	debt, resend bool
	holds        bool
	held         int64 // until when, us of the counter's time
	whole        bool  // nothing is unknown that counts
	control      string
	wrong        string
	tokens       int64
	happened     map[string]int
}

func (w *roll) some(n int64) int64    { return w.Int64N(n + 1) }
func (w *roll) chance(p float64) bool { return w.Float64() < p }
func (w *roll) store() int64          { return w.now + w.clock }
func (w *roll) clockOf(c *roller) int64 {
	return w.now + c.offset + (w.now-w.start)/1_000_000*c.rate + (w.now-w.start)%1_000_000*c.rate/1_000_000
}

func (w *roll) newcomer() *roller {
	w.names++
	c := &roller{name: fmt.Sprintf("p%d.1", w.names), rate: w.some(1000) - 500, offset: w.some(1e9)}
	w.begin(c)
	return c
}

// begin begins the next life of c.
func (w *roll) begin(c *roller) {
	if w.control != "life" || c.life == 0 {
		c.life++
	}
	c.Begin(w.limit, c.life)
	c.held, c.lease, c.deadline, c.seq, c.inFlight, c.results, c.gen = 0, 0, 0, 0, false, nil, 0
}

// let makes the lease anew.
func (w *roll) let(c *roller) {
	_, c.held = c.Expire(c.held, w.clockOf(c)*1000)
	if c.lease = c.Ring.First(); c.lease > 0 {
		c.deadline = c.Ring.Deadline(c.lease) / 1000
	}
}

// send states c's account, and asks for tokens.
func (w *roll) send(c *roller, want int64) {
	w.let(c)
	q := backend.Statement{Client: c.name, Limit: w.limit, Want: want, Need: w.some(want)}
	q.Least = w.some(q.Need)
	q.Pace, q.Idle, q.Hold = w.some(3*w.limit.Tokens), c.held, w.hold()
	q.Exact, q.Waited, q.Leaving, q.Deaf = w.chance(.3), w.chance(.3), want == 0 && w.chance(.3), w.chance(.1)
	q.Within = time.Duration(w.some(w.us/2)*w.some(1)) * time.Microsecond
	if w.chance(.5) {
		q.After = c.Ring.Last()
	}
	c.State(&q, backend.Window{Gen: c.gen})
	c.seq, c.sent, c.inFlight = q.Seq, w.clockOf(c), true
	l := letter{at: w.now + w.late(), to: c, life: c.life, q: q}
	if !w.chance(w.lose) {
		w.on = append(w.on, l)
	} else {
		w.happened["lost statement"]++
	}
	if w.chance(w.repeat) {
		w.happened["repeated"]++
		l.at = w.now + w.some([]int64{w.us / 50, w.us / 5, 3 * w.us / 2}[w.IntN(3)])
		w.on = append(w.on, l)
	}
}

// late is how long a message takes.
func (w *roll) late() int64 {
	if w.lose > 0 && w.chance(.1) {
		w.happened["late"]++
		return w.some([]int64{w.us / 100, w.us / 10, w.us}[w.IntN(3)])
	}
	return w.some(w.us / 1000)
}

// arrive delivers l.
func (w *roll) arrive(l letter) {
	if l.reply {
		w.take(l)
		return
	}
	switch w.control {
	case "order":
		w.order++
		l.q.Life, l.q.Seq = 1, w.order
	case "undo":
		l.q.Known = backend.MaxTokens
	case "21 buckets":
		w.c.ForgetOldest(w.store())
	}
	r := w.sync(l.q)
	if w.chance(w.lose) {
		w.happened["lost reply"]++
		return
	}
	l.at, l.r, l.reply = w.now+w.late(), r, true
	w.on = append(w.on, l)
}

func (w *roll) sync(q backend.Statement) backend.Reply {
	if w.control == "clock" {
		w.c.ForgetClock()
	}
	if !w.c.Kept(w.store()) { // the server has deleted it
		if w.c.Check(w.limit, w.store()).Held > 0 {
			w.wrong = "deleted while it is held"
		}
		w.c, w.held = ledger.Counter{}, 0
	}
	r, _ := w.c.Sync(q, w.store())
	if q.Hold > 0 && !r.Void {
		w.held = max(w.held, ((r.Now+999)/1000+(q.Hold+time.Millisecond-1).Milliseconds())*1000)
	}
	if want := max(w.held-r.Now, 0); !r.Void && (r.Held.Microseconds() != want || want > 0 && r.Grant > 0) {
		w.wrong = fmt.Sprintf("%d granted while it is held for %d us, and the reply says %v", r.Grant, want, r.Held)
	}
	if r.Held > 0 {
		w.happened["held"]++
	}
	if r.Remaining < 0 || r.Grant > 0 && r.Used > w.limit.Tokens {
		w.wrong = fmt.Sprintf("%+v", r)
	}
	return r
}

// hold is mostly none.
func (w *roll) hold() time.Duration {
	if !w.holds || w.control != "" || !w.chance(.02) {
		return 0
	}
	return time.Duration(1 + w.some(w.us*500<<w.some(3)))
}

// take gives a reply to its client.
func (w *roll) take(l letter) {
	c := l.to
	if c.life != l.life || l.r.Void || w.control != "last reply" && (l.q.Seq != c.seq || !c.inFlight) {
		return
	}
	w.let(c)
	sent, gen := c.sent, l.r.Window.Gen
	if w.control == "sending" {
		sent = w.clockOf(c)
	}
	_, c.held = c.Apply(&l.q, &l.r, c.held, sent*1000, w.clockOf(c)*1000)
	if gen != c.gen {
		c.gen, c.results = gen, nil
	}
	c.inFlight = false
	w.let(c)
}

// step is one event.
func (w *roll) step() {
	w.now += w.some(w.us / 60)
	for i := 0; i < len(w.on); i++ {
		if l := w.on[i]; l.at <= w.now && (!l.reply || l.to.asleep <= w.now) {
			w.on = append(w.on[:i], w.on[i+1:]...)
			w.arrive(l)
			i = -1
		}
	}
	c := w.clients[w.IntN(len(w.clients))]
	if c.asleep > w.now {
		return
	}
	switch n := w.IntN(20); {
	case n < 6:
		if !c.inFlight || w.resend {
			w.send(c, w.limit.Tokens-w.some(w.limit.Tokens-1)*w.some(1))
		}
	case n < 14:
		if w.clockOf(c) >= c.deadline || c.lease == 0 {
			w.let(c)
		}
		if n := c.held - w.some(c.held)*w.some(1); c.lease > 0 && w.clockOf(c) < c.deadline && n > 0 {
			c.held -= n
			w.spend(n, c.gen, c.lease)
			c.results = append(c.results, result{int64(len(w.spends) - 1), c.lease, n, c.gen, c.life})
		}
	case n == 14:
		n := w.some(c.held)
		c.Return(n, c.held)
		c.held -= n
		w.let(c)
		w.send(c, 0)
	case n == 15:
		w.send(c, 0)
	case n < 18:
		if len(c.results) > 0 && w.chance(w.refunds) {
			w.refund(c, w.IntN(len(c.results)))
		}
	case n == 18:
		if now := w.clockOf(c) * 1000; w.debt && c.Ring.Now(now) > 0 {
			w.happened["debt"]++
			w.whole = false
			c.Declare(1, now)
		}
	case n == 19:
		n := 1 + w.some(min(w.limit.Tokens, 3)-1)
		q := backend.Statement{Need: n, Limit: w.limit, Hold: w.hold(), Rolling: backend.Rolling{Within: time.Duration(w.some(w.us)) * time.Microsecond}}
		if r := w.sync(q); r.Grant > 0 {
			w.happened["direct"]++
			w.direct = append(w.direct, r.Grants[0])
			w.now += w.some(w.us / 100)
			if w.c.Present(w.store()) <= r.Grants[0].Bucket {
				w.spend(n, r.Window.Gen, r.Grants[0].Bucket)
			}
		}
	}
}

func (w *roll) spend(n, gen, bucket int64) {
	w.tokens += n
	w.spends = append(w.spends, spend{w.now, n, gen})
	if w.control == "" && w.losses == 0 && w.c.Present(w.store()) > bucket && gen == w.c.Contents(w.store()).Window.Gen {
		w.wrong = fmt.Sprintf("a token of %d is spent in %d", bucket, w.c.Present(w.store()))
	}
}

// refund gives back a part of a result.
func (w *roll) refund(c *roller, i int) {
	r := &c.results[i]
	if r.gen != c.gen || r.life != c.life || r.n == 0 {
		return
	}
	w.let(c)
	n, number := 1+w.some(r.n-1), r.bucket
	if w.control == "its own bucket" {
		number = c.lease
	}
	got := c.Refund(n, number, c.held, true, w.clockOf(c)*1000)
	c.held += got.Stock
	r.n -= got.Stock + got.Back
	w.spends[r.spend].n -= got.Stock + got.Back
	w.happened["refunded to the stock"] += int(got.Stock)
	w.happened["refunded to the store"] += int(got.Back)
	w.let(c)
}

// most is the most tokens of one generation that were spent in an interval.
func (w *roll) most() (most int64) {
	for gens := map[int64]bool{}; ; {
		gen, more := int64(0), false
		for _, s := range w.spends {
			if !gens[s.gen] {
				gen, more = s.gen, true
				break
			}
		}
		if !more {
			return most
		}
		gens[gen] = true
		from, n := 0, int64(0)
		for _, s := range w.spends {
			if s.gen != gen {
				continue
			}
			for n += s.n; w.spends[from].at <= s.at-w.us; from++ {
				if w.spends[from].gen == gen {
					n -= w.spends[from].n
				}
			}
			most = max(most, n)
		}
	}
}

// rest lets all clients state their accounts. Then what counts is what they hold and have spent.
func (w *roll) rest() {
	w.on, w.lose, w.repeat = nil, 0, 0
	for range 2 {
		for _, c := range w.clients {
			if w.send(c, 0); len(w.on) > 0 {
				w.arrive(w.on[0])
				w.arrive(w.on[1])
				w.on = nil
			}
		}
	}
	in := w.c.Contents(w.store())
	low, has := w.c.Present(w.store())-backend.Buckets, int64(0)
	for _, c := range w.clients {
		has += c.held + c.InUse(c.held)
	}
	for _, d := range w.direct {
		if d.Bucket >= low {
			has += d.Tokens
		}
	}
	if w.whole && in.Used != has {
		w.wrong = fmt.Sprintf("%d charged, %d held or spent", in.Used, has)
	}
}

func drawRoll(seed uint64) *roll {
	w := &roll{Rand: rand.New(rand.NewPCG(seed, 3)), now: 1e15, start: 1e15, whole: true, happened: map[string]int{}}
	w.us = []int64{100_000, 1_000_000, 10_000_000, 60_000_000}[w.IntN(4)]
	w.limit = backend.Limit{Tokens: []int64{1, 5, 12, 50, 600}[w.IntN(5)], Window: time.Duration(w.us) * time.Microsecond}.Rolling()
	w.lose, w.repeat = []float64{0, .05, .3}[w.IntN(3)], []float64{0, .05, .4}[w.IntN(3)]
	w.refunds = []float64{0, .5, 1}[w.IntN(3)]
	w.debt, w.resend, w.holds = w.chance(.2), w.chance(.5), seed%3 == 0
	for range 1 + w.IntN(5) {
		w.clients = append(w.clients, w.newcomer())
	}
	return w
}

func (w *roll) run(steps int) int64 {
	for range steps {
		i := w.IntN(len(w.clients))
		switch c := w.clients[i]; {
		case w.chance(.003):
			w.clients[i], w.whole = w.newcomer(), false
			w.happened["killed"]++
		case w.chance(.005): // it forgets the key, and comes back
			if w.whole = w.whole && c.seq == 0; c.asleep <= w.now {
				c.Return(c.held, c.held)
				c.held = 0
				w.send(c, 0)
				w.begin(c)
				w.happened["forgotten"]++
			}
		case w.chance(.003):
			c.asleep = w.now + w.some(w.us)
			w.happened["asleep"]++
		case w.chance(.001):
			w.c.Reset(w.limit, w.store())
			w.direct, w.held = nil, 0
			w.happened["Reset"]++
		case w.chance(.002):
			w.clock -= w.some(3 * w.us)
			w.happened["step back"]++
		case w.losing > 0 && w.chance(.02):
			w.snapshot = w.c.Clone()
		case w.chance(w.losing):
			w.losses, w.whole = w.losses+1, false
			if w.c = (ledger.Counter{}); w.chance(.7) {
				w.c = w.snapshot.Clone()
			}
			if w.held = 0; w.c.Check(w.limit, w.store()).Held > 0 {
				w.held = w.c.Time(w.store()) + w.c.Check(w.limit, w.store()).Held.Microseconds()
			}
			w.happened["loss"]++
		}
		if w.step(); w.wrong != "" {
			return 0
		}
	}
	most := w.most()
	if most > w.limit.Tokens*(1+w.losses) {
		w.wrong = fmt.Sprintf("%d of %d spent in an interval", most, w.limit.Tokens)
		return most
	}
	w.rest()
	return most
}

// TestRolling: no interval of the window's length is over, nothing is spent after its bucket, and at rest what counts is what is held and
// spent.
func TestRolling(t *testing.T) {
	full, whole, tokens, happened := 0, 0, int64(0), map[string]int{}
	for seed := range uint64(*ledger.Runs) {
		w := drawRoll(seed)
		most := w.run(400)
		require.Empty(t, w.wrong, "seed %d", seed)
		if tokens += w.tokens; most == w.limit.Tokens {
			full++
		}
		if w.whole {
			whole++
		}
		for k, n := range w.happened {
			happened[k] += n
		}
	}
	require.Positive(t, full)
	require.Positive(t, whole)
	for _, fault := range []string{"lost statement", "lost reply", "repeated", "late", "debt", "direct", "refunded to the stock", "refunded to the store", "killed", "forgotten", "asleep", "Reset", "step back", "held"} {
		require.Positive(t, happened[fault], fault)
	}
	t.Logf("%d tokens, %d runs reached the limit, %d had nothing unknown; %v", tokens, full, whole, happened)
}

// TestRollingLosses: each loss of data, or older data, admits at most one more limit.
func TestRollingLosses(t *testing.T) {
	over, losses := 0, 0
	for seed := range uint64(*ledger.Runs) {
		w := drawRoll(seed)
		w.losing = .006
		if most := w.run(400); most > w.limit.Tokens {
			over++
		}
		require.Empty(t, w.wrong, "seed %d, %d losses", seed, w.losses)
		losses += w.happened["loss"]
	}
	require.Positive(t, losses)
	require.Positive(t, over)
	t.Logf("%d losses, %d runs were over one limit", losses, over)
}

// TestRollingControls breaks one rule at a time, and the judge finds it.
func TestRollingControls(t *testing.T) {
	for _, control := range []string{"order", "last reply", "undo", "life", "its own bucket", "sending", "21 buckets", "clock"} {
		over, wrong, seed, first := 0, "", uint64(0), uint64(0)
		for ; over == 0 && seed < 3000; seed++ {
			w := drawRoll(seed)
			w.control = control
			if most := w.run(400); most > w.limit.Tokens {
				over++
				wrong, first = w.wrong, seed
			}
		}
		require.Positive(t, over, control)
		t.Logf("without %s: run %d, %s", control, first, wrong)
	}
}

var minute = backend.Limit{Tokens: 60, Window: time.Minute}.Rolling()

// at is a time in a bucket of minute, s after its beginning.
func at(bucket, s int64) int64 { return bucket*3_000_000 + s*1_000_000 }

func ask(client string, seq, n int64) backend.Statement {
	return backend.Statement{Client: client, Life: 1, Seq: seq, Want: n, Need: n, Limit: minute, Rolling: backend.Rolling{Known: seq - 1}}
}

// TestSpread: a grant is spread over the buckets in which the client will use it, while much is free.
func TestSpread(t *testing.T) {
	var c ledger.Counter
	q := ask("p.1", 1, 60)
	q.Need, q.Pace = 2, 20 // one in three seconds
	r, _ := c.Sync(q, at(1000, 2))
	require.Equal(t, []backend.Change{{Bucket: 1000, Tokens: 3}, {Bucket: 1001, Tokens: 1}, {Bucket: 1002, Tokens: 1}, {Bucket: 1003, Tokens: 1}}, r.Grants[:4])
	require.Equal(t, r.Grant, r.Used)
	require.Equal(t, int64(1010), r.Grants[len(r.Grants)-1].Bucket)
	require.Equal(t, 60-r.Grant, r.Remaining)
	require.Equal(t, at(1031, 0), r.Window.End*1000, "when nothing counts any more")

	q = ask("p.1", 2, 20)
	q.Need, q.Pace, q.After = 0, 20, 1001
	r, _ = c.Sync(q, at(1001, 2))
	require.Equal(t, int64(1002), r.Grants[0].Bucket)

	q = ask("p.1", 3, 40)
	q.Exact = true
	q.Within = 4 * time.Second
	r, _ = c.Sync(q, at(1001, 2))
	require.Equal(t, int64(1003), r.Grants[0].Bucket, "the reply comes in time")
}

// TestFrees: who gets too little hears when enough tokens leave the ring for it, and for those that were told before it.
func TestFrees(t *testing.T) {
	var c ledger.Counter
	for i := range int64(3) {
		c.Sync(ask("p.1", 1+i, 20), at(1000+i, 0))
	}
	for i, want := range []int64{1021, 1021, 1022, 1022, 1023} {
		q := ask(fmt.Sprintf("p.%d", 2+i), 1, 10)
		q.Least = q.Need
		r, _ := c.Sync(q, at(1003, 0))
		require.Equal(t, want, (r.Frees.Microseconds()+at(1003, 0))/3_000_000, i)
		require.Zero(t, r.Grant)
	}
	r, _ := c.Sync(ask("p.2", 2, 10), at(1021, 0))
	require.Equal(t, int64(10), r.Grant)
	require.Zero(t, r.Frees)
	r, _ = c.Sync(backend.Statement{Limit: minute, Need: 11}, at(1021, 0))
	require.Equal(t, []any{int64(0), 63 * time.Second}, []any{r.Grant, r.Frees}, "four others wait for 40 tokens, and p.2 has 10")
}

// TestFreesIsTrue: who waits for as long as a refusal says is admitted, and a microsecond earlier it is not.
func TestFreesIsTrue(t *testing.T) {
	refused := 0
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		limit := backend.Limit{Tokens: 1 + rnd.Int64N(10), Window: []time.Duration{20 * time.Millisecond, time.Second, time.Minute}[rnd.IntN(3)]}.Rolling()
		var c ledger.Counter
		now := int64(1e15) + rnd.Int64N(1e9)
		for seq := range int64(30) {
			need := 1 + rnd.Int64N(limit.Tokens)
			q := backend.Statement{Client: "p.1", Life: 1, Seq: 2*seq + 1, Want: need, Need: need, Least: need, Limit: limit, Rolling: backend.Rolling{Known: 2 * seq}}
			q.Exact = rnd.IntN(2) == 0
			r, _ := c.Sync(q, now)
			if r.Grant == 0 {
				refused++
				q.Seq, q.Known = 2*seq+2, 2*seq+1
				early := c.Clone()
				r2, _ := early.Sync(q, now+r.Frees.Microseconds()-1)
				require.Zero(t, r2.Grant, "seed %d", seed)
				now += r.Frees.Microseconds()
				r, _ = c.Sync(q, now)
			}
			require.Equal(t, need, r.Grant, "seed %d", seed)
			now += rnd.Int64N(limit.Window.Microseconds() / 5)
		}
	}
	require.Positive(t, refused)
}

// TestRecallRolls: what is idle elsewhere is called, and nobody is told that the limit is used up.
func TestRecallRolls(t *testing.T) {
	var c ledger.Counter
	q := ask("p.1", 1, 60)
	q.Need, q.Exact = 10, true
	c.Sync(q, at(1000, 0))
	r, messages := c.Sync(ask("q.1", 1, 20), at(1000, 0))
	require.Equal(t, []int64{0, 1}, []int64{r.Idle, r.Called})
	require.Equal(t, []ledger.Message{{Process: "p", Message: backend.Message{Kind: backend.Recall, Limit: 60}}}, messages)
	back := ask("p.1", 2, 0)
	back.Changes = []backend.Change{{Bucket: 1008, Tokens: -50}, {Bucket: 1010, Tokens: -50}}
	r, _ = c.Sync(back, at(1000, 0))
	require.Equal(t, int64(50), r.Remaining)
	_, messages = c.Sync(ask("r.1", 1, 60), at(1000, 0))
	require.Empty(t, messages)
}

// TestTidyRing: accounts that have nothing in the ring go, if there are many.
func TestTidyRing(t *testing.T) {
	var c ledger.Counter
	for i := range 100 {
		q := ask(fmt.Sprintf("p%d.1", i), 1, 1)
		q.Exact = true
		c.Sync(q, at(1000, 0))
	}
	for i := range int64(60) {
		c.Sync(ask("q.1", 1+i, 1), at(1001+i, 0))
	}
	in := c.Contents(at(1060, 0))
	require.Len(t, in.Clients, 63)
	require.Equal(t, int64(21), in.Used)
	r, _ := c.Sync(ask("q.1", 61, 1), at(1061, 0))
	require.Equal(t, int64(63), r.Clients)
}

// TestAResetRolls: a Reset empties the ring, and voids what is said of before.
func TestAResetRolls(t *testing.T) {
	var c ledger.Counter
	c.Sync(ask("p.1", 1, 20), at(1000, 0))
	void, next := c.Reset(minute, at(1001, 0))
	require.Equal(t, backend.Window{End: at(1021, 0) / 1000}, void)
	q := ask("p.1", 2, 0)
	q.Known, q.Changes = 0, []backend.Change{{Bucket: 1000, Tokens: 5}}
	r, _ := c.Sync(q, at(1001, 0))
	require.Equal(t, []int64{0, next.Gen, 1}, []int64{r.Used, r.Window.Gen, r.Clients})
	q = ask("p.1", 3, 7)
	q.Window = next
	r, _ = c.Sync(q, at(1001, 0))
	require.Equal(t, int64(7), r.Used)
	require.Equal(t, int64(53), c.Check(minute, at(1001, 0)).Remaining)
	require.Equal(t, int64(60), c.Check(minute, at(1022, 0)).Remaining)
}

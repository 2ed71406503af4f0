package backendtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/ledger"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/naive/hand"
)

// judged makes the calls of clients that keep the rules, of a store and of the module's own rules, over a network that
// loses, repeats and delays them. The replies must be the same, and package naive, which knows neither, judges what comes
// of them: nothing is spent above the limit, and what nobody has can be granted.
type judged struct {
	*random
	log     naive.Log
	counter ledger.Counter
	calls   backend.Limit // the limit of all calls
	back    time.Duration // by which the store's clock is behind
	lossy   bool          // the store loses data
	steps   bool          // its clock steps back
	alone   bool          // the model is the only judge
	clients [3]party
	late    []letter
}

// party is a client and how it goes on.
type party struct {
	hand.Hand
	name string
	lost bool // it does not know what its last statement did
}

// letter is a statement that may arrive again.
type letter struct {
	who int
	q   *backend.Statement
}

// testJudged plays rounds of each kind of limit.
func testJudged(t testing.TB, s backend.Store) {
	t.Helper()
	playJudged(t, s, false)
}

func playJudged(t testing.TB, s backend.Store, alone bool) {
	t.Helper()
	p := newRandom(t, s)
	for i := range rounds {
		j := &judged{random: p, lossy: i%8 > 3, steps: i%8 == 0 || i%8 > 3 && i%2 == 1, alone: alone}
		p.key, p.now = newKey(), time.Duration(p.rnd.IntN(1000))*time.Millisecond
		j.calls = backend.Limit{Tokens: pick[int64](p, 1, 3, 10, 1000), Window: pick(p, time.Minute, 61500*time.Millisecond)}
		j.log.Limit = j.calls.Tokens
		if i%2 == 0 {
			j.calls = j.calls.Rolling()
			j.log.Rolls = j.calls.Window.Microseconds()
			j.log.Linger = j.log.Rolls * 22 / backend.Buckets // a bucket is at most 10 later than its grant; see hand
		}
		if i%4 == 1 {
			j.calls.Calendar.Period, j.calls.Window = backend.Day, 24*time.Hour
		}
		for who := range j.clients {
			j.clients[who].name = fmt.Sprintf("p%d.%d", who, i)
		}
		for range steps {
			j.step()
		}
		j.rest()
	}
}

// time is that of the clients, and of the model, us.
func (p *judged) time() int64 { return p.base.Add(p.now).UnixMicro() }

// server is the context of a call, and the time by the store's clock, us.
func (p *judged) server() (context.Context, int64) {
	return p.at(p.now - p.back), p.time() - p.back.Microseconds()
}

// ok fails the test if the model has found something.
func (p *judged) ok(what string, err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("%s of %+v at %v: %v", what, p.calls, p.now, err)
	}
}

// same fails the test unless the store says what the module's own rules say.
func same[T any](p *judged, request any, got, want T) {
	p.t.Helper()
	if !p.alone {
		equal(p.t, p.told(request), got, want)
	}
}

func (p *judged) step() {
	p.t.Helper()
	p.pass()
	who := p.rnd.IntN(len(p.clients))
	c, limit, now := &p.clients[who], p.calls, p.time()
	switch n := p.rnd.IntN(100); {
	case n < 35:
		p.state(who, p.tokens(limit.Tokens))
	case n < 60:
		for range p.rnd.Int64N(min(c.Held, 8) + 1) {
			if now < c.Deadline {
				p.ok("a request", c.Spend(limit, &p.log, who, now, true))
			}
		}
	case n < 66:
		if c.Held > 0 && !c.Over(now) {
			p.ok("a give-back", c.GiveBack(limit, &p.log, who, 1+p.rnd.Int64N(c.Held)))
			p.state(who, 0)
		}
	case n < 72:
		if c.Refundable(limit, now) {
			p.ok("a refund", c.Refund(limit, &p.log, who, now))
		}
	case n < 76:
		if c.MayDeclare(now) {
			c.Declare(limit, &p.log, who, now)
			p.state(who, 0)
		}
	case n < 86:
		p.take(who)
	case n < 92:
		if len(p.late) > 0 {
			p.again()
		}
	case n < 94:
		p.reset()
	case n < 97 && p.lossy:
		p.lose()
	case n == 97:
		p.sync(p.nobody(pick(p.random, 1, p.calls.Window/40, p.calls.Window/3, 2*p.calls.Window)))
	}
}

// pass lets time pass. Clients whose window is over notice.
func (p *judged) pass() {
	window := p.calls.Window
	switch n := p.rnd.IntN(40); {
	case n < 10:
		p.now += pick(p.random, time.Microsecond, time.Millisecond, window/40, window/20, window/6)
	case n < 12:
		p.now += pick(p.random, window/2, window, window+2*time.Second)
	case n < 13 && p.steps: // the clock of a rolling limit goes on all the same
		if p.back += pick(p.random, time.Second, window/3); p.lossy {
			p.log.Losses = append(p.log.Losses, p.time())
		}
	}
	for who := range p.clients {
		p.ok("the end of a window", p.clients[who].Expire(p.calls, &p.log, who, p.time()))
	}
}

// state makes a client's next statement, which the network may lose, or its reply. A client that names another period than the
// store's asks once more by the store's clock.
func (p *judged) state(who int, want int64) {
	p.t.Helper()
	c := &p.clients[who]
	q := c.Ask(p.calls, p.key, c.name, want, p.time())
	q.Exact, q.Need, q.Pace, q.Idle, q.Deaf = p.rnd.IntN(2) == 0, p.tokens(want), p.tokens(p.calls.Tokens), c.Held, p.rnd.IntN(2) == 0
	if p.calls.Rolls {
		q.After, q.Within = pick(p.random, 0, c.Account.Ring.Last()), pick(p.random, 0, p.calls.Window/20, p.calls.Window)
	} else if p.rnd.IntN(9) == 0 { // its clock is ahead, or behind
		q.Begin, q.End = hand.Period(p.calls, p.time()+pick[int64](p.random, 1, -1)*p.calls.Window.Microseconds())
	}
	if p.rnd.IntN(80) == 0 {
		q.Hold = pick(p.random, 1, p.calls.Window/6, p.calls.Window)
	}
	if p.rnd.IntN(4) == 0 {
		p.late = append(p.late, letter{who, q})
	}
	fate := p.rnd.IntN(8)
	if c.lost = fate == 0; c.lost {
		return
	}
	sent := p.time()
	r := p.sync(q)
	if r.Astray {
		hints, need, hold := q.Hints, q.Need, q.Hold
		q = c.Ask(p.calls, p.key, c.name, want, p.time())
		q.Hints, q.Need, q.Hold = hints, need, hold
		q.Begin, q.End = hand.Period(p.calls, r.Now)
		if r = p.sync(q); r.Astray {
			p.t.Fatalf("%+v is astray at %d", q, r.Now)
		}
	}
	if c.lost = fate == 1; !c.lost {
		p.apply(who, q, r, sent)
	}
}

// apply gives a client the reply to its statement q.
func (p *judged) apply(who int, q *backend.Statement, r *backend.Reply, sent int64) {
	p.t.Helper()
	call := hand.Call{Q: q, R: r, Sent: sent, Resets: int64(len(p.log.Resets))}
	p.ok("a reply", p.clients[who].Apply(p.calls, &p.log, who, call, p.time()))
}

// sync lets a statement arrive.
func (p *judged) sync(q *backend.Statement) *backend.Reply {
	p.t.Helper()
	ctx, now := p.server()
	got := must(p.store.Sync(ctx, *q))(p.t)
	want, _ := p.counter.Sync(*q, now)
	same(p, *q, got, want)
	if !got.Void && !got.Astray {
		if q.Hold > 0 {
			p.log.Hold((got.Now+999)/1000*1000 + (q.Hold + time.Millisecond - 1).Truncate(time.Millisecond).Microseconds())
		}
		if p.back > 0 && !p.calls.Rolls { // a hold that was over may have come back, or not
			p.log.Held = got.Now + got.Held.Microseconds()
		}
		p.ok("an answer", p.log.Answer(got.Now, got.Grant, got.Held.Microseconds()))
	}
	return &got
}

// again lets an old statement arrive, to whose reply nobody listens.
func (p *judged) again() {
	p.t.Helper()
	i := p.rnd.IntN(len(p.late))
	old := p.late[i]
	p.late = slices.Delete(p.late, i, i+1)
	p.sync(old.q)
	p.clients[old.who].lost = true
}

// take charges some tokens without an account, which are spent at once. Sometimes more is used than was charged.
func (p *judged) take(who int) {
	p.t.Helper()
	_, now := p.server()
	n := max(p.tokens(p.calls.Tokens), 1)
	q := backend.Statement{Key: p.key, Limit: p.calls, Need: n}
	if q.Begin, q.End = hand.Period(p.calls, now); p.calls.Rolls {
		q.Within = p.calls.Window / 20
	}
	got := p.sync(&q)
	if got.Grant == 0 {
		return
	}
	if got.Grant != n {
		p.t.Fatalf("%d granted of %d that are needed", got.Grant, n)
	}
	w := hand.Name(p.calls, got.Window, int64(len(p.log.Resets)))
	if p.log.Grant(who, w, n); !p.calls.Rolls && p.time() >= w.End {
		p.ok("a late charge", p.log.Drop(w.End, who, w, n))
		return
	}
	p.ok("a charge without an account", p.log.Spend(p.time(), who, w, n))
	if p.rnd.IntN(3) == 0 {
		more := 1 + p.rnd.Int64N(3)
		q.Need, q.Change, q.Window = 0, more, got.Window
		if p.rnd.IntN(4) == 0 { // of another window: nothing is charged
			q.Window.Gen = max(q.Window.Gen-1, 0)
		}
		mine := q.Window == got.Window
		if p.calls.Rolls {
			q.Window.End, q.Change, q.Changes = 0, 0, []backend.Change{{Bucket: pick(p.random, 0, got.Grants[0].Bucket), Tokens: more}}
		}
		if p.sync(&q); mine {
			p.log.Declare(p.time(), who, w, more)
		}
	}
}

// nobody is a statement without an account that does nothing, but hold the limit for d.
func (p *judged) nobody(d time.Duration) *backend.Statement {
	_, now := p.server()
	q := &backend.Statement{Key: p.key, Limit: p.calls, Hold: d}
	q.Begin, q.End = hand.Period(p.calls, now)
	return q
}

func (p *judged) reset() {
	p.t.Helper()
	ctx, now := p.server()
	got := must(p.store.Reset(ctx, p.key, p.calls))(p.t)
	want, _ := p.counter.Reset(p.calls, now)
	same(p, "reset", got, want)
	p.log.Resets, p.log.Held = append(p.log.Resets, p.time()), 0
	p.now += 2 * time.Millisecond
}

// lose lets the store lose what its test can delete.
func (p *judged) lose() {
	p.t.Helper()
	s, ok := p.store.(Loser)
	if !ok {
		return
	}
	parts := pick(p.random, []string{"ledger"}, []string{"count"}, []string{"end"}, []string{"ledger", "count", "end"})
	if p.random.lose(s, &p.counter, p.calls, parts); p.calls.Rolls || parts[0] == "ledger" {
		p.log.Held = 0
	}
	p.log.Losses = append(p.log.Losses, p.time())
	p.now += 2 * time.Millisecond
}

// rest lets all clients state their accounts, and compares what is free with what the model says, now and when all of it
// must be free again. A rolling limit whose server's clock stepped back counts for longer.
func (p *judged) rest() {
	p.t.Helper()
	for who := range p.clients {
		c := &p.clients[who]
		if c.Window.End == 0 && !c.lost {
			continue
		}
		q := c.Ask(p.calls, p.key, c.name, 0, p.time())
		_, now := p.server()
		q.Begin, q.End = hand.Period(p.calls, now)
		p.apply(who, q, p.sync(q), p.time())
	}
	free, w := p.free()
	if least, most := p.log.Free(p.time(), w); len(p.log.Losses) == 0 && (free > most || free < least && !p.steps) {
		p.t.Fatalf("at rest %d tokens of %+v are free, for %d to %d", free, p.calls, least, most)
	}
	p.now += 3*p.calls.Window + p.back
	if free, _ = p.free(); free != p.calls.Tokens {
		p.t.Fatalf("in the end %d tokens of %+v are free", free, p.calls)
	}
}

// free is how many tokens the store could grant, and of which window.
func (p *judged) free() (int64, naive.Window) {
	p.t.Helper()
	ctx, now := p.server()
	got := must(p.store.Check(ctx, p.key, p.calls))(p.t)
	same(p, "check", got, p.counter.Check(p.calls, now))
	if got.Held > 0 { // what could be granted after that
		got.Remaining = max(p.calls.Tokens-p.sync(p.nobody(0)).Used, 0)
	}
	return got.Remaining, hand.Name(p.calls, got.Window, int64(len(p.log.Resets)))
}

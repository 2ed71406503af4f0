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
	"github.com/go-reservoir/reservoir/internal/rolling"
)

// judged makes the calls of clients that keep the rules, of a store and of the module's own rules, over a network that
// loses, repeats and delays them. The replies must be the same, and package naive, which knows neither, judges what comes
// of them: nothing is spent above the limit, and what nobody has can be granted.
type judged struct {
	*random
	log     naive.Log
	ring    rolling.Ring
	fixed   ledger.Counter
	calls   backend.Limit // the limit of all calls
	back    time.Duration // by which the store's clock is behind
	lossy   bool          // the store loses data
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
	q   hand.Statement
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
		j := &judged{random: p, lossy: i%8 > 3, alone: alone}
		p.key, p.now = newKey(), time.Duration(p.rnd.IntN(1000))*time.Millisecond
		j.calls = backend.Limit{Tokens: pick[int64](p, 1, 3, 10, 1000), Window: pick(p, time.Minute, 61500*time.Millisecond)}
		j.log.Limit = j.calls.Tokens
		if i%2 == 0 {
			j.calls = j.calls.Rolling()
			j.log.Rolls = j.calls.Window.Microseconds()
			j.log.Linger = j.log.Rolls * (backend.Refundable + 1) / backend.Slices
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
			p.ok("a refund", c.Refund(limit, &p.log, who))
		}
	case n < 76:
		if c.MayDeclare(limit, now) {
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
	case n < 13 && p.lossy:
		p.back += pick(p.random, time.Second, window/3)
		p.log.Losses = append(p.log.Losses, p.time())
	}
	for who := range p.clients {
		p.ok("the end of a window", p.clients[who].Expire(p.calls, &p.log, who, p.time()))
	}
	if s, ok := p.store.(RingLoser); ok && p.calls.Rolls {
		ctx, _ := p.server()
		must(0, s.KeepRing(ctx, p.key, p.calls.Counter()))(p.t)
	}
}

// state makes a client's next statement, which the network may lose, or its reply. A client that names another period than the
// store's asks once more by the store's clock.
func (p *judged) state(who int, want int64) {
	p.t.Helper()
	c := &p.clients[who]
	q := c.Ask(p.calls, p.key, c.name, want, p.time())
	exact, need, fate := p.rnd.IntN(2) == 0, p.tokens(want), p.rnd.IntN(8)
	if p.calls.Rolls {
		q.Rolling.Exact, q.Rolling.Need = exact, need
	} else {
		q.Fixed.Exact, q.Fixed.Need = exact, need
		if p.rnd.IntN(9) == 0 { // its clock is ahead, or behind
			q.Fixed.Begin, q.Fixed.End = hand.Period(p.calls, p.time()+pick[int64](p.random, 1, -1)*p.calls.Window.Microseconds())
		}
	}
	if p.rnd.IntN(4) == 0 && !(p.calls.Rolls && q.Rolling.Account == 0) { // test/search has what comes of such a copy
		p.late = append(p.late, letter{who, q})
	}
	if c.Hurries(p.calls) {
		fate = 7
	}
	if c.lost = fate == 0; c.lost {
		return
	}
	sent := p.time()
	r := p.sync(q)
	if !p.calls.Rolls && r.Fixed.Astray {
		begin, end := hand.Period(p.calls, r.Fixed.Now)
		q = c.Ask(p.calls, p.key, c.name, want, p.time())
		q.Fixed.Exact, q.Fixed.Need, q.Fixed.Begin, q.Fixed.End = exact, need, begin, end
		if r = p.sync(q); r.Fixed.Astray {
			p.t.Fatalf("%+v is astray at %d", q.Fixed, r.Fixed.Now)
		}
	}
	if c.lost = fate == 1; !c.lost {
		p.apply(who, q, r, sent)
	}
}

// apply gives a client the reply to its statement q.
func (p *judged) apply(who int, q hand.Statement, r hand.Reply, sent int64) {
	p.t.Helper()
	call := hand.Call{Q: q, R: r, Sent: sent, Resets: int64(len(p.log.Resets))}
	p.ok("a reply", p.clients[who].Apply(p.calls, &p.log, who, call, p.time()))
}

// sync lets a statement arrive.
func (p *judged) sync(q hand.Statement) hand.Reply {
	p.t.Helper()
	if p.calls.Rolls {
		ctx, now := p.server()
		got := must(p.store.SyncRolling(ctx, *q.Rolling))(p.t)
		want, _ := p.ring.Sync(*q.Rolling, now)
		same(p, *q.Rolling, got, want)
		return hand.Reply{Rolling: &got}
	}
	r := p.syncFixed(*q.Fixed)
	return hand.Reply{Fixed: &r}
}

func (p *judged) syncFixed(q backend.Statement) backend.Reply {
	p.t.Helper()
	ctx, now := p.server()
	got := must(p.store.Sync(ctx, q))(p.t)
	want, _ := p.fixed.Sync(q, now)
	same(p, q, got, want)
	return got
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

// take charges some tokens without an account, which are spent at once. Of a rolling limit they are sometimes given back; of a
// fixed one more is used than was charged.
func (p *judged) take(who int) {
	p.t.Helper()
	ctx, now := p.server()
	n := max(p.tokens(p.calls.Tokens), 1)
	if p.calls.Rolls {
		q := backend.TakeRequest{Key: p.key, Limit: p.calls, Tokens: n, Within: p.calls.Window / 20}
		got := must(p.store.TakeRolling(ctx, q))(p.t)
		same(p, q, got, p.ring.Take(q, now))
		if w := (naive.Window{Generation: int64(len(p.log.Resets))}); got.Allowed {
			at := p.time()
			p.log.Grant(who, w, n)
			p.ok("a call without an account", p.log.Spend(at, who, w, n))
			if p.rnd.IntN(3) == 0 {
				p.giveBack(who, got.Window, w, at, 1+p.rnd.Int64N(n))
			}
		}
		return
	}
	q := backend.Statement{Key: p.key, Limit: p.calls, Need: n}
	q.Begin, q.End = hand.Period(p.calls, now)
	got := p.syncFixed(q)
	if got.Grant == 0 {
		return
	}
	if got.Grant != n {
		p.t.Fatalf("%d granted of %d that are needed", got.Grant, n)
	}
	w := hand.Name(p.calls, got.Window, 0)
	if p.log.Grant(who, w, n); p.time() >= w.End {
		p.ok("a late charge", p.log.Drop(w.End, who, w, n))
		return
	}
	p.ok("a charge without an account", p.log.Spend(p.time(), who, w, n))
	if p.rnd.IntN(3) == 0 {
		q.Need, q.Change, q.Window = 0, 1+p.rnd.Int64N(3), got.Window
		if p.rnd.IntN(4) == 0 { // of another window: nothing is charged
			q.Window.Gen++
		}
		if p.syncFixed(q); q.Window == got.Window {
			p.log.Declare(p.time(), who, w, q.Change)
		}
	}
}

// giveBack settles a call without an account of a rolling limit.
func (p *judged) giveBack(who int, window backend.Window, w naive.Window, at, n int64) {
	p.t.Helper()
	ctx, now := p.server()
	q := backend.SettleRequest{Key: p.key, Window: window, Tokens: -n, Limit: p.calls}
	got := must(p.store.SettleRolling(ctx, q))(p.t)
	if same(p, q, got, p.ring.Settle(q, now)); got.Open {
		p.ok("a refund", p.log.Refund(at, who, w, n))
		p.ok("a refund", p.log.Drop(at, who, w, n))
	}
}

func (p *judged) reset() {
	p.t.Helper()
	ctx, now := p.server()
	got, want := must(p.store.Reset(ctx, p.key, p.calls))(p.t), backend.Window{}
	if p.calls.Rolls {
		p.ring.Reset(now)
	} else {
		want, _ = p.fixed.Reset(p.calls.Window.Milliseconds(), now)
	}
	same(p, "reset", got, want)
	p.log.Resets = append(p.log.Resets, p.time())
	p.now += 2 * time.Millisecond
}

// lose lets the store lose what its test can delete.
func (p *judged) lose() {
	p.t.Helper()
	ctx, _ := p.server()
	counter := p.calls.Counter()
	if p.calls.Rolls {
		s, ok := p.store.(RingLoser)
		if !ok {
			return
		}
		must(0, s.LoseRing(ctx, p.key, counter))(p.t)
		p.ring = rolling.Ring{}
	} else {
		s, ok := p.store.(Loser)
		if !ok {
			return
		}
		n := p.rnd.IntN(4)
		if n == 0 || n == 3 {
			must(0, s.LoseLedger(ctx, p.key, counter))(p.t)
			p.fixed.LoseLedger()
		}
		if n == 1 || n == 3 {
			must(0, s.LoseCount(ctx, p.key, counter))(p.t)
			p.fixed.LoseCount()
		}
		if n == 2 || n == 3 {
			must(0, s.LoseEnd(ctx, p.key, counter))(p.t)
			p.fixed.LoseEnd()
		}
	}
	p.log.Losses = append(p.log.Losses, p.time())
	p.now += 2 * time.Millisecond
}

// rest lets all clients state their accounts, and compares what is free with what the model says, now and when all of it
// must be free again. A rolling limit counts a little longer what a late statement has carried over, so of it only the latter is
// compared from below.
func (p *judged) rest() {
	p.t.Helper()
	for who := range p.clients {
		c := &p.clients[who]
		if c.Window.End == 0 && !c.lost {
			continue
		}
		q := c.Ask(p.calls, p.key, c.name, 0, p.time())
		if _, now := p.server(); !p.calls.Rolls {
			q.Fixed.Begin, q.Fixed.End = hand.Period(p.calls, now)
		}
		p.apply(who, q, p.sync(q), p.time())
	}
	free, w := p.free()
	if least, most := p.log.Free(p.time(), w); len(p.log.Losses) == 0 && (free > most || free < least && !p.calls.Rolls) {
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
	if p.calls.Rolls {
		same(p, "check", got, p.ring.Check(p.calls, now))
	} else {
		same(p, "check", got, p.fixed.Check(p.calls, now))
	}
	return got.Remaining, hand.Name(p.calls, got.Window, int64(len(p.log.Resets)))
}

package backendtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/naive"
	"github.com/go-reservoir/reservoir/internal/naive/hand"
	"github.com/go-reservoir/reservoir/internal/rolling"
)

// halver is a store whose test can delete the count of a key's window, or its end, alone.
type halver interface {
	LoseCount(ctx context.Context, key string) error
	LoseEnd(ctx context.Context, key string) error
}

// judged makes the calls of clients that keep the rules, of a store and of the module's own rules, over a network that
// loses, repeats and delays them. The replies must be the same, and package naive, which knows neither, judges what comes
// of them: nothing is spent above the limit, and what nobody has can be granted.
type judged struct {
	*random
	log     naive.Log
	ring    rolling.Ring
	fixed   counter.Counter
	calls   backend.Limit // the limit of all calls
	periods bool          // by a calendar
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
	q   backend.SyncRequest
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
		j := &judged{random: p, periods: i%4 == 1, lossy: i%8 > 3, alone: alone}
		p.key, p.now = newKey(), time.Duration(p.rnd.IntN(1000))*time.Millisecond
		j.calls = backend.Limit{Tokens: pick[int64](p, 1, 3, 10, 1000), Window: pick(p, time.Minute, 61500*time.Millisecond)}
		j.log.Limit = j.calls.Tokens
		if i%2 == 0 {
			j.calls = j.calls.Rolling()
			j.log.Rolls = j.calls.Window.Microseconds()
			j.log.Linger = j.log.Rolls * (backend.Refundable + 1) / backend.Slices
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

// openings writes the ends of the calendar's periods.
func (p *judged) openings() (end, next backend.Window) {
	if !p.periods || p.calls.Rolls {
		return 0, 0
	}
	length := p.calls.Window.Milliseconds()
	now := p.time() / 1000
	end = backend.Window((now/length + 1) * length)
	return end, end + backend.Window(length)
}

// same fails the test unless the store says what the module's own rules say.
func same[T comparable](p *judged, request any, got, want T) {
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
		p.alone = p.alone || !p.calls.Rolls // a window may get the name of an earlier one, whose ledger take has left in the keys
		p.log.Losses = append(p.log.Losses, p.time())
	}
	for who := range p.clients {
		p.ok("the end of a window", p.clients[who].Expire(p.calls, &p.log, who, p.time()))
	}
	if keeper, ok := p.store.(keeper); ok {
		ctx, _ := p.server()
		must(0, keeper.KeepRing(ctx, p.key))(p.t)
	}
}

// state makes a client's next statement, which the network may lose, or its reply.
func (p *judged) state(who int, want int64) {
	p.t.Helper()
	c := &p.clients[who]
	q := c.Ask(p.calls, p.key, c.name, want)
	q.End, q.Next = p.openings()
	q.Exact, q.Need = p.rnd.IntN(2) == 0, p.tokens(want)
	fate := p.rnd.IntN(8)
	if p.rnd.IntN(4) == 0 && !(p.calls.Rolls && q.Account == 0) { // test/search has what comes of such a copy
		p.late = append(p.late, letter{who, q})
	}
	if c.Hurries(p.calls) {
		fate = 7
	}
	if fate == 0 {
		c.lost = true
		return
	}
	sent := p.time()
	r := p.sync(q)
	if c.lost = fate == 1; !c.lost {
		p.ok("a reply", c.Apply(p.calls, &p.log, who, hand.Call{Q: q, R: r, Sent: sent, Resets: int64(len(p.log.Resets))}, p.time()))
	}
}

// sync lets a statement arrive.
func (p *judged) sync(q backend.SyncRequest) (got backend.SyncReply) {
	p.t.Helper()
	ctx, now := p.server()
	got = must(p.store.Sync(ctx, q))(p.t)
	var want backend.SyncReply
	if q.Limit.Rolls {
		want, _ = p.ring.Sync(q, now)
	} else {
		want, _ = p.fixed.Sync(q, now)
	}
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

// take charges some tokens by a direct call, which are spent at once, and sometimes given back.
func (p *judged) take(who int) {
	p.t.Helper()
	ctx, now := p.server()
	q := backend.TakeRequest{Key: p.key, Limit: p.calls, Tokens: max(p.tokens(p.calls.Tokens), 1)}
	q.End, q.Next = p.openings()
	if q.Limit.Rolls {
		q.Within = p.calls.Window / 20
	}
	got, want := must(p.store.Take(ctx, q))(p.t), backend.TakeReply{}
	if q.Limit.Rolls {
		want = p.ring.Take(q, now)
	} else {
		want = p.fixed.Take(q, now)
	}
	same(p, q, got, want)
	if !got.Allowed {
		return
	}
	w := hand.Name(p.calls, got.Window, int64(len(p.log.Resets)))
	p.log.Grant(who, w, q.Tokens)
	if at := p.time(); q.Limit.Rolls || at < w.End {
		p.ok("a direct call", p.log.Spend(at, who, w, q.Tokens))
		if p.rnd.IntN(3) == 0 {
			p.giveBack(who, got.Window, w, at, 1+p.rnd.Int64N(q.Tokens))
		}
		return
	}
	p.ok("a late direct call", p.log.Drop(w.End, who, w, q.Tokens))
}

// giveBack settles a direct call.
func (p *judged) giveBack(who int, window backend.Window, w naive.Window, at, n int64) {
	p.t.Helper()
	ctx, now := p.server()
	q := backend.SettleRequest{Key: p.key, Window: window, Tokens: -n, Limit: p.calls.Tokens}
	got, want := backend.SettleReply{}, backend.SettleReply{}
	if p.calls.Rolls {
		q.Rolling = p.calls.Window
		got, want = must(p.store.Settle(ctx, q))(p.t), p.ring.Settle(q, now)
	} else {
		got, want = must(p.store.Settle(ctx, q))(p.t), p.fixed.Settle(q, now)
	}
	same(p, q, got, want)
	if !got.Open {
		return
	}
	p.ok("a refund", p.log.Refund(at, who, w, n))
	if p.calls.Rolls {
		p.ok("a refund", p.log.Drop(at, who, w, n))
		return
	}
	p.ok("a refund", p.log.Return(who, w, n))
}

func (p *judged) reset() {
	p.t.Helper()
	ctx, now := p.server()
	q := backend.ResetRequest{Key: p.key, Limit: p.calls}
	q.End, q.Next = p.openings()
	got, want := must(p.store.Reset(ctx, q))(p.t), backend.State{}
	if p.calls.Rolls {
		want = p.ring.Reset(q, now)
	} else {
		want = p.fixed.Reset(q, now)
	}
	same(p, q, got, want)
	p.log.Resets = append(p.log.Resets, p.time())
	p.now += 2 * time.Millisecond
}

// lose lets the store lose what its test can delete.
func (p *judged) lose() {
	p.t.Helper()
	ctx, _ := p.server()
	switch s := p.store.(type) {
	case interface {
		halver
		keeper
		LoseLedger(ctx context.Context, key string) error
	}:
		switch n := p.rnd.IntN(3); {
		case p.calls.Rolls:
			must(0, s.LoseRing(ctx, p.key))(p.t)
			p.ring = rolling.Ring{}
		case n == 0:
			must(0, s.LoseLedger(ctx, p.key))(p.t)
			p.fixed.LoseLedger()
		case n == 1: // the scripts use the half that is left to name the next window, which a Counter cannot know
			p.alone = true
			must(0, s.LoseCount(ctx, p.key))(p.t)
		default:
			p.alone = true
			must(0, s.LoseEnd(ctx, p.key))(p.t)
		}
		p.log.Losses = append(p.log.Losses, p.time())
		p.now += 2 * time.Millisecond
	}
}

// rest lets all clients state their accounts, and compares what is free with what the model says, now and when all of it
// must be free again. A rolling limit counts a little longer what a late statement has carried over, so of it only the latter is
// compared from below.
func (p *judged) rest() {
	p.t.Helper()
	for who := range p.clients {
		c := &p.clients[who]
		if c.Window == 0 && !c.lost {
			continue
		}
		q := c.Ask(p.calls, p.key, c.name, 0)
		q.End, q.Next = p.openings()
		r := p.sync(q)
		p.ok("a reply", c.Apply(p.calls, &p.log, who, hand.Call{Q: q, R: r, Sent: p.time(), Resets: int64(len(p.log.Resets))}, p.time()))
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
	got, want := must(p.store.Check(ctx, p.key, p.calls))(p.t), p.fixed.Check(p.calls, now)
	if p.calls.Rolls {
		want = p.ring.Check(p.calls, now)
	}
	same(p, "check", got, want)
	return got.Remaining, hand.Name(p.calls, got.Window, int64(len(p.log.Resets)))
}

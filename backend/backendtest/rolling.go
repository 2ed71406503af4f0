package backendtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/rolling"
)

// turns makes random calls about one key of a rolling limit, of a store and of the module's own ring,
// which must give the same replies. Three clients go on from what they were told, so that accounts live, but
// requests and replies are lost, late, repeated and reordered, and some figures are absurd.
type turns struct {
	*random
	ring    rolling.Ring
	clients [3]backend.SyncRequest // what each would state next
	old     []backend.SyncRequest
	windows []backend.Window // of replies
}

// testRandomRolling is testRandom for rolling limits. Without a RingLoser no window is shorter than half a minute.
func testRandomRolling(t testing.TB, s backend.Store) {
	t.Helper()
	p := newRandom(t, s)
	lengths := []time.Duration{time.Minute, 61537 * time.Millisecond, time.Hour, backend.MaxWindow}
	if _, ok := s.(RingLoser); ok {
		lengths = append(lengths, backend.MinRolling, 37*time.Millisecond, time.Second, 20*time.Second, 1001*time.Millisecond)
	}
	for range 2 * rounds {
		r := &turns{random: p}
		p.key, p.length = newKey(), pick(p, lengths...)
		p.now = time.Duration(p.rnd.IntN(1000_000)) * time.Microsecond
		p.limit = backend.Limit{Tokens: pick[int64](p, 1, 10, 1000, 1000, 100_000, 5_000_000, backend.MaxTokens), Window: p.length}.Rolling()
		for range steps {
			r.step()
		}
	}
}

func (p *turns) step() {
	p.t.Helper()
	unit := p.length / backend.Slices
	switch q := p.rnd.IntN(40); {
	case q < 12:
		p.now += pick(p.random, 1, unit/7, unit/3, unit, 4*unit)
	case q < 13:
		p.now += pick(p.random, p.length/2, p.length, 3*p.length)
	case q < 14 && p.now > 4*p.length:
		p.now -= pick(p.random, 1, unit, p.length, 3*p.length)
	}
	p.now = p.now.Truncate(time.Microsecond)
	loser, keeps := p.store.(RingLoser)
	if keeps {
		must(0, loser.KeepRing(p.at(p.now), p.key, p.limit.Counter()))(p.t)
	}
	now := p.base.Add(p.now).UnixMicro()
	switch q := p.rnd.IntN(100); {
	case q < 60:
		p.state(now)
	case q < 76:
		r := backend.TakeRequest{Key: p.key, Limit: p.nextLimit(), Within: pick(p.random, 0, unit, p.length, unit/2+time.Nanosecond)}
		r.Tokens = min(max(p.tokens(pick(p.random, r.Limit.Tokens, r.Limit.Tokens/7)), 1), r.Limit.Tokens)
		got := must(p.store.TakeRolling(p.at(p.now), r))(p.t)
		equal(p.t, p.told(r), got, p.ring.Take(r, now))
		p.windows = append(p.windows, got.Window)
	case q < 86:
		r := backend.SettleRequest{Key: p.key, Window: p.window(), Limit: p.nextLimit()}
		r.Window.End = max(r.Window.End, 1)
		r.Tokens = max(p.tokens(pick(p.random, p.limit.Tokens, p.limit.Tokens/5)), 1) * pick[int64](p.random, 1, -1, -1)
		got := must(p.store.SettleRolling(p.at(p.now), r))(p.t)
		equal(p.t, p.told(r), got, p.ring.Settle(r, now))
	case q < 88:
		equal(p.t, p.told("reset"), must(p.store.Reset(p.at(p.now), p.key, p.limit))(p.t), backend.Window{})
		p.ring.Reset(now)
	case q < 90 && keeps:
		must(0, loser.LoseRing(p.at(p.now), p.key, p.limit.Counter()))(p.t)
		p.ring = rolling.Ring{}
	default:
		l := p.nextLimit()
		equal(p.t, p.told(l), must(p.store.Check(p.at(p.now), p.key, l))(p.t), p.ring.Check(l, now))
	}
	if s, ok := p.store.(backend.Inspector); ok {
		var want []backend.Contents
		if in := p.ring.Contents(now); in.Window.End != 0 {
			in.Counter = p.limit.Counter()
			want = append(want, in)
		}
		equal(p.t, p.told("inspect"), fmt.Sprint(must(s.Inspect(p.at(p.now), p.key))(p.t)), fmt.Sprint(want))
	}
}

// nextLimit returns the limit, which has another number of tokens now and then.
func (p *turns) nextLimit() backend.Limit {
	l := p.limit
	if p.rnd.IntN(50) == 0 {
		l.Tokens = 1 + p.rnd.Int64N(l.Tokens)
	}
	return l
}

// window returns one of the last replies', or none, or a strange one.
func (p *turns) window() backend.Window {
	if n := len(p.windows); n > 0 && p.rnd.IntN(20) > 0 {
		return p.windows[n-1-p.rnd.IntN(min(n, 6))]
	}
	return backend.Window{End: pick(p.random, 0, 1, backend.MaxTokens, p.ms(p.now), p.ms(p.now+p.length*26/20))}
}

// state makes a client's statement: the next one, or an old one again, or an absurd one.
func (p *turns) state(now int64) {
	p.t.Helper()
	i := p.rnd.IntN(len(p.clients))
	c := &p.clients[i]
	r := *c
	r.Key, r.Client, r.Limit, r.Spent = p.key, fmt.Sprint("process", i, ".0"), p.nextLimit(), nil
	held, slice := r.Granted-r.Returned, backend.Slice(now, p.length)
	switch back := p.tokens(max(held/9, 0)); p.rnd.IntN(5) {
	case 0:
		r.Returned += back
	case 1:
		r.Debt += min(back, backend.MaxTokens-r.Debt)
	case 2:
		r.Refunded, r.RefundedIn = r.Refunded+min(back, backend.MaxTokens-r.Refunded), p.window()
	}
	spent := int64(0)
	for range p.rnd.IntN(4) { // about what is held
		slice = max(slice-p.rnd.Int64N(3), 0)
		r.Spent = append(r.Spent, backend.Spent{Slice: slice, Tokens: max(r.Granted-r.Returned, 0) - spent})
		spent = min(spent+p.tokens(max(held/3, 1)), max(r.Granted-r.Returned, 0))
	}
	if slices.Reverse(r.Spent); len(r.Spent) > 0 && p.rnd.IntN(3) == 0 {
		r.Spent[len(r.Spent)-1].Slice = backend.MaxTokens
	}
	r.Want = p.tokens(r.Limit.Tokens)
	r.Need = p.tokens(r.Want)
	r.Least = p.tokens(pick(p.random, 0, r.Need))
	r.Exact, r.Waited, r.Leaving = p.rnd.IntN(3) == 0, p.rnd.IntN(3) == 0, p.rnd.IntN(9) == 0
	r.Idle, r.Pace = pick(p.random, 0, -1, p.tokens(r.Limit.Tokens)), pick(p.random, 0, p.tokens(r.Limit.Tokens))
	switch p.rnd.IntN(20) {
	case 0:
		*c, r = backend.SyncRequest{}, backend.SyncRequest{Key: p.key, Client: r.Client, Limit: r.Limit, Want: r.Want, Need: r.Need, Exact: r.Exact}
	case 1:
		r.Account, r.Window, r.Granted = p.tokens(backend.MaxTokens), p.window(), p.tokens(backend.MaxTokens)
		r.Returned, r.Debt, r.Total, r.Used = p.tokens(r.Granted), p.tokens(backend.MaxTokens), p.tokens(backend.MaxTokens), p.tokens(backend.MaxTokens)
		r.Refunded, r.RefundedIn, r.Peers = p.tokens(backend.MaxTokens), p.window(), p.tokens(backend.MaxTokens)
	case 2, 3, 4:
		if n := len(p.old); n > 0 {
			r = p.old[n-1-p.rnd.IntN(min(n, 8))]
		}
	}
	got := must(p.store.SyncRolling(p.at(p.now), r))(p.t)
	want, _ := p.ring.Sync(r, now)
	equal(p.t, p.told(r), got, want)
	p.windows, p.old = append(p.windows, got.Window), append(p.old, r)
	if p.rnd.IntN(8) > 0 && r.Granted < backend.MaxTokens/2 { // else it is lost
		*c = backend.SyncRequest{
			Account: got.Account, Window: got.Window, Granted: got.Granted, Returned: got.Returned, Debt: got.Debt, Peers: got.Clients,
			Total: got.Total, Used: max(r.Limit.Tokens-got.Remaining, 0), Refunded: r.Refunded,
		}
	}
}

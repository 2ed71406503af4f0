package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/counter"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// model is a store of nothing but counters, whose ledgers can be lost.
type model map[string]*counter.Counter

func (m model) at(ctx context.Context, key string) (*counter.Counter, int64) {
	if m[key] == nil {
		m[key] = new(counter.Counter)
	}
	now, _ := storeclock.From(ctx)
	return m[key], now.UnixMicro()
}

// loseLedger forgets who was granted what.
func (m model) loseLedger(key string) {
	if c := m[key]; c != nil {
		c.LoseLedger()
	}
}

// pair is the scripts and the counter, which must give the same answer to anything.
type pair struct {
	t      *testing.T
	rnd    *rand.Rand
	a      model
	b      *redisstore.Store
	client redis.UniversalClient
	base   time.Time
	now    time.Duration
	length time.Duration // of most windows
	prefix string
	ends   []backend.Window        // that they named of late
	till   backend.Window          // the end of the calendar's day, while that matters
	voids  map[backend.Window]bool // that were reset
	seen   map[string]int
}

// TestDifferential gives the counter and the scripts the same random requests at
// the same instants: honest and absurd ones, with clocks that step, limits that
// change and ledgers that are lost. Windows last a minute or more and all instants lie
// ahead of the real time, so that Redis deletes nothing meanwhile.
func TestDifferential(t *testing.T) {
	seed := rand.Uint64()
	if text := os.Getenv("RESERVOIR_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	t.Logf("to repeat: RESERVOIR_SEED=%d", seed)
	client := redistest.Start(t).Client()
	p := &pair{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), a: model{}, b: redisstore.New(client), client: client,
		base: time.Now().Add(time.Hour).Truncate(time.Millisecond), voids: make(map[backend.Window]bool), seen: make(map[string]int),
	}
	for round := range 20 {
		p.prefix, p.now, p.ends = fmt.Sprintf("%d:", round), 0, nil
		p.length = one(p, time.Minute, time.Minute, 61500*time.Millisecond, time.Hour)
		for range 400 {
			p.step()
		}
	}
	for _, what := range []string{
		"allowed", "refused", "grant", "recovered", "reasserted", "carried", "learning", "returned",
		"refund", "overrun", "nothing to settle", "above the limit", "open", "closed", "exhausted", "back", "three clients",
		"lasted", "had come back", "conflict", "debt", "leaving", "too little", "calendar", "claimed", "ledger lost",
		"first contact", "first contact takes all", "first contact for nothing", "reset", "reset by a millisecond", "too late", "another period", "open length", "adopted with its length", "conflict with others", "take in another length", "next by take", "next by sync", "next by reset", "over", "debt returned", "nothing to reset", "void",
	} {
		require.Positive(t, p.seen[what], "%s: %v", what, p.seen)
	}
}

func one[T any](p *pair, list ...T) T { return list[p.rnd.IntN(len(list))] }

// tokens is a number from 0 to n, often an extreme one.
func (p *pair) tokens(n int64) int64 {
	return one(p, 0, min(1, n), n, max(n-1, 0), p.rnd.Int64N(min(n, 10)+1), p.rnd.Int64N(n+1), p.rnd.Int64N(n+1))
}

func (p *pair) limit() backend.Limit {
	l := backend.Limit{Tokens: one[int64](p, 10, 1000, 1000, 1000, 100_000, 5_000_000, 1, backend.MaxTokens), Window: p.length}
	if p.rnd.IntN(12) == 0 {
		l.Window = one(p, time.Minute, 2*time.Minute, time.Hour, p.length+time.Millisecond, p.length-time.Second, p.length+1001*time.Millisecond)
	}
	return l
}

// openLength is the length that a client takes for the open window's, if its limit has changed.
func (p *pair) openLength() time.Duration {
	return one(p, 0, 0, 0, p.length, time.Minute, time.Hour, p.length+time.Millisecond)
}

// window is one that was named, one that lies near now, or none.
func (p *pair) window() backend.Window {
	if len(p.ends) > 0 && p.rnd.IntN(10) < 7 {
		return one(p, p.ends[max(0, len(p.ends)-4):]...) + one[backend.Window](p, 0, 0, 0, 0, 1)
	}
	near := backend.Window(p.base.Add(p.now).UnixMilli())
	return one(p, 0, 0, near, near+30_000, near+60_000, near+61_000, near+61_001, near+3_600_000, near-1, 1)
}

// end is that of a calendar, or none.
func (p *pair) end() backend.Window {
	switch {
	case p.till != 0:
		return p.till
	case p.rnd.IntN(3) > 0:
		return 0
	}
	p.seen["calendar"]++
	near := backend.Window(p.base.Add(p.now).UnixMilli())
	return one(p, near+30_000, near-30_000, near-3_000_000, near, near+61_000, near+62_500, near+10_000_123, near/1000*1000+40_000, 1, backend.MaxTokens)
}

// next is where the period after one ends, which may have another length.
func (p *pair) next(end backend.Window) backend.Window {
	if end == 0 || end == backend.MaxTokens {
		return 0
	}
	return one(p, 0, end+1, end+45_000, end+60_000, end+60_500, end+90_000)
}

func (p *pair) step() {
	switch q := p.rnd.IntN(40); {
	case q < 6:
		p.now += one(p, time.Microsecond, 500*time.Microsecond, time.Millisecond, time.Second, 5*time.Second)
	case q < 7:
		p.now += one(p, time.Minute, time.Hour)
	case q < 8 && p.now > 30*time.Second:
		p.now -= one(p, time.Microsecond, time.Second, 10*time.Second)
		p.seen["back"]++
	}
	ctx, key := p.ctx(), p.prefix+one(p, "k", "k", "k", "j")
	switch q := p.rnd.IntN(20); {
	case q == 0 && p.rnd.IntN(4) == 0:
		p.lastMillisecond()
	case q < 11:
		p.sync(ctx, key)
	case q < 15:
		p.take(ctx, key)
	case q < 17:
		p.settle(ctx, key)
	case q < 18 && p.rnd.IntN(3) == 0:
		p.reset(ctx, key)
	case q < 18 && p.rnd.IntN(4) == 0:
		require.NoError(p.t, p.client.Del(ctx, "{"+key+"}:own").Err())
		p.a.loseLedger(key)
		p.seen["ledger lost"]++
	default:
		p.look(ctx, key)
	}
}

func (p *pair) ctx() context.Context {
	return storeclock.With(p.t.Context(), p.base.Add(p.now))
}

// lastMillisecond is what happens to a key that was reset when its day is nearly over.
func (p *pair) lastMillisecond() {
	p.till = backend.Window(p.base.Add(p.now).UnixMilli()) + 20_000
	key := fmt.Sprint(p.prefix, p.till, p.rnd.Uint32())
	p.take(p.ctx(), key)
	if p.rnd.IntN(3) > 0 {
		p.reset(p.ctx(), key)
	}
	p.now = p.till.Time().Sub(p.base) - 500*time.Microsecond
	one(p, p.sync, p.take, p.reset)(p.ctx(), key)
	p.look(p.ctx(), key)
	p.till = 0
}

func (p *pair) sync(ctx context.Context, key string) {
	limit := p.limit()
	granted, want := p.tokens(one(p, 0, limit.Tokens, limit.Tokens/3)), p.tokens(limit.Tokens)
	r := backend.SyncRequest{
		Key: key, Client: one(p, "x", "y", "z"), Limit: limit, Window: p.window(),
		Granted: granted, Returned: p.tokens(granted), Want: want, Need: p.tokens(want),
		Strand: one(p, -1, 0, limit.Tokens/100, p.tokens(limit.Tokens)),
		Peers:  one(p, 0, 0, 2, 30, p.tokens(backend.MaxTokens)), Pace: one(p, 0, p.tokens(limit.Tokens), p.tokens(backend.MaxTokens)),
		Total: one(p, 0, p.tokens(limit.Tokens), p.tokens(backend.MaxTokens)), Used: p.tokens(one(p, 0, limit.Tokens, backend.MaxTokens)),
		Debt: p.tokens(one(p, 0, 0, limit.Tokens/4, backend.MaxTokens)), End: p.end(), Leaving: p.rnd.IntN(6) == 0,
		OpenLength: p.openLength(),
	}
	r.Least, r.Next = p.tokens(one(p, 0, r.Need)), p.next(r.End)
	if p.rnd.IntN(4) == 0 { // debt may be returned too
		r.Returned = p.tokens(min(granted+r.Debt, backend.MaxTokens))
	}
	if p.rnd.IntN(5) == 0 { // of a client that knows nothing of the key
		r.Window, r.Peers, r.Pace, r.End, r.Next, r.Leaving, r.OpenLength = 0, 0, 0, 0, 0, false, 0
	}
	got, err := p.b.Sync(ctx, r)
	require.NoError(p.t, err)
	c, now := p.a.at(ctx, key)
	fresh := !c.Open(now)
	first := fresh && r.Window == 0 && r.Peers|r.Pace|int64(r.End|r.Next)|int64(r.OpenLength) == 0 && !r.Leaving
	require.Equal(p.t, c.Sync(r, now), got, "at %v: %+v", p.now, r)
	p.ends = append(p.ends, got.Window)
	p.note(map[string]bool{
		"grant": got.Grant > got.Recovered, "conflict": got.Conflict, "open length": !got.Conflict && got.Length > 0 && got.Length == r.OpenLength, "adopted with its length": fresh && got.Window == r.Window && got.Length > 0, "conflict with others": got.Conflict && got.Clients > 1, "debt": got.Debt > 0, "leaving": r.Leaving && got.Clients == 1,
		"too little": r.Least > 1 && got.Grant == 0 && got.Remaining > 0, "claimed": got.Reasserted > 0 && !got.Learning, "recovered": got.Recovered > 0, "reasserted": got.Reasserted > 0,
		"first contact": first && got.Grant > 0, "first contact takes all": first && got.Lasted > 0, "first contact for nothing": first && got.Grant == 0,
		"void":    p.voids[r.Window] && r.Granted > r.Returned && got.Window != 0 && got.Window != r.Window && r.Window.Time().After(time.UnixMicro(now)) && !got.Carried,
		"carried": got.Carried, "learning": got.Learning, "returned": got.Returned > 0,
		"next by sync": got.Grant > 0 && fresh && got.Window == r.Next, "another period": got.Grant > 0 && fresh && got.Window == r.Next && got.Length > 0,
		"debt returned": got.Returned > got.Granted, "over": got.Over > 0, "too late": got.Window != 0 && int64(r.End) > now/1000+limit.Window.Milliseconds()+1000, "exhausted": got.Remaining == 0, "three clients": got.Clients == 3,
		"learnt of others": got.Learning && got.Reasserted == 0 && got.Total > 0, "lasted": got.Lasted > 0, "had come back": got.Lasted > 0 && got.Remaining > 0,
	})
}

func (p *pair) take(ctx context.Context, key string) {
	limit := p.limit()
	r := backend.TakeRequest{Key: key, Limit: limit, Tokens: max(p.tokens(limit.Tokens), 1), End: p.end(), OpenLength: p.openLength()}
	r.Next = p.next(r.End)
	got, err := p.b.Take(ctx, r)
	require.NoError(p.t, err)
	c, now := p.a.at(ctx, key)
	opened := !c.Open(now)
	require.Equal(p.t, c.Take(r, now), got, "at %v: %+v", p.now, r)
	p.ends = append(p.ends, got.Window)
	p.note(map[string]bool{"allowed": got.Allowed, "refused": !got.Allowed, "take in another length": got.Allowed && got.Length > 0, "next by take": opened && got.Allowed && got.Window == r.Next})
}

func (p *pair) settle(ctx context.Context, key string) {
	r := backend.SettleRequest{Key: key, Window: max(p.window(), 1), Tokens: max(p.tokens(1000), 1) * one[int64](p, 1, -1), Limit: 1 + p.tokens(1000)}
	got, err := p.b.Settle(ctx, r)
	require.NoError(p.t, err)
	c, now := p.a.at(ctx, key)
	require.Equal(p.t, c.Settle(r, now), got, "at %v: %+v", p.now, r)
	p.note(map[string]bool{
		"refund": got.Open && r.Tokens < 0, "overrun": got.Open && r.Tokens > 0, "nothing to settle": !got.Open, "above the limit": got.Over > 0,
	})
}

func (p *pair) reset(ctx context.Context, key string) {
	r := backend.ResetRequest{Key: key, Limit: p.limit(), End: p.end(), OpenLength: p.openLength()}
	r.Next = p.next(r.End)
	got, err := p.b.Reset(ctx, r)
	require.NoError(p.t, err)
	c, now := p.a.at(ctx, key)
	before := c.Contents(now).Window
	require.Equal(p.t, c.Reset(r, now), got, "at %v: %+v", p.now, r)
	p.ends = append(p.ends, before, got.Window)
	p.voids[before] = p.voids[before] || !got.Conflict
	p.note(map[string]bool{
		"nothing to reset": got.Window == 0, "reset": got.Window != 0 && !got.Conflict, "reset by a millisecond": got.Window == before-1,
		"next by reset": r.Next != 0 && (got.Window == before-1+r.Next-r.End || got.Window == r.Next),
	})
}

// look compares a check and all that the stores hold.
func (p *pair) look(ctx context.Context, key string) {
	limit := p.limit()
	got, err := p.b.Check(ctx, key, limit)
	require.NoError(p.t, err)
	c, now := p.a.at(ctx, key)
	require.Equal(p.t, c.Check(limit, now), got, "check at %v: %+v", p.now, limit)
	p.note(map[string]bool{"open": got.Window != 0, "closed": got.Window == 0})
	in, err := p.b.Inspect(ctx, key)
	require.NoError(p.t, err)
	require.Equal(p.t, c.Contents(now), in, "inspect at %v", p.now)
}

func (p *pair) note(seen map[string]bool) {
	for what, was := range seen {
		if was {
			p.seen[what]++
		}
	}
}

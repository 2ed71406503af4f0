package backendtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/counter"
)

// Number of rounds of random calls in a test, each with keys of its own, and of steps in a round.
const (
	rounds = 16
	steps  = 250
)

// seedVariable is the environment variable that repeats failed random calls.
const seedVariable = "RESERVOIR_SEED"

// random makes the same random calls of a store and of the module's own counter, which must
// give the same replies: honest and absurd requests, with clocks that step and limits that
// change. Windows last half a minute or more, and all instants lie ahead of the real time,
// so that no server deletes anything meanwhile.
type random struct {
	*bench
	rnd      *rand.Rand
	counters map[string]*counter.Counter
	now      time.Duration
	length   time.Duration    // of most windows
	ends     []backend.Window // that replies of this round have named
	till     backend.Window   // the end of the calendar's period, while that matters
}

// testRandom: whatever it is asked, the store says what the counter says.
func testRandom(t testing.TB, s backend.Store) {
	t.Helper()
	p := newRandom(t, s)
	for range rounds {
		names := []string{newKey(), newKey()}
		p.now, p.ends = time.Duration(p.rnd.IntN(1000))*time.Millisecond, nil
		p.length = pick(p, time.Minute, time.Minute, 61500*time.Millisecond, time.Hour)
		for range steps {
			p.key = pick(p, names[0], names[0], names[0], names[1])
			p.step()
		}
	}
}

func newRandom(t testing.TB, s backend.Store) *random {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv(seedVariable); text != "" {
		seed = must(strconv.ParseUint(text, 10, 64))(t)
	}
	t.Logf("to repeat: %s=%d", seedVariable, seed)
	p := &random{bench: newBench(t, s, limit10), rnd: rand.New(rand.NewPCG(seed, 0)), counters: make(map[string]*counter.Counter)}
	p.base = p.base.Add(time.Hour)
	return p
}

// pick returns a random element of list.
func pick[T any](p *random, list ...T) T { return list[p.rnd.IntN(len(list))] }

// tokens returns a number from 0 to n, often an extreme one.
func (p *random) tokens(n int64) int64 {
	return pick(p, 0, min(1, n), n, max(n-1, 0), p.rnd.Int64N(min(n, 10)+1), p.rnd.Int64N(n+1), p.rnd.Int64N(n+1))
}

// nextLimit sets the limit of the next request.
func (p *random) nextLimit() backend.Limit {
	p.limit = backend.Limit{Tokens: pick[int64](p, 10, 1000, 1000, 1000, 100_000, 5_000_000, 1, backend.MaxTokens), Window: p.length}
	if p.rnd.IntN(12) == 0 {
		p.limit.Window = pick(p, time.Minute, 2*time.Minute, time.Hour, p.length+time.Millisecond, p.length-time.Second, p.length+1001*time.Millisecond)
	}
	return p.limit
}

// openLength returns the length that a client takes for the open window's, if its limit has changed.
func (p *random) openLength() time.Duration {
	return pick(p, 0, 0, 0, p.length, time.Minute, time.Hour, p.length+time.Millisecond)
}

// window returns one that a reply has named, one that lies near now, or none.
func (p *random) window() backend.Window {
	if len(p.ends) > 0 && p.rnd.IntN(10) < 7 {
		return pick(p, p.ends[max(0, len(p.ends)-4):]...) + pick[backend.Window](p, 0, 0, 0, 0, 1)
	}
	near := p.end(p.now)
	return pick(p, 0, 0, near, near+30_000, near+60_000, near+61_000, near+61_001, near+3_600_000, near-1, 1)
}

// period returns the ends of a period of a calendar and of the next one, which may have
// another length, or neither.
func (p *random) period() (end, next backend.Window) {
	switch near := p.end(p.now); {
	case p.till != 0:
		end = p.till
	case p.rnd.IntN(3) > 0:
		return 0, 0
	default:
		end = pick(p, near+30_000, near-30_000, near-3_000_000, near, near+61_000, near+62_500, near+10_000_123, near/1000*1000+40_000, 1, backend.MaxTokens)
	}
	if end == backend.MaxTokens {
		return end, 0
	}
	return end, pick(p, 0, end+1, end+45_000, end+60_000, end+60_500, end+90_000)
}

func (p *random) step() {
	p.t.Helper()
	switch q := p.rnd.IntN(40); {
	case q < 6:
		p.now += pick(p, time.Microsecond, 500*time.Microsecond, time.Millisecond, time.Second, 5*time.Second)
	case q < 7:
		p.now += pick(p, time.Minute, time.Hour)
	case q < 8 && p.now > 30*time.Second:
		p.now -= pick(p, time.Microsecond, time.Second, 10*time.Second)
	}
	switch q := p.rnd.IntN(80); {
	case q < 1:
		p.lastMillisecond()
	case q < 44:
		p.randomSync()
	case q < 60:
		p.randomTake()
	case q < 68:
		p.randomSettle()
	case q < 70:
		p.randomReset()
	case q < 71:
		p.loseLedger()
	default:
		p.look()
	}
}

// lastMillisecond is what happens to a key that was reset when its period is nearly over.
func (p *random) lastMillisecond() {
	p.t.Helper()
	p.key, p.till = newKey(), p.end(p.now)+20_000
	p.randomTake()
	if p.rnd.IntN(3) > 0 {
		p.randomReset()
	}
	p.now = p.till.Time().Sub(p.base) - 500*time.Microsecond
	pick(p, p.randomSync, p.randomTake, p.randomReset)()
	p.look()
	p.till = 0
}

// counter returns that of the key, and the time in the form that it takes.
func (p *random) counter() (*counter.Counter, int64) {
	if p.counters[p.key] == nil {
		p.counters[p.key] = new(counter.Counter)
	}
	return p.counters[p.key], p.base.Add(p.now).UnixMicro()
}

// told says what was asked and when.
func (p *random) told(request any) string { return fmt.Sprintf("%+v at %v", request, p.now) }

func (p *random) randomSync() {
	p.t.Helper()
	limit := p.nextLimit()
	granted, wants := p.tokens(pick(p, 0, limit.Tokens, limit.Tokens/3)), p.tokens(limit.Tokens)
	r := backend.SyncRequest{
		Key: p.key, Client: pick(p, "x", "y", "z"), Limit: limit, Window: p.window(),
		Granted: granted, Returned: p.tokens(granted), Want: wants, Need: p.tokens(wants),
		Exact: p.rnd.IntN(3) == 0, Waited: p.rnd.IntN(3) == 0,
		Peers: pick(p, 0, 0, 2, 30, p.tokens(backend.MaxTokens)), Pace: pick(p, 0, p.tokens(limit.Tokens), p.tokens(backend.MaxTokens)),
		Total: pick(p, 0, p.tokens(limit.Tokens), p.tokens(backend.MaxTokens)), Used: p.tokens(pick(p, 0, limit.Tokens, backend.MaxTokens)),
		Debt: p.tokens(pick(p, 0, 0, limit.Tokens/4, backend.MaxTokens)), Leaving: p.rnd.IntN(6) == 0,
		Run:        p.tokens(pick(p, 0, limit.Tokens/4, backend.MaxTokens)),
		OpenLength: p.openLength(), Idle: pick(p, 0, -1, p.tokens(limit.Tokens), p.tokens(backend.MaxTokens)),
	}
	r.End, r.Next = p.period()
	r.Least = p.tokens(pick(p, 0, r.Need))
	if p.rnd.IntN(4) == 0 { // debt may be returned too
		r.Returned = p.tokens(min(granted+r.Debt, backend.MaxTokens))
	}
	if p.rnd.IntN(5) == 0 { // a client that knows nothing of the key
		r.Window, r.Peers, r.Pace, r.Run, r.End, r.Next, r.Leaving, r.OpenLength = 0, 0, 0, 0, 0, 0, false, 0
	}
	got := must(p.store.Sync(p.at(p.now), r))(p.t)
	c, now := p.counter()
	want, _ := c.Sync(r, now)
	equal(p.t, p.told(r), got, want)
	p.ends = append(p.ends, got.Window)
}

func (p *random) randomTake() {
	p.t.Helper()
	limit := p.nextLimit()
	r := backend.TakeRequest{Key: p.key, Limit: limit, Tokens: max(p.tokens(limit.Tokens), 1), OpenLength: p.openLength()}
	r.End, r.Next = p.period()
	got := must(p.store.Take(p.at(p.now), r))(p.t)
	c, now := p.counter()
	equal(p.t, p.told(r), got, c.Take(r, now))
	p.ends = append(p.ends, got.Window)
}

func (p *random) randomSettle() {
	p.t.Helper()
	r := backend.SettleRequest{Key: p.key, Window: max(p.window(), 1), Tokens: max(p.tokens(1000), 1) * pick[int64](p, 1, -1), Limit: 1 + p.tokens(1000)}
	got := must(p.store.Settle(p.at(p.now), r))(p.t)
	c, now := p.counter()
	equal(p.t, p.told(r), got, c.Settle(r, now))
}

func (p *random) randomReset() {
	p.t.Helper()
	r := backend.ResetRequest{Key: p.key, Limit: p.nextLimit(), OpenLength: p.openLength()}
	r.End, r.Next = p.period()
	got := must(p.store.Reset(p.at(p.now), r))(p.t)
	c, now := p.counter()
	before := c.Contents(now).Window
	equal(p.t, p.told(r), got, c.Reset(r, now))
	p.ends = append(p.ends, before, got.Window) // late statements name the one that is void now
}

// loseLedger deletes what the store knows of the clients, if its test has made that possible.
func (p *random) loseLedger() {
	if s, ok := p.store.(interface {
		LoseLedger(context.Context, string) error
	}); ok {
		must(0, s.LoseLedger(p.at(p.now), p.key))(p.t)
		c, _ := p.counter()
		c.LoseLedger()
	}
}

// look compares a check, and all that the store holds if it can be inspected.
func (p *random) look() {
	p.t.Helper()
	limit := p.nextLimit()
	got := must(p.store.Check(p.at(p.now), p.key, limit))(p.t)
	c, now := p.counter()
	equal(p.t, p.told(limit), got, c.Check(limit, now))
	if s, ok := p.store.(backend.Inspector); ok {
		equal(p.t, p.told("inspect"), fmt.Sprint(must(s.Inspect(p.at(p.now), p.key))(p.t)), fmt.Sprint(c.Contents(now)))
	}
}

package backendtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/ledger"
)

// Number of rounds of random calls in a test, each with keys of its own, and of steps in a round.
const (
	rounds = 16
	steps  = 250
)

// seedVariable is the environment variable that repeats failed random calls.
const seedVariable = "RESERVOIR_SEED"

// random makes the same random calls of a store and of the module's own rules, which must
// give the same replies: honest and absurd requests, with clocks that step and limits that
// change. Windows last half a minute or more, and all instants lie ahead of the real time,
// so that no server deletes anything meanwhile.
type random struct {
	*bench
	rnd      *rand.Rand
	counters map[string]*ledger.Counter
	now      time.Duration
	length   time.Duration                // of most windows
	rolls    bool                         // limits are rolling ones
	windows  []backend.Window             // that replies of this round have named
	clients  map[string]backend.Statement // what each would state next, by counter and name
	grants   map[string][]backend.Change  // that each got last
}

// testRandom: whatever it is asked, the store says what the counter says.
func testRandom(t testing.TB, s backend.Store) {
	t.Helper()
	p := newRandom(t, s)
	for i := range 2 * rounds {
		names := []string{newKey(), newKey()}
		p.now, p.windows, p.rolls = time.Duration(p.rnd.IntN(1000))*time.Millisecond, nil, i%2 == 1
		p.clients, p.grants = make(map[string]backend.Statement), make(map[string][]backend.Change)
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
	p := &random{bench: newBench(t, s, limit10), rnd: rand.New(rand.NewPCG(seed, 0)), counters: make(map[string]*ledger.Counter)}
	p.base = p.base.Add(100 * time.Hour) // or keys of a day that is over by the server's own clock would expire, after steps back
	return p
}

// pick returns a random element of list.
func pick[T any](p *random, list ...T) T { return list[p.rnd.IntN(len(list))] }

// tokens returns a number from 0 to n, often an extreme one.
func (p *random) tokens(n int64) int64 {
	return pick(p, 0, min(1, n), n, max(n-1, 0), p.rnd.Int64N(min(n, 10)+1), p.rnd.Int64N(n+1), p.rnd.Int64N(n+1))
}

// nextLimit sets the limit of the next request. Its calendar is any, and so are the periods that requests name.
func (p *random) nextLimit() backend.Limit {
	p.limit = backend.Limit{Tokens: pick[int64](p, 10, 1000, 1000, 1000, 100_000, 5_000_000, 1, backend.MaxTokens), Window: p.length, Rolls: p.rolls}
	switch n := p.rnd.IntN(12); {
	case n == 0:
		p.limit.Window = pick(p, time.Minute, 2*time.Minute, time.Hour)
	case n < 3 && !p.rolls:
		p.limit.Calendar.Period = backend.Day
	}
	return p.limit
}

// window returns one that a reply has named, one that lies near now, or none.
func (p *random) window() (w backend.Window) {
	if len(p.windows) > 0 && p.rnd.IntN(10) < 7 {
		w = pick(p, p.windows[max(0, len(p.windows)-4):]...)
		w.Gen += pick[int64](p, 0, 0, 0, 0, 1)
		return w
	}
	near := p.ms(p.now)
	return backend.Window{
		End: pick(p, 0, 0, near, near+30_000, near+60_000, near+61_000, near+61_001, near+3_600_000, near-1, 1, backend.MaxTokens),
		Gen: pick(p, 0, 0, 0, 1, near, near+1),
	}
}

// hold is mostly none.
func (p *random) hold() time.Duration {
	if p.rnd.IntN(80) > 0 {
		return 0
	}
	return pick(p, 1, time.Millisecond, 1500*time.Microsecond, 10*time.Second, p.length, 2*p.length, backend.MaxWindow)
}

// period returns a period of a calendar if the limit has one: mostly that in which now lies.
func (p *random) period(l backend.Limit) (begin, end int64) {
	if l.Calendar.Period == 0 {
		return 0, 0
	}
	length := p.length.Milliseconds()
	begin = p.ms(p.now)/length*length + pick[int64](p, 0, 0, 0, 0, 0, 0, length, -length, 1)
	return begin, begin + length + pick[int64](p, 0, 0, 0, 0, 1, 60_500)
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
	case q < 12 && p.rolls:
		p.now += pick(p, p.length/20, p.length/20, p.length/6)
	}
	switch q := p.rnd.IntN(80); {
	case q < 48:
		p.randomStatement()
	case q < 64:
		p.withoutClient()
	case q < 67:
		p.randomReset()
	case q < 70:
		p.randomLoss()
	default:
		p.look()
	}
}

// counter returns that of the key and the limit, and the time in the form that it takes.
func (p *random) counter(l backend.Limit) (*ledger.Counter, int64) {
	at := p.key + " " + l.Counter()
	if p.counters[at] == nil {
		p.counters[at] = new(ledger.Counter)
	}
	return p.counters[at], p.base.Add(p.now).UnixMicro()
}

// told says what was asked and when.
func (p *random) told(request any) string { return fmt.Sprintf("%+v at %v", request, p.now) }

// randomStatement is the next statement of a client, an old one again, or an absurd one.
func (p *random) randomStatement() {
	p.t.Helper()
	limit := p.nextLimit()
	name := pick(p, "p.1", "p.2", "q.1", "x")
	at := p.key + limit.Counter() + name
	q := p.clients[at]
	q.Key, q.Client, q.Limit = p.key, name, limit
	q.Life, q.Seq = max(q.Life, 1), q.Seq+1
	if p.rnd.IntN(40) == 0 {
		q = backend.Statement{Key: p.key, Client: name, Limit: limit, Life: q.Life + 1, Seq: 1}
	}
	q.Want = p.tokens(limit.Tokens)
	q.Need = p.tokens(q.Want)
	q.Least = p.tokens(pick(p, 0, q.Need))
	held := q.Mine
	for _, g := range p.grants[at] {
		held += g.Tokens
	}
	q.Hints = backend.Hints{
		Exact: p.rnd.IntN(3) == 0, Waited: p.rnd.IntN(3) == 0, Leaving: p.rnd.IntN(6) == 0, Deaf: p.rnd.IntN(6) == 0, GaveUp: p.rnd.IntN(9) == 0,
		Idle: p.tokens(pick(p, 0, held, held, backend.MaxTokens)), Pace: pick(p, 0, p.tokens(limit.Tokens), p.tokens(backend.MaxTokens)),
	}
	q.Hold = p.hold()
	if p.rnd.IntN(10) == 0 { // again
		q.Life, q.Seq = max(q.Life-p.rnd.Int64N(2), 1), max(q.Seq-1-p.rnd.Int64N(3), 1)
	}
	if limit.Rolls {
		p.fillBuckets(&q, p.grants[at])
	} else {
		p.fillWindow(&q)
	}
	got := must(p.store.Sync(p.at(p.now), q))(p.t)
	c, now := p.counter(limit)
	want, _ := c.Sync(q, now)
	equal(p.t, p.told(q), got, want)
	if got.Void || got.Astray {
		return
	}
	p.windows = append(p.windows, got.Window)
	next := backend.Statement{Life: q.Life, Seq: q.Seq, Window: got.Window, Mine: got.Mine, Used: got.Used}
	if limit.Rolls {
		next = backend.Statement{Life: q.Life, Seq: q.Seq, Window: backend.Window{Gen: got.Window.Gen}, Rolling: backend.Rolling{Known: q.Seq}}
	}
	if p.rnd.IntN(8) == 0 { // the reply is lost
		next.Window, next.Mine, next.Used, next.Change, next.Rolling = q.Window, q.Mine, q.Used, q.Change, q.Rolling
		p.clients[at] = next
		return
	}
	p.clients[at], p.grants[at] = next, got.Grants
}

// fillBuckets fills in what only a statement of a rolling limit says.
func (p *random) fillBuckets(q *backend.Statement, grants []backend.Change) {
	present, unit := backend.Bucket(p.base.Add(p.now).UnixMicro(), q.Limit.Window), q.Limit.Window/backend.Buckets
	change := func(bucket, more, less int64) {
		if len(q.Changes) < backend.MaxChanges {
			q.Changes = append(slices.Clip(q.Changes), backend.Change{Bucket: bucket, Tokens: p.tokens(more) - p.tokens(less)})
		}
	}
	for _, g := range grants {
		if p.rnd.IntN(2) == 0 {
			change(g.Bucket, 9, pick(p, 0, 9, g.Tokens))
		}
	}
	q.After, q.Within = pick(p, 0, max(present-2+p.rnd.Int64N(14), 0)), pick(p, 0, 0, unit/3, unit, q.Limit.Window)
	switch p.rnd.IntN(20) {
	case 0, 1: // absurd
		change(pick(p, 0, 1, max(present-30+p.rnd.Int64N(60), 0), backend.MaxTokens), backend.MaxTokens, backend.MaxTokens)
		q.Known, q.After = p.tokens(pick(p, q.Seq, backend.MaxTokens)), p.tokens(backend.MaxTokens)
	case 2, 3:
		q.Known = max(q.Known-p.rnd.Int64N(3), 0)
	case 4:
		q.Window = backend.Window{Gen: p.window().Gen}
	}
}

// fillWindow fills in what only a statement of a fixed limit says.
func (p *random) fillWindow(q *backend.Statement) {
	limit := q.Limit
	q.Runs = p.rnd.IntN(5) > 0
	q.Begin, q.End = p.period(limit)
	q.Run = p.tokens(pick(p, 0, limit.Tokens/4, backend.MaxTokens))
	switch p.rnd.IntN(9) {
	case 0, 1, 2:
		q.Change = -p.tokens(q.Mine)
	case 3:
		q.Change = p.tokens(limit.Tokens / 4)
	case 4: // absurd
		q.Window, q.Mine, q.Used = p.window(), p.tokens(pick(p, limit.Tokens, backend.MaxTokens)), p.tokens(backend.MaxTokens)
		q.Change = p.tokens(backend.MaxTokens) * pick[int64](p, 1, -1)
	case 5:
		q.Window = p.window()
	}
}

// withoutClient is a statement without a client.
func (p *random) withoutClient() {
	p.t.Helper()
	q := backend.Statement{Key: p.key, Limit: p.nextLimit(), Window: p.window(), Hold: p.hold()}
	if p.rnd.IntN(3) == 0 {
		q.Change = max(p.tokens(pick[int64](p, 10, 1000, backend.MaxTokens)), 1)
	} else {
		q.Need = max(p.tokens(pick(p, 10, q.Limit.Tokens, backend.MaxTokens)), 1)
		if !p.rolls { // a window is that of a Change, and not sent without one
			q.Window = backend.Window{}
		}
	}
	if q.Begin, q.End = p.period(q.Limit); p.rolls {
		present, most := backend.Bucket(p.base.Add(p.now).UnixMicro(), q.Limit.Window), q.Change
		for n := p.rnd.IntN(4); most > 0 && n >= 0; n-- {
			q.Changes = append(q.Changes, backend.Change{Bucket: pick(p, 0, max(present-22+p.rnd.Int64N(40), 0)), Tokens: p.tokens(most)})
		}
		q.Window.End, q.Change, q.Within = 0, 0, pick(p, 0, q.Limit.Window/40, q.Limit.Window)
	}
	got := must(p.store.Sync(p.at(p.now), q))(p.t)
	c, now := p.counter(q.Limit)
	want, _ := c.Sync(q, now)
	equal(p.t, p.told(q), got, want)
	p.windows = append(p.windows, got.Window)
}

func (p *random) randomReset() {
	p.t.Helper()
	l := p.nextLimit()
	got := must(p.store.Reset(p.at(p.now), p.key, l))(p.t)
	c, now := p.counter(l)
	void, next := c.Reset(l, now)
	equal(p.t, p.told("reset"), got, void)
	p.windows = append(p.windows, void, backend.Window{End: void.End, Gen: next.Gen})
}

// randomLoss loses a part of a counter, if its test has made that possible.
func (p *random) randomLoss() {
	s, ok := p.store.(Loser)
	if !ok {
		return
	}
	l := p.nextLimit()
	c, _ := p.counter(l)
	p.lose(s, c, l, pick(p, []string{"count"}, []string{"end"}, []string{"ledger"}))
}

// lose loses some parts of a counter, all of a rolling limit.
func (p *random) lose(s Loser, c *ledger.Counter, l backend.Limit, parts []string) {
	p.t.Helper()
	ctx, counter := p.at(p.now), l.Counter()
	if l.Rolls {
		must(0, s.LoseRing(ctx, p.key, counter))(p.t)
		*c = ledger.Counter{}
		return
	}
	for _, part := range parts {
		switch part {
		case "count":
			must(0, s.LoseCount(ctx, p.key, counter))(p.t)
			c.LoseCount()
		case "end":
			must(0, s.LoseEnd(ctx, p.key, counter))(p.t)
			c.LoseEnd()
		default:
			must(0, s.LoseLedger(ctx, p.key, counter))(p.t)
			c.LoseLedger()
		}
	}
}

// look compares a check, and all that the store holds if it can be inspected.
func (p *random) look() {
	p.t.Helper()
	limit := p.nextLimit()
	got := must(p.store.Check(p.at(p.now), p.key, limit))(p.t)
	c, now := p.counter(limit)
	equal(p.t, p.told(limit), got, c.Check(limit, now))
	s, ok := p.store.(backend.Inspector)
	if !ok {
		return
	}
	var want []backend.Contents
	for at, c := range p.counters {
		if key, name, _ := strings.Cut(at, " "); key == p.key {
			if in := c.Contents(now); in.Window.End != 0 || in.Held > 0 {
				in.Counter = name
				want = append(want, in)
			}
		}
	}
	slices.SortFunc(want, func(a, b backend.Contents) int { return strings.Compare(a.Counter, b.Counter) })
	equal(p.t, p.told("inspect"), fmt.Sprint(must(s.Inspect(p.at(p.now), p.key))(p.t)), fmt.Sprint(want))
}

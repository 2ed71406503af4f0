package backendtest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// The failovers that TestFailover makes, the clients of each, and the most
// operations that a replica has missed.
const (
	failovers    = 50
	failoverSize = 8
	lagMax       = 20
)

// TestFailover promotes, fifty times, a replica that missed the last operations,
// and lets the clients go on until nothing remains. They are admitted more than
// the limit by what the replica does not know of, unless they tell it: once with
// statements that do (as they always are), once without, side by side.
//
// Such a replica is another key that was told the same at the same instants, but
// for the last operations.
func TestFailover(t *testing.T) {
	s := memstore.New()
	var unknown, without, with int64
	for seed := range uint64(failovers) {
		f := newFailover(t, s, seed)
		f.fill()
		lag := 1 + f.rnd.IntN(lagMax)
		at, after := f.now, f.rnd.Uint64()
		control, told := f.replica(lag), f.replica(lag)

		lost := max(held(f.clients)-control.used(at), 0)
		over := f.goOn(control, strangers(), after) + held(f.clients)
		equal(t, "over the limit without re-assertion", max(over-f.limit.Tokens, 0), lost)
		unknown, without = unknown+lost, without+lost

		f.now = at
		over = max(f.goOn(told, f.clients, after)-f.limit.Tokens, 0)
		if most := f.granted(lag); over > most {
			t.Fatalf("%d tokens over the limit, of %d that the replica had missed", over, most)
		}
		with += over
	}
	limit := float64(failovers * failoverLimit.Tokens / 100)
	t.Logf("%d failovers that lost %d tokens (%.2f%% of the limits): over-admission %d (%.2f%%) without re-assertion, %d (%.2f%%) with it",
		failovers, unknown, float64(unknown)/limit, without, float64(without)/limit, with, float64(with)/limit)
	if unknown == 0 || with > without/2 {
		t.Errorf("re-assertion leaves %d of %d", with, without)
	}
}

var failoverLimit = backend.Limit{Tokens: 10_000, Window: far}

// failover is a primary with clients, and all that it was told.
type failover struct {
	*bench
	rnd     *rand.Rand
	now     time.Duration
	clients []backend.Statement // what each would state next, without a wish
	told    []told
}

// told is an operation: what was said when, and what was granted for it.
type told struct {
	backend.Statement
	at      time.Duration
	granted int64
}

func newFailover(t *testing.T, s backend.Store, seed uint64) *failover {
	f := &failover{bench: newBench(t, s, failoverLimit), rnd: rand.New(rand.NewPCG(seed, 0))}
	for i := range failoverSize {
		f.clients = append(f.clients, backend.Statement{Client: fmt.Sprint("c", i), Life: 1})
	}
	return f
}

// fill makes a mix of statements until half of the limit, nearly all, or something
// between is charged: wishes of all sizes, give-backs, replies that are lost.
func (f *failover) fill() {
	f.t.Helper()
	rest := f.limit.Tokens * int64(3+f.rnd.IntN(47)) / 100
	for remaining := f.limit.Tokens; remaining > rest || len(f.told) <= lagMax; {
		f.now += time.Duration(f.rnd.IntN(200)) * time.Millisecond // some 600 would fit into the window
		c := &f.clients[f.rnd.IntN(failoverSize)]
		if out := c.Mine + c.Change; out > 0 && f.rnd.IntN(6) == 0 {
			c.Change -= f.rnd.Int64N(out/4 + 1)
		}
		q := f.wish(c, f.rnd)
		r := f.sync(f.now, q)
		f.told = append(f.told, told{q, f.now, r.Grant})
		if f.rnd.IntN(10) > 0 {
			f.hear(c, r)
		}
		remaining = r.Remaining
	}
}

// wish is c's next statement, with a wish for up to a tenth of the limit.
func (f *failover) wish(c *backend.Statement, rnd *rand.Rand) backend.Statement {
	c.Seq++
	q := *c
	q.Want = 1 + rnd.Int64N(f.limit.Tokens/10)
	q.Need, q.Runs = min(q.Want, 20), true
	return q
}

func (f *failover) hear(c *backend.Statement, r backend.Reply) {
	f.t.Helper()
	equal(f.t, "it is one window", r.Window, f.end(f.told[0].at.Truncate(time.Second)+far))
	c.Window, c.Mine, c.Change, c.Used = r.Window, r.Mine, 0, r.Used
}

// replica is a store that missed the last operations.
func (f *failover) replica(lag int) *bench {
	f.t.Helper()
	b := newBench(f.t, f.store, f.limit)
	b.base = f.base
	for _, op := range f.told[:len(f.told)-lag] {
		b.sync(op.at, op.Statement)
	}
	return b
}

func (b *bench) used(at time.Duration) int64 {
	return b.limit.Tokens - must(b.store.Check(b.at(at), b.key, b.limit))(b.t).Remaining
}

// granted is what the primary granted in the last operations.
func (f *failover) granted(lag int) (n int64) {
	for _, op := range f.told[len(f.told)-lag:] {
		n += op.granted
	}
	return n
}

// goOn lets clients ask the replica until nothing remains, and returns
// what they hold and have spent then. Some speak often, and some late.
func (f *failover) goOn(replica *bench, clients []backend.Statement, seed uint64) int64 {
	f.t.Helper()
	clients = append([]backend.Statement(nil), clients...)
	rnd := rand.New(rand.NewPCG(seed, 1))
	ask := func(c *backend.Statement) int64 {
		f.now += time.Duration(rnd.IntN(50)) * time.Millisecond
		r := replica.sync(f.now, f.wish(c, rnd))
		f.hear(c, r)
		return r.Grant
	}
	for idle := 0; idle < failoverSize; idle++ {
		if ask(&clients[min(rnd.IntN(failoverSize), rnd.IntN(failoverSize))]) > 0 {
			idle = 0
		}
	}
	for had := int64(1); had > 0; { // the silent ones
		had = 0
		for i := range clients {
			had += ask(&clients[i])
		}
	}
	return held(clients)
}

// strangers are clients of whom nobody knows anything.
func strangers() (list []backend.Statement) {
	for i := range failoverSize {
		list = append(list, backend.Statement{Client: fmt.Sprint("stranger", i), Life: 1})
	}
	return list
}

func held(clients []backend.Statement) (n int64) {
	for _, c := range clients {
		n += c.Mine + c.Change
	}
	return n
}

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
		over := f.goOn(control, strangers(f.clients), after) + held(f.clients)
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
	if unknown == 0 || with > unknown/25 {
		t.Errorf("re-assertion leaves %d of %d", with, without)
	}
}

var failoverLimit = backend.Limit{Tokens: 10_000, Window: far}

// failover is a primary with clients, and all that it was told.
type failover struct {
	*bench
	rnd     *rand.Rand
	now     time.Duration
	clients []backend.SyncRequest
	told    []told
}

// told is an operation: what was said when, and what was charged for it.
type told struct {
	backend.SyncRequest
	at      time.Duration
	charged int64
}

func newFailover(t *testing.T, s backend.Store, seed uint64) *failover {
	f := &failover{bench: newBench(t, s, failoverLimit), rnd: rand.New(rand.NewPCG(seed, 0))}
	for i := range failoverSize {
		f.clients = append(f.clients, backend.SyncRequest{Client: fmt.Sprint("c", i)})
	}
	return f
}

// fill makes a mix of syncs until half of the limit, nearly all, or something
// between is charged: wishes of all sizes, give-backs, replies that are lost.
func (f *failover) fill() {
	f.t.Helper()
	rest := f.limit.Tokens * int64(3+f.rnd.IntN(47)) / 100
	for remaining := f.limit.Tokens; remaining > rest || len(f.told) <= lagMax; {
		f.now += f.step()
		c := &f.clients[f.rnd.IntN(failoverSize)]
		if out := c.Granted - c.Returned; out > 0 && f.rnd.IntN(6) == 0 {
			c.Returned += f.rnd.Int64N(out/4 + 1)
		}
		x := f.wish(*c, f.rnd)
		r := f.sync(f.now, x)
		f.told = append(f.told, told{x, f.now, r.Grant - r.Recovered})
		if f.rnd.IntN(10) > 0 {
			f.hear(c, r)
		}
		remaining = r.Remaining
	}
}

// step is the time between two operations: some 600 would fit into the window.
func (f *failover) step() time.Duration { return time.Duration(f.rnd.IntN(200)) * time.Millisecond }

// wish is what c backend.SyncRequests, now with a wish for up to a tenth of the limit.
func (f *failover) wish(c backend.SyncRequest, rnd *rand.Rand) backend.SyncRequest {
	c.Want = 1 + rnd.Int64N(f.limit.Tokens/10)
	c.Need, c.Peers = min(c.Want, 20), failoverSize
	return c
}

func (f *failover) hear(c *backend.SyncRequest, r backend.SyncReply) {
	f.t.Helper()
	window := f.end(f.told[0].at.Truncate(time.Second) + far)
	equal(f.t, "it is one window", r.Window, window)
	c.Window, c.Granted, c.Returned = window, r.Granted, r.Returned
	c.Total, c.Used = r.Total, f.limit.Tokens-r.Remaining
}

// replica is a store that missed the last operations.
func (f *failover) replica(lag int) *bench {
	f.t.Helper()
	b := newBench(f.t, f.store, f.limit)
	b.base = f.base
	for _, op := range f.told[:len(f.told)-lag] {
		b.sync(op.at, op.SyncRequest)
	}
	return b
}

func (b *bench) used(at time.Duration) int64 {
	return b.limit.Tokens - must(b.store.Check(b.at(at), b.key, b.limit))(b.t).Remaining
}

// granted is what the primary charged in the last operations.
func (f *failover) granted(lag int) (n int64) {
	for _, op := range f.told[len(f.told)-lag:] {
		n += op.charged
	}
	return n
}

// goOn lets clients order from the replica until nothing remains, and returns
// what they hold then. Some speak often, and some late.
func (f *failover) goOn(replica *bench, clients []backend.SyncRequest, seed uint64) int64 {
	f.t.Helper()
	clients = append([]backend.SyncRequest(nil), clients...)
	rnd := rand.New(rand.NewPCG(seed, 1))
	order := func(c *backend.SyncRequest) int64 {
		f.now += time.Duration(rnd.IntN(100)) * time.Millisecond
		r := replica.sync(f.now, f.wish(*c, rnd))
		f.hear(c, r)
		return r.Grant
	}
	for idle := 0; idle < failoverSize; idle++ {
		if order(&clients[min(rnd.IntN(failoverSize), rnd.IntN(failoverSize))]) > 0 {
			idle = 0
		}
	}
	for had := int64(1); had > 0; { // the silent ones
		had = 0
		for i := range clients {
			had += order(&clients[i])
		}
	}
	return held(clients)
}

// strangers are clients of whom nobody knows anything. They speak in names of
// their own: in the old ones, the ledger would hand over once more what they had
// been granted.
func strangers(clients []backend.SyncRequest) (list []backend.SyncRequest) {
	for _, c := range clients {
		list = append(list, backend.SyncRequest{Client: c.Client + "'"})
	}
	return list
}

func held(clients []backend.SyncRequest) (n int64) {
	for _, c := range clients {
		n += c.Granted - c.Returned
	}
	return n
}

// Package backendtest is the conformance suite for implementations of [backend.Store], in
// this module and others. It has scripts of calls with their exact replies, which a reader
// can check by eye; random calls, whose replies must be those of the module's own counter; calls of clients
// that keep the rules, judged by a model that knows only who spent what when; faulty and hostile
// requests; and concurrent calls.
//
//	func TestStore(t *testing.T) {
//		s := mystore.New(client, mystore.WithClock(backendtest.Now))
//		backendtest.Run(t, func(*testing.T) backend.Store { return s })
//	}
//
// No test waits. Each call's context carries the time of the call, and [Now] reads it. A
// store needs nothing else from this package, and only in its test. It uses Now as its
// clock, or passes the time to its server. (The stores of this module read the same time
// without Now, so that a decorator passes it on.) The times are near the real time or an hour
// later, in windows of half a minute or more, because a server may delete, by its own clock,
// a window that is over by the test's clock.
//
// A store may have methods by which the suite loses its data, one part at a time: see Loser.
//
// The package is exported because a store outside this module must grant exactly the same
// numbers as the stores inside. Otherwise a fleet in which both serve a key is unfair.
// With the scripts in package lua, such a store is no more than a client. This package's
// own tests show what holds for any store that passes, for example that a failover
// exceeds the limit by no more than the replica has missed.
package backendtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// Run runs the suite. It calls newStore once per test. newStore may return the same store
// each time, because every test has keys of its own.
func Run(t *testing.T, newStore func(t *testing.T) backend.Store) {
	t.Helper()
	runScripts(t, newStore)
	for name, run := range map[string]func(t testing.TB, s backend.Store){
		"Faults":          testFaults,
		"FaultsOfRolling": testFaultsOfRolling,
		"Inspect":         testInspect,
		"Counters":        testCounters,
		"HostileKeys":     testHostileKeys,
		"HostileClients":  testHostileClients,
		"ContextOver":     testContextOver,
		"CalledAtOnce":    testCalledAtOnce,
		"ConcurrentSync":  testConcurrentSync,
		"ConcurrentReset": testConcurrentReset,
		"Random":          testRandom,
		"Judged":          testJudged,
	} {
		t.Run(name, func(t *testing.T) { run(t, newStore(t)) })
	}
}

// Loser is an optional interface of a store under test: each method deletes a part of one counter, as
// a server does that evicts one key. counter is [backend.Limit.Counter]. A rolling limit has one part, which LoseRing deletes; the
// others are those of other limits.
type Loser interface {
	LoseCount(ctx context.Context, key, counter string) error
	LoseEnd(ctx context.Context, key, counter string) error
	LoseLedger(ctx context.Context, key, counter string) error
	LoseRing(ctx context.Context, key, counter string) error
}

// Now returns the time that a store under test must use for a call: the time that the
// suite has put into ctx or, if there is none, the machine's.
func Now(ctx context.Context) time.Time {
	if now, ok := storeclock.From(ctx); ok {
		return now
	}
	return time.Now()
}

// far is the length of the window in most tests.
const far = time.Minute

// limit10 is 10 tokens a minute.
var limit10 = backend.Limit{Tokens: 10, Window: far}

// bench is a store, one key of it, and an instant from which tests count.
type bench struct {
	t     testing.TB
	store backend.Store
	key   string
	limit backend.Limit
	base  time.Time                       // a whole second, as windows end at one
	mail  map[string]chan backend.Message // to processes that listen
	heard int64                           // how often they were asked what they heard
	seqs  map[string]int64                // of the clients' last statements about the key
}

func newBench(t testing.TB, s backend.Store, l backend.Limit) *bench {
	return &bench{t: t, store: s, key: newKey(), limit: l, base: time.Now().Truncate(time.Second)}
}

var (
	process = rand.Text()[:8]
	keys    atomic.Int64
)

// newKey returns a key that no other test uses, in this process or another. To a client
// that goes on with its statements, the key looks like a store that has lost all its data.
func newKey() string { return fmt.Sprintf("suite:%s:%d", process, keys.Add(1)) }

// end returns the window without a Reset that ends d after the base.
func (b *bench) end(d time.Duration) backend.Window { return backend.Window{End: b.ms(d)} }

// ms is an instant in Unix ms.
func (b *bench) ms(d time.Duration) int64 { return b.base.Add(d).UnixMilli() }

// at returns a context under which the store's clock shows d after the base.
func (b *bench) at(d time.Duration) context.Context {
	return storeclock.With(b.t.Context(), b.base.Add(d))
}

// sync makes a statement about the bench's key. It is the client's next one if it has no number.
func (b *bench) sync(d time.Duration, q backend.Statement) backend.Reply {
	b.t.Helper()
	q.Key, q.Limit = b.key, b.limit
	if q.Client != "" {
		b.number(&q)
	}
	return must(b.store.Sync(b.at(d), q))(b.t)
}

// number gives a statement its life and number.
func (b *bench) number(q *backend.Statement) {
	if b.seqs == nil {
		b.seqs = make(map[string]int64)
	}
	of := b.account(q.Client)
	if q.Life == 0 {
		q.Life = 1
	}
	if q.Seq == 0 {
		q.Seq = b.seqs[of] + 1
	}
	b.seqs[of] = max(b.seqs[of], q.Seq)
}

// account names a client's account.
func (b *bench) account(client string) string { return fmt.Sprint(b.key, b.limit.Counter(), client) }

// must returns the result of a call, and fails the test if the call returned an error.
func must[T any](got T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}

// equal fails the test unless got is want.
func equal[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

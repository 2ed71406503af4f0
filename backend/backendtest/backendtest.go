// Package backendtest is the one conformance suite for implementations of
// backend.Store, of this module and of others: scripts of calls with their exact
// replies, which a reader can check by eye; random walks whose every reply is
// compared with the module's own counter; faulty and hostile requests; and calls at
// the same time.
//
//	func TestStore(t *testing.T) {
//		s := mystore.New(client, mystore.WithClock(backendtest.Now))
//		backendtest.Run(t, func(*testing.T) backend.Store { return s })
//	}
//
// No test waits. Each call carries the instant at which it is made, and [Now] reads it:
// that is all that a store has to take from this package, in its test only, be it as its
// clock or as an argument of what it runs on a server. (The stores of this module read
// the same instant without it, so that a decorator passes it on.) The instants lie near
// the real one, in windows of a minute or more, for a store may let a server delete by
// the server's clock what is over by the test's.
//
// The package is exported because a store outside this module must grant the same
// numbers as those inside, to the token, or a fleet in which both serve a key is unfair;
// and package lua, with its scripts, makes such a store no more than a client.
// What is true of any store that passes, such as that no failover is over the limit by
// more than the replica has missed, is tested once, in the tests of this package.
package backendtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/storeclock"
)

// Run runs the suite. newStore is called once per test and may return the same
// store each time: every test has keys of its own.
func Run(t *testing.T, newStore func(t *testing.T) backend.Store) {
	t.Helper()
	runScripts(t, newStore)
	tests := []struct {
		name string
		run  func(t *testing.T, s backend.Store)
	}{
		{"Faults", testFaults},
		{"HostileKeys", testHostileKeys},
		{"HostileClients", testHostileClients},
		{"ContextOver", testContextOver},
		{"ConcurrentTake", testConcurrentTake},
		{"ConcurrentSync", testConcurrentSync},
		{"ConcurrentReset", testConcurrentReset},
		{"Walk", func(t *testing.T, s backend.Store) { walkAll(t, s, false) }},
		{"WalkWithLoss", func(t *testing.T, s backend.Store) { walkAll(t, s, true) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, newStore(t)) })
	}
}

// Now returns what a store under test must take for the time of a call: the instant that
// the suite gave it, or the machine's for a context that has none.
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
	base  time.Time // a whole second, as windows end at one
}

func newBench(t testing.TB, s backend.Store, l backend.Limit) *bench {
	return &bench{t: t, store: s, key: newKey(), limit: l, base: time.Now().Truncate(time.Second)}
}

var (
	process = rand.Text()[:8]
	keys    atomic.Int64
)

// newKey returns a key that no other test, of this process or another one, uses.
// For a client that goes on with its statements, it is a store that has lost everything.
func newKey() string { return fmt.Sprintf("suite:%s:%d", process, keys.Add(1)) }

// end returns the window that ends d after the base.
func (b *bench) end(d time.Duration) backend.Window {
	return backend.Window(b.base.Add(d).UnixMilli())
}

// at returns a context under which the store's clock shows d after the base.
func (b *bench) at(d time.Duration) context.Context {
	return storeclock.With(b.t.Context(), b.base.Add(d))
}

func (b *bench) takeRequest(n int64) backend.TakeRequest {
	return backend.TakeRequest{Key: b.key, Limit: b.limit, Tokens: n}
}

// sync makes a statement about the bench's key.
func (b *bench) sync(d time.Duration, r backend.SyncRequest) backend.SyncReply {
	b.t.Helper()
	r.Key, r.Limit = b.key, b.limit
	return must(b.store.Sync(b.at(d), r))(b.t)
}

// must returns what a call returned, and fails the test if that is an error.
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
func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

// Package backendtest is the one conformance suite for implementations of
// backend.Store: the exact answers to sequences that a reader can check by eye,
// and a random walk whose every reply is compared with a simple model.
//
// No test waits. Each passes its own now, by internal/storeclock, so the suite
// is for the stores of this module and decorators over them. The instants lie
// near the real one, in windows of a minute or more, for a store may let a
// server delete by the server's clock what is over by the test's.
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
	tests := []struct {
		name string
		run  func(t *testing.T, s backend.Store)
	}{
		{"Take", testTake},
		{"Edge", testEdge},
		{"Check", testCheck},
		{"Refund", testRefund},
		{"Clock", testClock},
		{"LimitChanges", testLimitChanges},
		{"Lengths", testLengths},
		{"Calendar", testCalendar},
		{"Grant", testGrant},
		{"Peers", testPeers},
		{"Pace", testPace},
		{"Prior", testPrior},
		{"GrantsShrink", testGrantsShrink},
		{"ToldTwice", testToldTwice},
		{"Statements", testStatements},
		{"LostReply", testLostReply},
		{"GiveBack", testGiveBack},
		{"Roll", testRoll},
		{"Lasted", testLasted},
		{"Mixed", testMixed},
		{"Least", testLeast},
		{"Debt", testDebt},
		{"Leaving", testLeaving},
		{"Reassert", testReassert},
		{"Adopt", testAdopt},
		{"Learning", testLearning},
		{"Carry", testCarry},
		{"CarryBothReturned", testCarryBothReturned},
		{"CarryAfterClockBack", testCarryAfterClockBack},
		{"Total", testTotal},
		{"Failover", testFailover},
		{"Huge", testHuge},
		{"Faults", testFaults},
		{"HostileKeys", testHostileKeys},
		{"HostileClients", testHostileClients},
		{"ContextOver", testContextOver},
		{"ConcurrentTake", testConcurrentTake},
		{"ConcurrentSync", testConcurrentSync},
		{"Walk", testWalk},
		{"WalkWithLoss", testWalkWithLoss},
		{"Inspect", testInspect},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(t, newStore(t)) })
	}
}

// far is the length of the window in most tests.
const far = time.Minute

// limit10 and limit1000 are 10 and 1000 tokens a minute.
var (
	limit10   = backend.Limit{Tokens: 10, Window: far}
	limit1000 = backend.Limit{Tokens: 1000, Window: far}
)

// bench is a store, one key of it, and an instant from which tests count.
type bench struct {
	t        testing.TB
	store    backend.Store
	key      string
	limit    backend.Limit
	dated    bool          // windows that open have an end by a calendar:
	calendar time.Duration // its time after the base
	base     time.Time     // a whole second, as windows end at one
}

func newBench(t testing.TB, s backend.Store, l backend.Limit) *bench {
	return &bench{t: t, store: s, key: newKey(), limit: l, base: time.Now().Truncate(time.Second)}
}

var (
	process = rand.Text()[:8]
	keys    atomic.Int64
)

// newKey returns a key that no other test, of this process or another one, uses.
func newKey() string { return fmt.Sprintf("suite:%s:%d", process, keys.Add(1)) }

// elsewhere is b with another key: for a client that goes on with its
// statements, a store that has lost everything.
func (b *bench) elsewhere() *bench {
	other := *b
	other.key = newKey()
	return &other
}

// end returns the window that ends d after the base.
func (b *bench) end(d time.Duration) backend.Window {
	return backend.Window(b.base.Add(d).UnixMilli())
}

// at returns a context under which the store's clock shows d after the base.
func (b *bench) at(d time.Duration) context.Context {
	return storeclock.With(b.t.Context(), b.base.Add(d))
}

func (b *bench) take(d time.Duration, n int64) backend.TakeReply {
	b.t.Helper()
	r, err := b.store.Take(b.at(d), backend.TakeRequest{Key: b.key, Limit: b.limit, Tokens: n, End: b.calendarEnd()})
	b.must(err)
	return r
}

func (b *bench) check(d time.Duration) backend.State {
	b.t.Helper()
	s, err := b.store.Check(b.at(d), b.key, b.limit)
	b.must(err)
	return s
}

// refund is that of client r.
func (b *bench) refund(d time.Duration, w backend.Window, n int64) int64 {
	b.t.Helper()
	return b.refundOf(d, "r", w, n)
}

func (b *bench) refundOf(d time.Duration, client string, w backend.Window, total int64) int64 {
	b.t.Helper()
	known, err := b.store.Refund(b.at(d), backend.RefundRequest{Key: b.key, Client: client, Window: w, Total: total})
	b.must(err)
	return known
}

// calendarEnd is the end of a window that opens, if there is a calendar.
func (b *bench) calendarEnd() backend.Window {
	if !b.dated {
		return 0
	}
	return b.end(b.calendar)
}

// say is a statement whose window is given by its end after the base.
type say struct {
	client  string
	window  time.Duration // 0 = none
	g, b    int64         // granted, returned
	debt    int64
	want    int64
	need    int64
	least   int64
	strand  int64
	peers   int64
	pace    int64
	total   int64
	used    int64
	leaving bool
}

func (b *bench) request(s say) backend.SyncRequest {
	r := backend.SyncRequest{
		Key: b.key, Client: s.client, Limit: b.limit, Granted: s.g, Returned: s.b,
		Want: s.want, Need: s.need, Strand: s.strand, Peers: s.peers, Pace: s.pace, Total: s.total, Used: s.used,
		Debt: s.debt, Least: s.least, Leaving: s.leaving, End: b.calendarEnd(),
	}
	if s.window != 0 {
		r.Window = b.end(s.window)
	}
	return r
}

// sync leaves the total out of the reply, which is a matter of testTotal.
func (b *bench) sync(d time.Duration, s say) backend.SyncReply {
	b.t.Helper()
	r := b.ask(d, s)
	r.Total = 0
	return r
}

func (b *bench) ask(d time.Duration, s say) backend.SyncReply {
	b.t.Helper()
	r, err := b.store.Sync(b.at(d), b.request(s))
	b.must(err)
	return r
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// left expects what a Check at d says to remain.
func (b *bench) left(d time.Duration, want int64) {
	b.t.Helper()
	if got := b.check(d).Remaining; got != want {
		b.t.Fatalf("%d tokens remain at %v, want %d", got, d, want)
	}
}

// equal fails the test unless got is want.
func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s:\n got %+v\nwant %+v", what, got, want)
	}
}

package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testStatements: a ledger that is told the same thing again, in any order.
func testStatements(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit1000)
	x := say{client: "x", want: 100, need: 100, strand: -1}
	hears := func(what string, at time.Duration, x say, grant, recovered, granted, remaining int64) {
		t.Helper()
		equal(t, what, b.sync(at, x), backend.SyncReply{
			State:   backend.State{Window: b.end(far), Left: far - at, Remaining: remaining},
			Granted: granted, Grant: grant, Recovered: recovered, Clients: 1,
		})
	}
	hears("first", 0, x, 100, 0, 100, 900)
	hears("told again: the same 100, free", time.Second, x, 100, 100, 100, 900)
	hears("and again", 2*time.Second, x, 100, 100, 100, 900)
	y := say{client: "x", window: far, g: 100, want: 50, strand: -1}
	hears("goes on", 3*time.Second, y, 50, 0, 150, 850)
	hears("the first one, late", 4*time.Second, x, 150, 150, 150, 850)
	hears("the second one, late", 5*time.Second, y, 50, 50, 150, 850)
	hears("only stating", 6*time.Second, say{client: "x", window: far, g: 150}, 0, 0, 150, 850)
	hears("a late one that wanted more than was unheard", 7*time.Second,
		say{client: "x", window: far, g: 100, want: 80, strand: -1}, 80, 50, 180, 820)
	hears("open up to its end", far, say{client: "x", window: far, g: 180}, 0, 0, 180, 820)
}

// testLostReply: what a lost reply granted is handed over by the next statement,
// with whatever it wants, and charged once.
func testLostReply(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.sync(0, say{client: "x", want: 4, strand: -1}) // not heard
	got := b.sync(time.Second, say{client: "x"})     // it still knows no window
	equal(t, "grant", got.Grant, 4)
	equal(t, "recovered", got.Recovered, 4)
	b.left(time.Second, 6)

	x := say{client: "x", window: far, g: 4, want: 6, strand: -1}
	b.sync(2*time.Second, x) // not heard; nothing remains
	got = b.sync(3*time.Second, x)
	equal(t, "grant, from an exhausted limit", got.Grant, 6)
	equal(t, "recovered", got.Recovered, 6)
	equal(t, "remaining", got.Remaining, 0)
	b.limit.Tokens = 5 // and from a lowered one
	equal(t, "grant", b.sync(4*time.Second, x).Grant, 6)
}

// testGiveBack: once, however often it is told.
func testGiveBack(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.sync(0, say{client: "x", want: 8, strand: -1})
	b.sync(0, say{client: "y", want: 2, strand: -1})
	back := say{client: "x", window: far, g: 8, b: 3}
	for range 3 {
		got := b.sync(time.Second, back)
		equal(t, "returned", got.Returned, 3)
		equal(t, "granted", got.Granted, 8)
		equal(t, "clients", got.Clients, 2)
		equal(t, "remaining", got.Remaining, 3)
	}
	late := b.sync(2*time.Second, say{client: "x", window: far, g: 8}) // from before the give-back
	equal(t, "returned", late.Returned, 3)
	equal(t, "remaining", late.Remaining, 3)

	equal(t, "to another client", b.sync(3*time.Second, say{client: "y", window: far, g: 2, want: 3, strand: -1}).Grant, 3)
	got := b.sync(3*time.Second, say{client: "x", window: far, g: 8, b: 8, want: 2, strand: -1})
	equal(t, "give back and get in one", got.Grant, 2)
	equal(t, "granted", got.Granted, 10)
	equal(t, "returned", got.Returned, 8)
	equal(t, "remaining", got.Remaining, 3)
	got = b.sync(4*time.Second, say{client: "x", window: far, g: 10, b: 10})
	equal(t, "all of it", got.Remaining, 5)
	equal(t, "it stays open", b.sync(5*time.Second, say{client: "z", want: 5, strand: -1}).Window, b.end(far))
}

// testRoll: with the window ends what was granted in it.
func testRoll(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.sync(0, say{client: "x", want: 8, strand: -1})
	equal(t, "no wish opens no window", b.sync(61*time.Second, say{client: "x", window: far, g: 8, b: 2}),
		backend.SyncReply{State: backend.State{Remaining: 10}, Clients: 1})
	got := b.sync(62*time.Second, say{client: "x", window: far, g: 8, b: 2, want: 3, strand: -1})
	equal(t, "a dead statement", got, backend.SyncReply{
		State: backend.State{Window: b.end(122 * time.Second), Left: far, Remaining: 7},
		Grant: 3, Granted: 3, Clients: 1,
	})
	got = b.sync(63*time.Second, say{client: "y", window: far, g: 10, want: 7, strand: -1})
	equal(t, "a dead statement of another client", got, backend.SyncReply{
		State: backend.State{Window: b.end(122 * time.Second), Left: 59 * time.Second},
		Grant: 7, Granted: 7, Clients: 2, Lasted: time.Second,
	})
	got = b.sync(64*time.Second, say{client: "x", window: far, g: 8, b: 2, want: 3, strand: -1})
	equal(t, "the dead statement once more: a lost reply", got, backend.SyncReply{
		State: backend.State{Window: b.end(122 * time.Second), Left: 58 * time.Second},
		Grant: 3, Recovered: 3, Granted: 3, Clients: 2, Lasted: time.Second,
	})
}

// testMixed: ledger and direct calls share one count.
func testMixed(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	equal(t, "grant", b.sync(0, say{client: "x", want: 4, strand: -1}).Grant, 4)
	equal(t, "take", b.take(0, 7).Allowed, false)
	equal(t, "take", b.take(0, 6).Allowed, true)
	equal(t, "sync", b.sync(0, say{client: "x", window: far, g: 4, want: 1, need: 1}).Grant, 0)
	equal(t, "refund", b.refund(0, b.end(far), 2), 2)
	equal(t, "sync", b.sync(0, say{client: "x", window: far, g: 4, want: 5, strand: -1}).Grant, 2)
	// A window that a direct call opened has no ledger yet.
	b = b.elsewhere()
	equal(t, "take", b.take(0, 6).Allowed, true)
	got := b.sync(time.Second, say{client: "x", want: 9, strand: -1})
	equal(t, "sync", got.Grant, 4)
	equal(t, "clients", got.Clients, 1)
	// Nor has the next one, though the last had.
	equal(t, "take", b.take(61*time.Second, 1).Window, b.end(121*time.Second))
	got = b.sync(62*time.Second, say{client: "y", window: far, want: 2, strand: -1})
	equal(t, "granted", got.Granted, 2)
	equal(t, "clients", got.Clients, 1)
}

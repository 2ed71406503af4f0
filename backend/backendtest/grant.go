package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testGrant: the first grant of client x after others hold what they hold. With
// rest tokens left of 1000 and used = 1000 - rest charged, p clients, h held by
// x: n0 = 1, share = (h + 1) / (used + p), floor = strand/p,
// cap = max(rest·share/1.5, floor), grant = min(max(want, floor), max(cap, need), rest).
func testGrant(t *testing.T, s backend.Store) {
	for _, row := range []struct {
		what               string
		mine, others       int64 // charged already: to x, to client o
		want, need, strand int64
		grant              int64
	}{
		{"all to itself: 1000/1.5", 0, 0, 1000, 0, 10, 666},
		{"no more than it wants", 0, 0, 50, 0, 10, 50},
		{"what is needed, though more than the cap", 0, 0, 1000, 900, 10, 900},
		{"need is capped by what remains", 0, 0, 1000, 1000, 0, 1000},
		{"a small wish is topped up to the floor", 0, 0, 1, 1, 10, 10},
		{"no wish, no grant", 0, 0, 0, 0, 10, 0},
		{"a small wish, nothing may be stranded", 0, 0, 5, 0, 0, 5},
		{"as it is", 0, 0, 1000, 0, -1, 1000},
		{"its own 400 of 400: 600·1/1.5", 400, 0, 1000, 0, 10, 400},
		{"newcomer: 600·(1/402)/1.5 < 10/2", 0, 400, 1000, 0, 10, 5},
		{"newcomer who needs", 0, 400, 1000, 7, 10, 7},
		{"newcomer, nothing may be stranded", 0, 400, 1000, 0, 0, 0},
		{"newcomer, nothing stranded but a need", 0, 400, 1000, 1, 0, 1},
		{"half each: 600·(201/402)/1.5", 200, 200, 1000, 0, 10, 200},
		{"three quarters: 600·(301/402)/1.5 = 299.50", 300, 100, 1000, 0, 10, 299},
		{"a quarter: 600·(101/402)/1.5 = 100.49", 100, 300, 1000, 0, 10, 100},
		{"nearly empty: 10·(500/992)/1.5 = 3.4, floor 5", 499, 491, 1000, 0, 10, 5},
		{"nearly empty: 3 left, floor 5", 500, 497, 1000, 0, 10, 3},
		{"empty", 500, 500, 1000, 100, 10, 0},
		{"as it is, up to the rest", 500, 400, 1000, 0, -1, 100},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, limit1000)
			if row.others > 0 {
				b.sync(0, say{client: "o", want: row.others, strand: -1})
			}
			x := say{client: "x", want: row.want, need: row.need, strand: row.strand}
			if row.mine > 0 {
				equal(t, "first", b.sync(0, say{client: "x", want: row.mine, strand: -1}).Grant, row.mine)
				x.window, x.g = far, row.mine
			}
			got := b.sync(time.Second, x)
			equal(t, "grant", got.Grant, row.grant)
			equal(t, "granted", got.Granted, row.mine+row.grant)
			rest := 1000 - row.mine - row.others - row.grant
			equal(t, "remaining", got.Remaining, rest)
			b.left(time.Second, rest)
		})
	}
}

// testGrantsShrink: one client's eager orders, each of all that remains, taper
// off: two thirds of the rest, down to the floor.
func testGrantsShrink(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit1000)
	x := say{client: "x", want: 1000, strand: 10}
	for _, grant := range []int64{666, 222, 74, 25, 10, 3, 0, 0} {
		got := b.sync(time.Second, x)
		equal(t, "grant", got.Grant, grant)
		x.window, x.g = 61*time.Second, x.g+got.Grant
	}
	equal(t, "all of it", x.g, 1000)
	first := b.elsewhere()
	first.limit.Tokens = 5_000_000 // n0 = 5000
	o := first.sync(0, say{client: "o", want: 2_000_000, strand: -1})
	equal(t, "o", o.Grant, 2_000_000)
	// 3,000,000 · 5000/(2,000,000 + 5000·2) / 1.5 = 4975.1
	got := first.sync(0, say{client: "x", want: 1_000_000})
	equal(t, "a newcomer's share", got.Grant, 4975)
	equal(t, "clients", got.Clients, 2)
}

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
		Grant: 7, Granted: 7, Clients: 2,
	})
	got = b.sync(64*time.Second, say{client: "x", window: far, g: 8, b: 2, want: 3, strand: -1})
	equal(t, "the dead statement once more: a lost reply", got, backend.SyncReply{
		State: backend.State{Window: b.end(122 * time.Second), Left: 58 * time.Second},
		Grant: 3, Recovered: 3, Granted: 3, Clients: 2,
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

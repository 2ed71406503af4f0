package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testLeast: a request of several tokens gets all of them or none, so that no client
// hoards what it cannot use.
func testLeast(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.take(0, 7)
	for _, row := range []struct {
		what              string
		want, need, least int64
		grant, remain     int64
	}{
		{"4 of 3", 9, 9, 4, 0, 3},
		{"the same again", 9, 9, 4, 0, 3},
		{"3 of 3", 9, 9, 3, 3, 0},
		{"1 of none", 9, 9, 1, 0, 0},
	} {
		got := b.sync(0, say{client: row.what, want: row.want, need: row.need, least: row.least, strand: -1})
		equal(t, row.what, got.Grant, row.grant)
		equal(t, row.what, got.Remaining, row.remain)
	}

	// What a lost reply granted is handed over all the same, and counts.
	b = b.elsewhere()
	b.take(0, 5)
	x := say{client: "x", want: 3, need: 3, least: 3, strand: -1}
	equal(t, "granted", b.sync(0, x).Grant, 3)
	equal(t, "told again", b.sync(0, x).Grant, 3)
	x.want, x.need, x.least = 6, 6, 6
	equal(t, "6 of 3 + 2", b.sync(0, x).Grant, 3)
	x.want, x.need, x.least = 5, 5, 5
	equal(t, "5 of 3 + 2", b.sync(0, x).Grant, 5)
}

// testDebt: tokens that were used without a grant are charged once, also above the
// limit, and are no sign of loss.
func testDebt(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.sync(0, say{client: "x", want: 2, strand: -1})
	for _, row := range []struct {
		what                 string
		client               string
		g, debt              int64
		known, total, remain int64
	}{
		{"some", "x", 2, 3, 3, 5, 5},
		{"the same, told again", "x", 2, 3, 3, 5, 5},
		{"an earlier statement, late", "x", 2, 1, 3, 5, 5},
		{"more", "x", 2, 5, 5, 7, 3},
		{"another client's", "y", 0, 1, 1, 8, 2},
		{"more than remains", "y", 0, 9, 9, 16, 0},
	} {
		got := b.ask(time.Second, say{client: row.client, window: far, g: row.g, debt: row.debt})
		equal(t, row.what, got.Debt, row.known)
		equal(t, row.what, got.Total, row.total)
		equal(t, row.what, got.Remaining, row.remain)
		equal(t, row.what, got.Learning, false)
		equal(t, row.what, got.Reasserted+got.Grant, 0)
	}
	// 16 are used of 10: what comes back does not make room before it is less than that.
	equal(t, "given back", b.sync(2*time.Second, say{client: "x", window: far, g: 2, b: 2, debt: 5}).Remaining, 0)
	b.limit.Tokens = 20
	b.left(2*time.Second, 6)

	// Debt of a window that is over is nobody's any more.
	got := b.sync(61*time.Second, say{client: "x", window: far, g: 2, b: 2, debt: 5, want: 1, need: 1, strand: -1})
	equal(t, "debt", got.Debt, 0)
	equal(t, "remaining", got.Remaining, 19)

	// Debt of a window that still runs elsewhere is carried with what is held there, as a grant.
	b = b.elsewhere()
	b.take(5*time.Second, 1)
	for range 2 {
		got = b.sync(6*time.Second, say{client: "x", window: far, g: 5, b: 2, debt: 4})
		equal(t, "carried", got.Carried, true)
		equal(t, "granted", got.Granted, 7)
		equal(t, "debt", got.Debt, 0)
		equal(t, "20 - 1 - 7", got.Remaining, 12)
	}
}

// testLeaving: who leaves does not count until it asks again. Who was refused does.
func testLeaving(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	count := func(what string, x say, clients int64) {
		t.Helper()
		equal(t, what, b.sync(time.Second, x).Clients, clients)
	}
	equal(t, "x takes all", b.sync(0, say{client: "x", want: 10, strand: -1}).Clients, 1)
	count("y is refused", say{client: "y", want: 1, need: 1}, 2)
	count("and counts", say{client: "x", window: far, g: 10}, 2)
	count("once", say{client: "y", window: far, want: 1, need: 1}, 2)
	count("who only looks counts itself", say{client: "z"}, 3)
	count("and nobody else counts it", say{client: "x", window: far, g: 10}, 2)
	count("x leaves", say{client: "x", window: far, g: 10, b: 1, leaving: true}, 1)
	count("twice", say{client: "x", window: far, g: 10, b: 1, leaving: true}, 1)
	count("y is alone", say{client: "y", window: far, want: 1, need: 1}, 1)
	count("a stranger leaves", say{client: "z", want: 1, leaving: true}, 1)
	count("x is back", say{client: "x", window: far, g: 10, b: 1}, 2)
	count("and stays", say{client: "y", window: far, g: 1}, 2)
	b.left(time.Second, 0)
}

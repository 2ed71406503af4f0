package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testTotal: a client knows how much all have been granted, and tells a store that
// has forgotten it. Nobody's tokens are charged twice when they then speak for
// themselves.
func testTotal(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit1000)
	total := func(at time.Duration, x say, total, remaining int64, learning bool) {
		t.Helper()
		got := b.ask(at, x)
		equal(t, "total", got.Total, total)
		equal(t, "remaining", got.Remaining, remaining)
		equal(t, "learning", got.Learning, learning)
	}
	x := say{client: "x", want: 300, strand: -1}
	total(0, x, 300, 700, false)
	total(0, x, 300, 700, false) // handed over again
	b.take(0, 100)
	total(0, say{client: "y", want: 200, strand: -1}, 500, 400, false)
	total(0, say{client: "y", window: far, g: 200, b: 50}, 550, 450, false) // it never shrinks
	total(time.Second, say{client: "x", window: far, g: 300, total: 500, used: 600}, 550, 450, false)

	// All is lost. x knows of its own 300 and of 250 more: 100 are a direct call's.
	b = b.elsewhere()
	x = say{client: "x", window: far, g: 300, total: 500, used: 550}
	total(2*time.Second, x, 500, 450, true)
	total(2*time.Second, x, 500, 450, true) // told twice, it is charged once
	y := say{client: "y", window: far, g: 200, b: 50, total: 500, used: 600}
	got := b.ask(2*time.Second, y)
	equal(t, "y has them again", got.Reasserted, 200)
	equal(t, "and they were charged already", got.Remaining, 450)
	total(10*time.Second, say{client: "x", window: far, g: 300, total: 500, used: 400}, 550, 450, false)

	// Who knows less, or of another window, changes nothing.
	total(11*time.Second, say{client: "z", window: far, total: 499, used: 999}, 550, 450, false)
	total(11*time.Second, say{client: "z", window: 50 * time.Second, total: 900, used: 900}, 550, 450, false)

	// A replica that lags takes over: it knows of everybody, but not the last of it.
	// The one to speak was granted nothing of that.
	total(11*time.Second, say{client: "z", window: far, total: 800, used: 1000}, 800, 0, true)
	equal(t, "a refusal", b.take(12*time.Second, 1).Allowed, false)
	got = b.ask(13*time.Second, say{client: "w2", window: far, g: 300, total: 800, used: 1000})
	equal(t, "they were charged already", got.Remaining, 0)
	equal(t, "and are known again", got.Reasserted, 300)

	// More than was known of is charged beside it: 250 of v's 300 are.
	total(14*time.Second, say{client: "v", window: far, g: 300}, 850, 0, false)
	total(20*time.Second, say{client: "v", window: far, g: 300, b: 50}, 900, 0, false)
	total(20*time.Second, say{client: "v", window: far, g: 300, b: 51}, 901, 1, false)

	// What x gave back was granted to y, and the replica heard of neither. It is not
	// granted once more, to x that is the first to speak, but for what callers need.
	b = b.elsewhere()
	b.ask(21*time.Second, say{client: "x", window: far, g: 700})
	b.ask(21*time.Second, say{client: "y", window: far, g: 300})
	total(30*time.Second, say{client: "x", window: far, g: 700, b: 400, total: 1400, used: 600, want: 400, need: 1, strand: -1}, 1401, 399, true)
	total(30*time.Second, say{client: "y", window: far, g: 700}, 1801, 0, true)
}

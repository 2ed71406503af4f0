package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testLasted: when the limit was first used up is told to all, for the rest of
// the window.
func testLasted(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	lasted := func(what string, at time.Duration, x say, want time.Duration) {
		t.Helper()
		equal(t, what, b.sync(at, x).Lasted, want)
	}
	lasted("not used up", 0, say{client: "x", want: 6, strand: -1}, 0)
	lasted("all but one", 10*time.Second, say{client: "y", want: 3, strand: -1}, 0)
	lasted("the last one", 20*time.Second, say{client: "x", window: far, g: 6, want: 5, strand: -1}, 20*time.Second)
	lasted("later, to another", 30*time.Second, say{client: "y", window: far, g: 3}, 20*time.Second)
	lasted("to one who holds nothing", 30*time.Second, say{client: "z", want: 1, need: 1}, 20*time.Second)
	lasted("something comes back", 40*time.Second, say{client: "y", window: far, g: 3, b: 2}, 20*time.Second)
	lasted("and is used up again", 50*time.Second, say{client: "z", want: 2, strand: -1}, 20*time.Second)
	lasted("in the next window", 70*time.Second, say{client: "x", window: far, g: 7, want: 1, strand: -1}, 0)

	b = b.elsewhere()
	lasted("all at once is no time, but not never", 0, say{client: "x", want: 10, strand: -1}, time.Millisecond)

	// Direct calls keep no ledger: it is noted when a holder next speaks.
	b = b.elsewhere()
	b.sync(0, say{client: "x", want: 1, strand: -1})
	equal(t, "take", b.take(5*time.Second, 9).Allowed, true)
	lasted("one who has no account has no say", 6*time.Second, say{client: "z"}, 0)
	lasted("a holder", 7*time.Second, say{client: "x", window: far, g: 1}, 7*time.Second)
	lasted("then everybody", 8*time.Second, say{client: "z", want: 1, need: 1}, 7*time.Second)

	// A store that lost its data lost this too.
	b = b.elsewhere()
	lasted("some are told again", 10*time.Second, say{client: "x", window: far, g: 9}, 0)
	lasted("then all", 20*time.Second, say{client: "y", window: far, g: 1}, 20*time.Second)
}

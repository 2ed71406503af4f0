package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// A store that has lost its data is, for the clients that go on with their
// statements, one with another key: see bench.elsewhere.

// testReassert: holders tell a store that has lost its data what they hold.
func testReassert(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit1000)
	b.sync(0, say{client: "x", want: 400, strand: -1})
	b.sync(0, say{client: "y", want: 300, strand: -1})
	b = b.elsewhere()
	got := b.sync(time.Second, say{client: "x", window: far, g: 400, want: 100})
	equal(t, "x", got, backend.SyncReply{
		State:   backend.State{Window: b.end(far), Left: 59 * time.Second, Remaining: 600},
		Granted: 400, Clients: 1, Reasserted: 400, Learning: true,
	})
	got = b.sync(2*time.Second, say{client: "y", window: far, g: 300, b: 50, want: 100, need: 1})
	equal(t, "y: 1000 - 400 - 250 - 1", got, backend.SyncReply{
		State: backend.State{Window: b.end(far), Left: 58 * time.Second, Remaining: 349},
		Grant: 1, Granted: 301, Returned: 50, Clients: 2, Reasserted: 300, Learning: true,
	})
	got = b.sync(3*time.Second, say{client: "x", window: far, g: 400})
	equal(t, "again", got.Reasserted, 0)
	equal(t, "remaining", got.Remaining, 349)
	got = b.sync(4*time.Second, say{client: "x", window: far, g: 400, want: 10, strand: -1})
	equal(t, "learnt", got.Learning, false)
	equal(t, "grant", got.Grant, 10)

	// More is out than the limit: it is all charged, and nothing is granted.
	b = b.elsewhere()
	b.sync(0, say{client: "y", window: far, g: 900})
	got = b.sync(0, say{client: "x", window: far, g: 400, want: 5, need: 5})
	equal(t, "reasserted", got.Reasserted, 400)
	equal(t, "grant", got.Grant, 0)
	equal(t, "remaining", got.Remaining, 0)
	equal(t, "back within the limit", b.sync(4*time.Second, say{client: "x", window: far, g: 400, b: 300}).Remaining, 0)
	equal(t, "and below it", b.sync(4*time.Second, say{client: "x", window: far, g: 400, b: 301}).Remaining, 1)

	// A part was lost: a failover to a replica that lagged.
	b = b.elsewhere()
	b.sync(0, say{client: "x", want: 100, strand: -1})
	got = b.sync(time.Second, say{client: "x", window: far, g: 160, b: 20})
	equal(t, "reasserted", got.Reasserted, 60)
	equal(t, "remaining", got.Remaining, 860)
	equal(t, "learning", got.Learning, true)
}

// testAdopt: the window that a client holds goes on, if it still runs by the
// store's clock and is not longer than the limit allows.
func testAdopt(t *testing.T, s backend.Store) {
	const us = time.Microsecond
	for _, row := range []struct {
		what         string
		at           time.Duration
		spoken, want time.Duration
		adopted      bool
	}{
		{"runs", 10 * time.Second, far, far, true},
		{"ends now", far, far, far, true},
		{"is over", far + us, far, 2 * far, false},
		{"is long over", time.Hour, far, time.Hour + far, false},
		{"ends a little later than ours would", 0, 61 * time.Second, 61 * time.Second, true},
		{"ends much later than ours would", 0, 61*time.Second + time.Millisecond, far, false},
		{"is another limit's", 0, time.Hour, far, false},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, limit10)
			got := b.sync(row.at, say{client: "x", window: row.spoken, g: 4, b: 1, want: 2, need: 2})
			equal(t, "window", got.Window, b.end(row.want))
			equal(t, "learning", got.Learning, row.adopted)
			equal(t, "carried", got.Carried, false)
			want := backend.SyncReply{Grant: 2, Granted: 2}
			if row.adopted {
				want = backend.SyncReply{Grant: 2, Granted: 6, Returned: 1, Reasserted: 4}
			}
			equal(t, "grant", got.Grant, want.Grant)
			equal(t, "granted", got.Granted, want.Granted)
			equal(t, "returned", got.Returned, want.Returned)
			equal(t, "reasserted", got.Reasserted, want.Reasserted)
			equal(t, "remaining", got.Remaining, 10-want.Granted+want.Returned)
			equal(t, "a direct call", b.take(row.at, 1).Window, got.Window)
		})
	}
}

// testLearning: for a 20th of the window after a sign of loss, grants are what callers
// wait for, or a client's part of what may be stranded if that is more: so a crowd
// is served with one call of each process.
func testLearning(t *testing.T, s backend.Store) {
	grant := func(b *bench, at time.Duration, x say, learning bool, grant int64) {
		t.Helper()
		got := b.sync(at, x)
		equal(t, "learning", got.Learning, learning)
		equal(t, "grant", got.Grant, grant)
	}
	b := newBench(t, s, backend.Limit{Tokens: 5000, Window: far}) // n0 = 5
	grant(b, 0, say{client: "x", window: 50 * time.Second, g: 100, want: 90}, true, 0)
	y := say{client: "y", window: 50 * time.Second, want: 90, need: 3, strand: -1}
	grant(b, time.Second, y, true, 5)
	y.need, y.g = 80, 5
	grant(b, time.Second, y, true, 80)
	grant(b, time.Second, y, true, 80) // the reply was lost: handed over again
	y.need, y.g, y.strand = 0, 85, 40
	grant(b, time.Second, y, true, 20) // of two
	y.strand, y.g = -1, 105
	// One more holder does not start it anew.
	grant(b, 2*time.Second, say{client: "z", window: 50 * time.Second, g: 1}, true, 0)
	grant(b, 3*time.Second-time.Millisecond, y, true, 5)
	y.g = 110
	grant(b, 3*time.Second, y, false, 90)
	// One who speaks afterwards does.
	grant(b, 4*time.Second, say{client: "w2", window: 50 * time.Second, g: 1}, true, 0)
	grant(b, 7*time.Second-time.Millisecond, say{client: "v", want: 9, strand: -1}, true, 5)
	grant(b, 7*time.Second, say{client: "v", want: 9, strand: -1}, false, 9)
	// Direct calls are exact and go on.
	b = b.elsewhere()
	grant(b, 0, say{client: "x", window: far, g: 100}, true, 0)
	equal(t, "take", b.take(0, 4900).Allowed, true)

	// A client that was granted nothing, because the limit was exhausted, is
	// often the first to speak to a server that restarted empty.
	b = b.elsewhere()
	grant(b, 0, say{client: "x", window: 50 * time.Second, want: 90}, true, 0)
	got := b.take(time.Second, 1)
	equal(t, "its window is adopted all the same", got.Window, b.end(50*time.Second))
	grant(b, time.Second, say{client: "y", want: 90, need: 90}, true, 90)
	grant(b, 3*time.Second, say{client: "x", window: 50 * time.Second, want: 90}, false, 90)
}

// testCarry: the store lost its data and somebody else opened a window before
// the holder spoke. What it holds moves into that window.
func testCarry(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit1000)
	const ours, theirs = 50 * time.Second, 65 * time.Second
	b.take(5*time.Second, 100)
	old := say{client: "x", window: ours, g: 30, b: 10, want: 50, need: 1}
	got := b.sync(6*time.Second, old)
	equal(t, "carried", got, backend.SyncReply{
		State: backend.State{Window: b.end(theirs), Left: 59 * time.Second, Remaining: 879},
		Grant: 1, Granted: 21, Clients: 1, Reasserted: 20, Carried: true, Learning: true,
	})
	got = b.sync(7*time.Second, old)
	equal(t, "told again", got, backend.SyncReply{
		State: backend.State{Window: b.end(theirs), Left: 58 * time.Second, Remaining: 879},
		Grant: 1, Recovered: 1, Granted: 21, Clients: 1, Carried: true, Learning: true,
	})
	got = b.sync(8*time.Second, say{client: "x", window: theirs, g: 21, b: 5})
	equal(t, "goes on in their window", got.Remaining, 884)
	// The old statement once more, very late. What it holds of that window, 20,
	// is not what the store now has, 16: 4 are charged again, and one is granted.
	got = b.sync(9*time.Second, old)
	equal(t, "granted", got.Granted, 26)
	equal(t, "remaining", got.Remaining, 879)
	got = b.sync(10*time.Second, say{client: "x", window: theirs, g: 21, b: 5})
	equal(t, "nothing is lost", got.Recovered, 5)
	equal(t, "reasserted", got.Reasserted, 0)

	// After the end of its own window it holds nothing.
	got = b.sync(51*time.Second, say{client: "y", window: ours, g: 30, b: 10})
	equal(t, "dead", got, backend.SyncReply{
		State: backend.State{Window: b.end(theirs), Left: 14 * time.Second, Remaining: 879}, Clients: 2,
	})
	// One who holds nothing carries nothing.
	got = b.sync(12*time.Second, say{client: "z", window: ours, g: 30, b: 30})
	equal(t, "carried", got.Carried, false)
	equal(t, "remaining", got.Remaining, 879)
}

// testCarryBothReturned: the client is known in the other window too, and gave
// back in both.
func testCarryBothReturned(t *testing.T, s backend.Store) {
	const ours, theirs = 50 * time.Second, 60 * time.Second
	for _, row := range []struct {
		what                           string
		g, b                           int64 // of the other window
		granted, recovered, reasserted int64
		remaining                      int64
	}{
		// Known here: granted 50, returned 5, so 45 are out.
		{"holds less than is charged", 30, 10, 50, 25, 0, 955},
		{"holds just that", 60, 15, 50, 0, 0, 955},
		{"holds more", 80, 10, 75, 0, 25, 930},
		{"holds nothing", 10, 10, 50, 45, 0, 955},
		{"returned more there than was granted here", 100, 60, 50, 5, 0, 955},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, limit1000)
			b.sync(0, say{client: "x", want: 50, strand: -1})
			b.sync(0, say{client: "x", window: theirs, g: 50, b: 5})
			for i := range 2 {
				got := b.sync(time.Second, say{client: "x", window: ours, g: row.g, b: row.b})
				want := backend.SyncReply{
					State: backend.State{Window: b.end(theirs), Left: 59 * time.Second, Remaining: row.remaining},
					Grant: row.recovered, Recovered: row.recovered, Granted: row.granted, Returned: 5,
					Clients: 1, Carried: row.g > row.b, Learning: row.reasserted > 0, Reasserted: row.reasserted,
				}
				if i > 0 {
					want.Reasserted = 0
				}
				equal(t, "sync", got, want)
			}
		})
	}
}

// testCarryAfterClockBack: a window that was brought back starts a new ledger,
// and still counts what was charged.
func testCarryAfterClockBack(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.sync(0, say{client: "x", want: 4, strand: -1})
	b.sync(0, say{client: "y", want: 3, strand: -1})
	got := b.sync(-10*time.Second, say{client: "x", window: far, g: 4, want: 2, strand: -1})
	equal(t, "x", got, backend.SyncReply{
		State: backend.State{Window: b.end(50 * time.Second), Left: far, Remaining: 1},
		Grant: 2, Granted: 2, Clients: 1,
	})
	got = b.sync(-9*time.Second, say{client: "y", window: far, g: 3, want: 2, strand: -1})
	equal(t, "y: its window ends later than any can", got, backend.SyncReply{
		State: backend.State{Window: b.end(50 * time.Second), Left: 59 * time.Second},
		Grant: 1, Granted: 1, Clients: 2, Lasted: time.Second,
	})
	got = b.sync(-time.Second, say{client: "z", window: far, g: 3, want: 2, strand: -1})
	equal(t, "z: its window ends within the slack, so it is carried", got, backend.SyncReply{
		State:   backend.State{Window: b.end(50 * time.Second), Left: 51 * time.Second},
		Granted: 3, Clients: 3, Carried: true, Reasserted: 3, Learning: true, Lasted: time.Second,
	})
}

// testHuge: the numbers at the edge of what a script can count.
func testHuge(t *testing.T, s backend.Store) {
	const most = backend.MaxTokens
	b := newBench(t, s, backend.Limit{Tokens: most, Window: backend.MaxWindow})
	equal(t, "take", b.take(0, most-1).Remaining, 1)
	equal(t, "take", b.take(0, 2).Allowed, false)
	equal(t, "take", b.take(0, most).Allowed, false)
	equal(t, "take", b.take(0, 1).Allowed, true)
	equal(t, "refund", b.refund(0, b.end(backend.MaxWindow), most), most)
	equal(t, "sync", b.sync(0, say{client: "x", want: most, need: most, strand: most}).Grant, most)
	got := b.sync(0, say{client: "x", window: backend.MaxWindow, g: most, b: most, want: most, strand: -1})
	equal(t, "a total that can grow no more", got.Granted, most)
	equal(t, "grant", got.Grant, 0)
	equal(t, "remaining", got.Remaining, most)

	b = b.elsewhere() // clients that claim more than can be counted
	for _, client := range []string{"x", "y", "z"} {
		got = b.sync(0, say{client: client, window: far, g: most, want: most, need: most, strand: most})
		equal(t, "granted", got.Granted, most)
		equal(t, "remaining", got.Remaining, 0)
	}
	equal(t, "take", b.take(0, 1).Allowed, false)
	b.limit = limit10
	b.left(0, 0)
}

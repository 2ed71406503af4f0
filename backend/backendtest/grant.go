package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testGrant: the first grant of client x after others hold what they hold. It is
// x's share of what remains, divided by 1.25: of all that is out, the part that x holds,
// where each client counts for its part of strand, or 1, beside what it holds. So
// where x and o hold 200 each of 1000, x has 205 of 410 of the 600 that remain: 240.
func testGrant(t *testing.T, s backend.Store) {
	for _, row := range []struct {
		what               string
		mine, others       int64 // charged already: to x, to client o
		want, need, strand int64
		grant              int64
	}{
		{"all to itself", 0, 0, 1000, 0, 10, 800},
		{"no more than it wants", 0, 0, 50, 0, 10, 50},
		{"what is needed, though more than the cap", 0, 400, 1000, 500, 10, 500},
		{"need is capped by what remains", 0, 0, 1000, 1000, 0, 1000},
		{"a small wish is topped up to the floor", 0, 0, 1, 1, 10, 10},
		{"no wish, no grant", 0, 0, 0, 0, 10, 0},
		{"a small wish, nothing may be stranded", 0, 0, 5, 0, 0, 5},
		{"as it is", 0, 0, 1000, 0, -1, 1000},
		{"its own 400 of 400", 400, 0, 1000, 0, 10, 480},
		{"newcomer: 5 of 400 + 2·5", 0, 400, 1000, 0, 10, 5},
		{"newcomer who needs", 0, 400, 1000, 7, 10, 7},
		{"newcomer, much may be stranded: 50 of 400 + 2·50", 0, 400, 1000, 0, 100, 50},
		{"newcomer, nothing may be stranded: 1 of 400 + 2·1", 0, 400, 1000, 0, 0, 1},
		{"newcomer, nothing stranded but a need", 0, 400, 1000, 3, 0, 3},
		{"half each", 200, 200, 1000, 0, 10, 240},
		{"three quarters", 300, 100, 1000, 0, 10, 357},
		{"a quarter", 100, 300, 1000, 0, 10, 122},
		{"nearly empty: 10·½/1.25 is less than the floor", 499, 491, 1000, 0, 10, 5},
		{"nearly empty: 3 left, floor 5", 500, 497, 1000, 0, 10, 3},
		{"empty", 500, 500, 1000, 100, 10, 0},
		{"as it is, up to the rest", 500, 400, 1000, 0, -1, 100},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, limit1000)
			x := b.holders(row.mine, row.others)
			x.want, x.need, x.strand = row.want, row.need, row.strand
			got := b.sync(time.Second, x)
			equal(t, "grant", got.Grant, row.grant)
			equal(t, "granted", got.Granted, row.mine+row.grant)
			rest := 1000 - row.mine - row.others - row.grant
			equal(t, "remaining", got.Remaining, rest)
			b.left(time.Second, rest)
		})
	}
}

// holders grants tokens to clients o and x, if any, and returns x as it stands.
func (b *bench) holders(mine, others int64) say {
	b.t.Helper()
	x := say{client: "x"}
	if others > 0 {
		equal(b.t, "o", b.sync(0, say{client: "o", want: others, strand: -1}).Grant, others)
	}
	if mine > 0 {
		equal(b.t, "x", b.sync(0, say{client: "x", want: mine, strand: -1}).Grant, mine)
		x.window, x.g = far, mine
	}
	return x
}

// testPeers: a client that says how many share the key is not alone, though the
// ledger does not know them yet.
func testPeers(t *testing.T, s backend.Store) {
	for _, row := range []struct {
		what         string
		mine, others int64
		peers        int64
		need, strand int64
		grant        int64
	}{
		{what: "a quarter: 1 of 0 + 4·1", peers: 4, grant: 200},
		{what: "a quarter: 2 of 0 + 4·2", peers: 4, strand: 10, grant: 200},
		{what: "1 is itself", peers: 1, grant: 800},
		{what: "0 is unknown", peers: 0, grant: 800},
		{what: "the ledger knows of more: 1 of 400 + 2·1", others: 400, peers: 1, grant: 1},
		{what: "the ledger knows of fewer: 1 of 400 + 10·1", others: 400, peers: 10, strand: 10, grant: 1},
		{what: "a holder: 201 of 400 + 10·1", mine: 200, others: 200, peers: 10, strand: 10, grant: 235},
		{what: "more than there are tokens", peers: 1_000_000, strand: 10, grant: 0},
		{what: "more than there are tokens, and a need", peers: backend.MaxTokens, strand: 10, need: 3, grant: 3},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, limit1000)
			x := b.holders(row.mine, row.others)
			x.want, x.need, x.strand, x.peers = 1000, row.need, row.strand, row.peers
			got := b.sync(0, x)
			equal(t, "grant", got.Grant, row.grant)
			equal(t, "clients are those of the ledger", got.Clients, 1+min(row.others, 1))
		})
	}
}

// testPace: who has begun to need many counts for what it would have had by now
// at its pace of late. Client o holds 400 less what x does; 600 remain.
func testPace(t *testing.T, s backend.Store) {
	for _, row := range []struct {
		what string
		mine int64
		at   time.Duration // of a window of a minute
		pace int64
		want int64 // granted
	}{
		{"no pace: 1 of 402", 0, 30 * time.Second, 0, 1},
		{"400 a window are 200 by half of it", 0, 30 * time.Second, 400, 240},
		{"and 100 by a quarter", 0, 15 * time.Second, 400, 120},
		{"and nothing at its beginning", 0, 0, 400, 1},
		{"and all at its end", 0, far, 200, 240},
		{"slower than what it had: 200", 200, 30 * time.Second, 100, 240},
		{"faster than what it had: 300", 200, 30 * time.Second, 600, 359},
		{"no more than all", 0, 30 * time.Second, 1_000_000, 480},
		{"no more than all, however fast", 0, 30 * time.Second, backend.MaxTokens, 480},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, limit1000)
			x := b.holders(row.mine, 400-row.mine)
			x.want, x.pace = 1000, row.pace
			equal(t, "grant", b.sync(row.at, x).Grant, row.want)
		})
	}
}

// testPrior: what a client without history counts for shrinks with the square of
// what remains: n0 = 5000 of 5,000,000 at first.
func testPrior(t *testing.T, s backend.Store) {
	for _, row := range []struct {
		what   string
		others int64
		grant  int64
	}{
		{"the first", 0, 4000000},
		{"half is out: 5000/4 = 1250", 2_500_000, 999},
		{"four fifths are out: 5000/25 = 200", 4_000_000, 39},
		{"nearly all is out: 1", 4_950_000, 0},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, backend.Limit{Tokens: 5_000_000, Window: far})
			x := b.holders(0, row.others)
			x.want = 5_000_000
			equal(t, "grant", b.sync(time.Second, x).Grant, row.grant)
		})
	}
}

// testGrantsShrink: one client's eager orders, each of all that remains, taper
// off: a part of the rest, down to the floor.
func testGrantsShrink(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit1000)
	x := say{client: "x", want: 1000, strand: 10}
	rest := int64(1000)
	for _, grant := range []int64{800, 160, 32, 8} {
		got := b.sync(time.Second, x)
		equal(t, "grant", got.Grant, grant)
		rest -= grant
		equal(t, "remaining", got.Remaining, rest)
		x.window, x.g = 61*time.Second, x.g+got.Grant
	}
	equal(t, "all of it", x.g, 1000)
	equal(t, "and no more", b.sync(time.Second, x).Grant, 0)
}

// testToldTwice: a guided grant is of the size that it had when the statement was
// first heard, though less remains, more is known of the client, and others have
// had some since.
func testToldTwice(t *testing.T, s backend.Store) {
	for _, peers := range []int64{0, 2, 50} {
		b := newBench(t, s, limit1000)
		x := say{client: "x", want: 1000, strand: 10, peers: peers, pace: 100}
		first := b.sync(0, x)
		for range 3 {
			again := b.sync(0, x)
			equal(t, "grant", again.Grant, first.Grant)
			equal(t, "recovered", again.Recovered, first.Grant)
			equal(t, "remaining", again.Remaining, first.Remaining)
		}
		b.sync(time.Second, say{client: "o", want: first.Remaining, strand: -1})
		again := b.sync(time.Second, x)
		equal(t, "of an exhausted limit", again.Grant, first.Grant)
		equal(t, "remaining", again.Remaining, 0)
	}
}

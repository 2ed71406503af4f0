package backendtest

import (
	"testing"
	"time"

	"github.com/go-reservoir/reservoir/backend"
)

// testTake: windows open at the first charge, grant exactly the limit, and close.
func testTake(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	for _, row := range []struct {
		at        time.Duration
		n         int64
		allowed   bool
		remaining int64
		end       time.Duration
	}{
		{0, 3, true, 7, 60 * time.Second},
		{1 * time.Second, 3, true, 4, 60 * time.Second}, // the end does not move
		{2 * time.Second, 5, false, 4, 60 * time.Second},
		{2 * time.Second, 5, false, 4, 60 * time.Second}, // refused for free
		{30 * time.Second, 4, true, 0, 60 * time.Second}, // exactly the limit
		{30 * time.Second, 1, false, 0, 60 * time.Second},
		{59999 * time.Millisecond, 1, false, 0, 60 * time.Second},
		{60 * time.Second, 1, false, 0, 60 * time.Second},         // open up to its end
		{60001 * time.Millisecond, 1, true, 9, 120 * time.Second}, // a whole second, rounded down
		{90 * time.Second, 10, false, 9, 120 * time.Second},
		{90 * time.Second, 9, true, 0, 120 * time.Second},
		{500 * time.Second, 10, true, 0, 560 * time.Second}, // windows that nobody opened
	} {
		got := b.take(row.at, row.n)
		want := backend.TakeReply{Allowed: row.allowed, State: backend.State{
			Window: b.end(row.end), Left: row.end - row.at, Remaining: row.remaining,
		}}
		equal(t, "take at "+row.at.String(), got, want)
	}
}

// testEdge: the microseconds around the end, and a window that opens between two
// milliseconds: its end is rounded up, so that it is never short. One of whole seconds
// ends at a whole second, rounded down, so that a header in seconds says the same.
func testEdge(t *testing.T, s backend.Store) {
	const us, ms = time.Microsecond, time.Millisecond
	const odd = far + 500*ms // no whole seconds
	for _, row := range []struct {
		name         string
		length       time.Duration
		opened, then time.Duration
		open         bool
		end          time.Duration // of the first window
	}{
		{"half a ms before the end", far, 0, far - 500*us, true, far},
		{"one us before", far, 0, far - us, true, far},
		{"at the end", far, 0, far, true, far},
		{"one us after", far, 0, far + us, false, far},
		{"opened late in its second", far, 999 * ms, far, true, far},
		{"opened late in its second, over", far, 999 * ms, far + us, false, far},
		{"opened at half a ms", odd, 500 * us, odd + ms, true, odd + ms},
		{"opened at half a ms, over", odd, 500 * us, odd + ms + us, false, odd + ms},
		{"opened one us late", odd, us, odd + ms, true, odd + ms},
		{"opened one us early", odd, 999 * us, odd + ms, true, odd + ms},
		{"opened at a ms", odd, 7 * ms, odd + 7*ms, true, odd + 7*ms},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBench(t, s, backend.Limit{Tokens: 10, Window: row.length})
			first := b.take(row.opened, 10)
			equal(t, "end", first.Window, b.end(row.end))
			equal(t, "left", first.Left, row.end-row.opened)

			want := backend.State{Remaining: 10}
			if row.open {
				want = backend.State{Window: first.Window, Left: row.end - row.then}
			}
			equal(t, "check", b.check(row.then), want)
			equal(t, "refund", b.refund(row.then, first.Window, 1), boolean(row.open))
			again := b.take(row.then, 2)
			equal(t, "take", again.Allowed, !row.open)
			equal(t, "same window", again.Window == first.Window, row.open)
			equal(t, "sync", b.sync(row.then, say{client: "a"}).Window, again.Window)
		})
	}
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// testCheck: a look charges nothing, opens nothing and moves no end.
func testCheck(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	none := backend.State{Remaining: 10}
	equal(t, "before the first charge", b.check(0), none)
	equal(t, "once more, later", b.check(time.Second), none)
	equal(t, "the window opens at the charge", b.take(2*time.Second, 4).Window, b.end(62*time.Second))
	for _, at := range []time.Duration{2 * time.Second, 30 * time.Second, 62 * time.Second} {
		equal(t, "open", b.check(at), backend.State{Window: b.end(62 * time.Second), Left: 62*time.Second - at, Remaining: 6})
	}
	equal(t, "over", b.check(63*time.Second), none)
	equal(t, "a look opens nothing", b.take(70*time.Second, 1).Window, b.end(130*time.Second))
}

// testRefund: a total is given back once, however often it is stated, only to the
// window that was charged, and never below zero.
func testRefund(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	w := b.end(far)
	equal(t, "nothing is open", b.refund(0, w, 1), 0)
	b.take(0, 6)
	for _, row := range []struct {
		what                  string
		at                    time.Duration
		client                string
		window                backend.Window
		total, known, remains int64
	}{
		{"two", time.Second, "r", w, 2, 2, 6},
		{"the same two", time.Second, "r", w, 2, 2, 6},
		{"three in all", time.Second, "r", w, 3, 3, 7},
		{"an earlier statement, late", time.Second, "r", w, 2, 3, 7},
		{"another client's", time.Second, "q", w, 1, 1, 8},
		{"another window", time.Second, "r", w + 1, 9, 0, 8},
		{"an earlier window", time.Second, "r", w - 1, 9, 0, 8},
		{"more than was charged", time.Second, "r", w, 100, 100, 10},
		{"nothing left to give back", time.Second, "q", w, 2, 2, 10},
		{"at the end", far, "r", w, 101, 101, 10},
	} {
		equal(t, row.what, b.refundOf(row.at, row.client, row.window, row.total), row.known)
		b.left(row.at, row.remains)
	}
	equal(t, "it stays open, though empty", b.take(2*time.Second, 10).Window, w)
	equal(t, "what was stated while it was empty is not owed", b.refund(2*time.Second, w, 101), 101)
	b.left(2*time.Second, 0)

	next := b.take(61*time.Second, 3)
	equal(t, "the old window is closed", b.refund(61*time.Second, w, 200), 0)
	b.left(61*time.Second, 7)
	equal(t, "the new one", b.refund(61*time.Second, next.Window, 3), 3)
	b.left(61*time.Second, 10)

	// A client has an account as well, and counts no more than before.
	b = b.elsewhere()
	b.take(0, 2)
	b.sync(0, say{client: "x", want: 5, strand: -1})
	equal(t, "of x", b.refundOf(time.Second, "x", w, 2), 2)
	b.refundOf(time.Second, "y", w, 0+1)
	got := b.sync(time.Second, say{client: "x", window: far, g: 5, b: 1})
	equal(t, "clients", got.Clients, 1)
	equal(t, "10 - 4 + 1", got.Remaining, 7)
	equal(t, "of x, again", b.refundOf(2*time.Second, "x", w, 2), 2)
}

// testClock: the store's clock steps. Nothing is lost for longer than a window.
func testClock(t *testing.T, s backend.Store) {
	t.Run("forward over the end", func(t *testing.T) {
		b := newBench(t, s, limit10)
		b.take(0, 10)
		equal(t, "take", b.take(time.Hour, 10).Window, b.end(time.Hour+far))
	})
	t.Run("back within the slack", func(t *testing.T) {
		b := newBench(t, s, limit10)
		b.take(0, 10)
		got := b.take(-time.Second, 1) // two servers' clocks may differ so much
		equal(t, "allowed", got.Allowed, false)
		equal(t, "end", got.Window, b.end(far))
		equal(t, "left", got.Left, far+time.Second)
	})
	t.Run("back by more", func(t *testing.T) {
		b := newBench(t, s, limit10)
		b.take(0, 4)
		const back = -10 * time.Second
		equal(t, "a look changes nothing", b.check(back), backend.State{Window: b.end(far), Left: 70 * time.Second, Remaining: 6})
		got := b.take(back, 1)
		equal(t, "end", got.Window, b.end(far+back))
		equal(t, "what was charged stays charged", got.Remaining, 5)
		equal(t, "end, once brought back", b.take(0, 10).Window, b.end(far+back))
		equal(t, "over", b.take(51*time.Second, 10).Allowed, true)
	})
	t.Run("back, and a refusal", func(t *testing.T) {
		b := newBench(t, s, limit10)
		b.take(0, 10)
		got := b.take(-10*time.Second, 1)
		equal(t, "allowed", got.Allowed, false)
		equal(t, "it tells when it would be over", got.Window, b.end(50*time.Second))
		equal(t, "and writes nothing", b.take(51*time.Second, 10), backend.TakeReply{State: backend.State{Window: b.end(far), Left: 9 * time.Second}})
	})
	t.Run("back and forth", func(t *testing.T) {
		b := newBench(t, s, limit10)
		b.take(time.Hour, 4) // an hour ahead
		equal(t, "back", b.take(0, 1).Window, b.end(far))
		equal(t, "an hour ahead again", b.take(time.Hour, 10).Allowed, true)
	})
}

// testLimitChanges: the limit is the request's; what was charged stays charged.
func testLimitChanges(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	b.take(0, 8)
	b.sync(0, say{client: "a", want: 1, need: 1, strand: -1})
	b.limit.Tokens = 5 // lowered below what is out
	equal(t, "check", b.check(time.Second), backend.State{Window: b.end(far), Left: 59 * time.Second})
	got := b.take(time.Second, 1)
	equal(t, "take", got, backend.TakeReply{State: backend.State{Window: b.end(far), Left: 59 * time.Second}})
	sync := b.sync(time.Second, say{client: "a", window: far, g: 1, want: 5, need: 5, strand: 1})
	equal(t, "grant", sync.Grant, 0)
	equal(t, "remaining", sync.Remaining, 0)
	equal(t, "refund down to the limit", b.refund(time.Second, b.end(far), 4), 4)
	b.left(time.Second, 0)
	equal(t, "refund below it", b.refund(time.Second, b.end(far), 5), 5)
	b.left(time.Second, 1)
	b.limit.Tokens = 100 // raised
	b.left(time.Second, 96)
	equal(t, "take", b.take(time.Second, 96).Allowed, true)
	equal(t, "take", b.take(time.Second, 1).Allowed, false)
}

// testLengths: a call of another window length than the open window's charges and
// grants nothing, and moves no end.
func testLengths(t *testing.T, s backend.Store) {
	for _, other := range []time.Duration{time.Second, far - 1001*time.Millisecond, far + 1001*time.Millisecond, time.Hour} {
		t.Run(other.String(), func(t *testing.T) {
			b := newBench(t, s, limit10)
			b.take(0, 4)
			b.sync(0, say{client: "x", want: 2, strand: -1})
			b.limit.Window = far + time.Second // no other than far, as far as clocks can tell
			equal(t, "nearly the same", b.check(0).Length, 0)
			b.limit.Window = other
			open := backend.State{Window: b.end(far), Left: 50 * time.Second, Remaining: 4, Length: far}
			at := 10 * time.Second
			equal(t, "check", b.check(at), open)
			equal(t, "take", b.take(at, 1), backend.TakeReply{State: open})
			for _, x := range []say{
				{client: "y", want: 4, need: 4, strand: -1},
				{client: "x", window: far, g: 9, b: 1, debt: 3, want: 1, need: 1},
				{client: "x", window: 50 * time.Second, g: 5, leaving: true},
			} {
				equal(t, "sync", b.sync(at, x), backend.SyncReply{State: open, Granted: x.g, Returned: x.b, Debt: x.debt, Clients: 1})
			}
			b.limit.Window = far
			equal(t, "nothing was written", b.sync(at, say{client: "x", window: far, g: 2}), backend.SyncReply{
				State: backend.State{Window: b.end(far), Left: 50 * time.Second, Remaining: 4}, Granted: 2, Clients: 1,
			})
			b.limit.Window = other
			equal(t, "the next window is anybody's", b.take(far+time.Second, 1).Allowed, true)
		})
	}
}

// testCalendar: the first to open a window says where it ends.
func testCalendar(t *testing.T, s backend.Store) {
	for _, row := range []struct {
		what      string
		end, want time.Duration
	}{
		{"sooner", 10 * time.Second, 10 * time.Second},
		{"not at a whole second", 10*time.Second + time.Millisecond, 10*time.Second + time.Millisecond},
		{"a length away", far, far},
		{"later, as clocks may differ", far + time.Second, far + time.Second},
		{"later than can be", far + time.Second + time.Millisecond, far},
		{"over: the next", -10 * time.Second, 50 * time.Second},
		{"just over", 0, far},
		{"over for long: the next but three", -190 * time.Second, 50 * time.Second},
	} {
		t.Run(row.what, func(t *testing.T) {
			b := newBench(t, s, limit10)
			b.dated, b.calendar = true, row.end
			equal(t, "take", b.take(0, 1).Window, b.end(row.want))
			b.calendar = row.end + 5*time.Second
			equal(t, "it stays", b.take(time.Second, 1).Window, b.end(row.want))
			equal(t, "for a sync too", b.sync(time.Second, say{client: "x", want: 1}).Window, b.end(row.want))

			b = b.elsewhere()
			b.dated, b.calendar = true, row.end
			equal(t, "sync", b.sync(0, say{client: "x", want: 1, need: 1}).Window, b.end(row.want))
			b = b.elsewhere()
			equal(t, "what a client holds comes first", b.sync(0, say{client: "x", window: 30 * time.Second, g: 1}).Window, b.end(30*time.Second))
		})
	}
}

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
		{60 * time.Second, 1, false, 0, 60 * time.Second}, // open up to its end
		{60001 * time.Millisecond, 1, true, 9, 120001 * time.Millisecond},
		{90 * time.Second, 10, false, 9, 120001 * time.Millisecond},
		{90 * time.Second, 9, true, 0, 120001 * time.Millisecond},
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
// milliseconds: its end is rounded up, so that it is never short.
func testEdge(t *testing.T, s backend.Store) {
	const us = time.Microsecond
	for _, row := range []struct {
		name         string
		opened, then time.Duration
		open         bool
		end          time.Duration // of the first window
	}{
		{"half a ms before the end", 0, far - 500*us, true, far},
		{"one us before", 0, far - us, true, far},
		{"at the end", 0, far, true, far},
		{"one us after", 0, far + us, false, far},
		{"opened at half a ms", 500 * us, far + 1000*us, true, far + time.Millisecond},
		{"opened at half a ms, over", 500 * us, far + 1001*us, false, far + time.Millisecond},
		{"opened one us late", us, far + 1000*us, true, far + time.Millisecond},
		{"opened one us early", 999 * us, far + 1000*us, true, far + time.Millisecond},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := newBench(t, s, limit10)
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

// testRefund: only to the window that was charged, and never below zero.
func testRefund(t *testing.T, s backend.Store) {
	b := newBench(t, s, limit10)
	w := b.end(far)
	equal(t, "nothing is open", b.refund(0, w, 1), 0)
	b.take(0, 6)
	for _, row := range []struct {
		what            string
		at              time.Duration
		window          backend.Window
		n, back, remain int64
	}{
		{"some", time.Second, w, 2, 2, 6},
		{"another window", time.Second, w + 1, 2, 0, 6},
		{"an earlier window", time.Second, w - 1, 2, 0, 6},
		{"more than was charged", time.Second, w, 100, 4, 10},
		{"nothing left to give back", time.Second, w, 1, 0, 10},
		{"at the end", far, w, 1, 0, 10},
	} {
		equal(t, row.what, b.refund(row.at, row.window, row.n), row.back)
		b.left(row.at, row.remain)
	}
	equal(t, "it stays open, though empty", b.take(2*time.Second, 10).Window, w)
	next := b.take(61*time.Second, 3)
	equal(t, "the old window is closed", b.refund(61*time.Second, w, 3), 0)
	b.left(61*time.Second, 7)
	equal(t, "the new one", b.refund(61*time.Second, next.Window, 3), 3)
	b.left(61*time.Second, 10)
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
		equal(t, "end", got.Window, b.end(50*time.Second))
		equal(t, "over", b.take(51*time.Second, 10).Allowed, true)
	})
	t.Run("back and forth", func(t *testing.T) {
		b := newBench(t, s, limit10)
		b.take(time.Hour, 10) // an hour ahead
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
	equal(t, "refund below it", b.refund(time.Second, b.end(far), 1), 1)
	b.left(time.Second, 1)
	b.limit.Tokens = 100 // raised
	b.left(time.Second, 96)
	equal(t, "take", b.take(time.Second, 96).Allowed, true)
	equal(t, "take", b.take(time.Second, 1).Allowed, false)

	b.limit.Window = time.Hour // a longer one takes effect with the next window
	equal(t, "end", b.take(2*time.Second, 1).Window, b.end(far))
	equal(t, "end", b.take(61*time.Second, 1).Window, b.end(61*time.Second+time.Hour))
	b.limit.Window = far // a shorter one at once: no end lies further ahead than a window
	equal(t, "end", b.take(62*time.Second, 1).Window, b.end(122*time.Second))
	b.left(62*time.Second, 98)
}

// Package waiters is a line of callers who wait for tokens of one key: first come, first
// served.
//
// It decides which callers are served, wherever the tokens come from. R is the outcome
// for a caller. A Line is not safe for concurrent use; its owner's lock guards it.
// Only the wake-up crosses goroutines: a waiter's outcome is written before Ready is
// signalled, and read after.
//
// What a Line does costs the same however many wait in it, except Serve when the windows to
// come are later or smaller than they were. So the line keeps counts, which its owner reads.
package waiters

import (
	"math"
	"sync"
)

// Waiter is one caller in line. Each has a channel of its own instead of one condition
// variable for all, because a caller waits for its context too, a cancelled caller wakes
// nobody else, and each gets its own outcome. semaphore.Weighted does the same.
type Waiter[R any] struct {
	N        int64         // tokens, at least 1
	Stays    bool          // it waits until a reset instead of being refused
	Some     bool          // if there are fewer than N, it takes those; it does not stay
	Deadline int64         // of a waiter that stays, in the owner's time; 0 = none
	Ready    chan struct{} // holds an element when Outcome is there
	Outcome  R

	// Written by the line, read under the owner's lock.
	Seq    uint64 // sequence number in its line, which grows; 0 = it was in none yet
	InLine bool   // it waits

	parked     bool // it was parked before, so it is one of the early waiters
	prev, next *Waiter[R]
}

// most is how many tokens a waiter counts for in a sum, so that no sum of millions of waiters overflows. Nobody waits for
// more than that in earnest.
const most = 1 << 40

// Line is the waiters of one key. The zero Line is empty, and must not be copied later.
//
// The early waiters are those that stay and were parked before. They came before all others, because a waiter is parked
// only when all before it are parked or have left. Either all early waiters are parked, or none is, so that nobody visits
// each of them.
type Line[R any] struct {
	// The line writes these; its owner reads them, under its lock. Waiters are active unless they are parked: the window
	// cannot serve those, so they wait for the reset.
	Len     int        // waiters
	Parked  int        // of them, parked
	Active  int        // of them, active
	Passing int        // active waiters that do not stay
	Tokens  int64      // that active waiters ask for: the first one's exactly, and no more than 1<<40 of each other
	First   *Waiter[R] // the first active waiter; nil = none
	Rests   *Waiter[R] // the first parked waiter; nil = none
	Last    uint64     // sequence number of the last waiter that came

	head, tail *Waiter[R]
	fresh      *Waiter[R] // the first waiter behind the early ones
	early      sum        // of these
	all        sum
	parked     bool // the early waiters are parked

	windows Windows // when the early waiters were last compared with their deadlines
	inTime  int64   // they all are in time if the next window opens then or earlier

	visits int // waiters that were looked at; its test holds what the package promises of costs
}

// sum counts waiters and their tokens.
type sum struct {
	waiters int
	tokens  int64
}

// count brings the exported counts up to date, from sums over the whole line and over its early part. Passing needs none: early
// waiters stay.
func (l *Line[R]) count() {
	l.Len, l.Parked, l.Active = l.all.waiters, 0, l.all.waiters
	l.First, l.Rests, l.Tokens = l.head, nil, l.all.tokens
	if l.parked && l.early.waiters > 0 {
		l.Parked, l.Active = l.early.waiters, l.Active-l.early.waiters
		l.First, l.Rests, l.Tokens = l.fresh, l.head, l.Tokens-l.early.tokens
	}
	if l.First != nil { // a fetch must bring all that the first one needs, or nothing
		l.Tokens += max(l.First.N-most, 0)
	}
}

// Push puts w at the end of the line.
func (l *Line[R]) Push(w *Waiter[R]) {
	l.Last++
	w.Seq, w.InLine, w.prev = l.Last, true, l.tail
	if l.tail == nil {
		l.head = w
	} else {
		l.tail.next = w
	}
	if l.tail = w; l.fresh == nil {
		l.fresh = w
	}
	l.all.waiters++
	if l.all.tokens += min(w.N, most); !w.Stays {
		l.Passing++
	}
	l.count()
}

// Remove takes w out of the line without an outcome.
func (l *Line[R]) Remove(w *Waiter[R]) {
	if w.prev == nil {
		l.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	if l.fresh == w {
		l.fresh = w.next
	}
	l.all.waiters--
	if l.all.tokens -= min(w.N, most); w.parked {
		l.early.waiters--
		l.early.tokens -= min(w.N, most)
	}
	if !w.Stays {
		l.Passing--
	}
	w.InLine, w.parked, w.prev, w.next = false, false, nil, nil
	l.count()
}

// Notify takes w out of the line and wakes its caller with the outcome.
func (l *Line[R]) Notify(w *Waiter[R], outcome R) {
	l.Remove(w)
	w.Outcome = outcome
	w.Ready <- struct{}{} // never blocks: there is room for one
}

// Since calls f with every waiter whose sequence number is above seq, in order. f may Notify
// or Remove that waiter. The others cost nothing.
func (l *Line[R]) Since(seq uint64, f func(w *Waiter[R])) {
	w := l.head
	if w != nil && w.Seq <= seq { // look from the end, because those before are many
		w = nil
		for back := l.tail; back.Seq > seq; back = back.prev {
			w = back
		}
	}
	for w != nil {
		l.visits++
		next := w.next
		f(w)
		w = next
	}
}

// Windows is what is known of the windows to come.
type Windows struct {
	Next   int64 // when the next one opens, in the owner's time
	Length int64 // of each, in the same unit
	Tokens int64 // that each has for all waiters
}

// latest is when the next window may open at the latest, so that w gets its tokens before
// its deadline, if others get ahead tokens before it.
func latest[R any](s Windows, w *Waiter[R], ahead int64) int64 {
	if w.Deadline == 0 {
		return math.MaxInt64
	}
	more := (ahead + w.N - 1) / s.Tokens // windows after the next
	if more > max(w.Deadline/s.Length, 0) {
		return math.MinInt64
	}
	return w.Deadline - max(more*s.Length, 1)
}

// Verdict is what a pass along the line decides for one waiter.
type Verdict uint8

// The verdicts of Serve.
const (
	Grant  Verdict = iota // its tokens are at hand
	Refuse                // the window has too few tokens for it
	Miss                  // so has every window before its deadline
)

// Serve decides for the waiters at the head of the line, and for those that came since the
// last Serve. hand is how many tokens may be given out, and left how many more the store
// has. verdict is called for each waiter whose wait is over, and must Notify it. Serve
// returns what is left of hand.
//
// Service is strictly first come, first served: a waiter that the store has enough for
// holds up all behind it. A waiter that the window cannot serve is refused or, if it
// stays, parked. A parked waiter holds no token, so waiters behind it that do not stay
// are served, but no waiter that stays passes another that stays. A waiter is parked only if
// it gets its tokens before its deadline, by what is known of the windows to come. One that
// takes some gets what is at hand once the store has no more; then N says how many.
func (l *Line[R]) Serve(hand, left int64, to Windows, verdict func(*Waiter[R], Verdict)) int64 {
	l.parked = false
	l.count()
	for w := l.First; w != nil; w = l.First { // each leaves, or is parked, or is the last
		l.visits++
		var ahead int64 // tokens of parked waiters
		if l.parked {
			ahead = l.early.tokens
		}
		switch blocked := w.Stays && l.parked; {
		case w.N <= hand && !blocked:
			hand -= w.N
			verdict(w, Grant)
		case w.N-hand <= left && !blocked || w.Some && left > 0:
			return hand
		case w.Some && hand > 0:
			l.all.tokens -= min(w.N, most) - min(hand, most)
			w.N, hand = hand, 0
			verdict(w, Grant)
		case !w.Stays:
			verdict(w, Refuse)
		case latest(to, w, ahead) < to.Next:
			verdict(w, Miss)
		default:
			l.park(w, ahead, to, verdict)
		}
	}
	return hand
}

// park parks w, behind the early waiters, which are parked with the first w of a Serve.
func (l *Line[R]) park(w *Waiter[R], ahead int64, to Windows, verdict func(*Waiter[R], Verdict)) {
	was, first := l.windows, !l.parked
	if first {
		l.parked, l.windows = true, to
	}

	// Those who were parked before were compared with earlier windows to come.
	if first && (to.Next > l.inTime || to.Length != was.Length || to.Tokens != was.Tokens) { // one may miss its deadline now
		l.inTime = math.MaxInt64
		for e, before := l.head, int64(0); e != l.fresh; {
			l.visits++
			next := e.next
			if at := latest(to, e, before); at < to.Next {
				verdict(e, Miss)
			} else {
				before += min(e.N, most)
				l.inTime = min(l.inTime, at)
			}
			e = next
		}
	}
	if !w.parked { // it is the first behind the early ones
		w.parked, l.fresh = true, w.next
		l.early.waiters++
		l.early.tokens += min(w.N, most)
		l.inTime = min(l.inTime, latest(to, w, ahead))
	}
	l.count()
}

// Pool reuses waiters, because a crowd at one key makes hundreds of thousands in a second. The zero Pool is ready for use,
// and safe for concurrent use.
type Pool[R any] struct{ free sync.Pool }

// Get returns a waiter for n tokens that is in no line.
func (p *Pool[R]) Get(n int64, stays bool) *Waiter[R] {
	w, ok := p.free.Get().(*Waiter[R])
	if !ok {
		w = &Waiter[R]{Ready: make(chan struct{}, 1)}
	}
	w.N, w.Stays = n, stays
	return w
}

// Put takes w back from its caller, who must have left the line.
func (p *Pool[R]) Put(w *Waiter[R]) {
	select {
	case <-w.Ready: // its outcome came after the caller had left
	default:
	}
	*w = Waiter[R]{Ready: w.Ready}
	p.free.Put(w)
}

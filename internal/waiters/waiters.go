// Package waiters is a line of callers who wait for tokens of one key: first come, first
// served.
//
// It decides which callers are served, wherever the tokens come from. R is the outcome
// for a caller. A Line is not safe for concurrent use; its owner's lock guards it.
// Only the wake-up crosses goroutines: a waiter's outcome is written before Ready is
// signalled, and read after.
package waiters

import (
	"sync"
	"time"
)

// Waiter is one caller in line. Each has a channel of its own instead of one condition
// variable for all, because a caller waits for its context too, a cancelled caller wakes
// nobody else, and each gets its own outcome. semaphore.Weighted does the same.
type Waiter[R any] struct {
	N        int64         // tokens
	Stays    bool          // it waits until a reset instead of being refused
	Deadline int64         // of a waiter that stays, in the owner's time; 0 = none
	Ready    chan struct{} // holds an element when Outcome is there
	Outcome  R
	Timer    *time.Timer // of After; nil before the first

	seq        uint64
	done       bool
	parked     bool
	prev, next *Waiter[R]
}

// Done reports whether the waiter has left the line. Under the owner's lock.
func (w *Waiter[R]) Done() bool { return w.done }

// Seq is the waiter's sequence number in its line; it grows.
func (w *Waiter[R]) Seq() uint64 { return w.seq }

// After starts the waiter's timer and returns its channel.
func (w *Waiter[R]) After(d time.Duration) <-chan time.Time {
	if w.Timer == nil {
		w.Timer = time.NewTimer(d)
	} else {
		w.Timer.Reset(d)
	}
	return w.Timer.C
}

// Line is the waiters of one key. The zero Line is empty.
type Line[R any] struct {
	head, tail *Waiter[R]
	last       uint64 // sequence number
	tokens     int64  // that active waiters ask for
	active     int    // waiters that are not parked
	passing    int    // active waiters that do not stay
	parked     int
}

// Empty reports whether nobody is in line.
func (l *Line[R]) Empty() bool { return l.head == nil }

// Tokens is how many tokens the active waiters ask for together.
func (l *Line[R]) Tokens() int64 { return l.tokens }

// Active is how many waiters are not parked.
func (l *Line[R]) Active() int { return l.active }

// Passing is how many active waiters do not stay.
func (l *Line[R]) Passing() int { return l.passing }

// Parked is how many waiters wait for the reset, because the window cannot serve them.
func (l *Line[R]) Parked() int { return l.parked }

// Last is the sequence number of the last waiter that came.
func (l *Line[R]) Last() uint64 { return l.last }

// First returns the first active waiter, or nil.
func (l *Line[R]) First() *Waiter[R] {
	w := l.head
	for w != nil && w.parked {
		w = w.next
	}
	return w
}

// Push puts w at the end of the line.
func (l *Line[R]) Push(w *Waiter[R]) {
	l.last++
	w.seq, w.prev = l.last, l.tail
	if l.tail == nil {
		l.head = w
	} else {
		l.tail.next = w
	}
	l.tail = w
	l.count(w, 1)
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
	w.prev, w.next, w.done = nil, nil, true
	l.count(w, -1)
}

func (l *Line[R]) count(w *Waiter[R], by int) {
	if w.parked {
		l.parked += by
		return
	}
	l.tokens += int64(by) * w.N
	l.active += by
	if !w.Stays {
		l.passing += by
	}
}

// Notify takes w out of the line and wakes its caller with the outcome.
func (l *Line[R]) Notify(w *Waiter[R], outcome R) {
	l.Remove(w)
	w.Outcome = outcome
	w.Ready <- struct{}{} // never blocks: there is room for one
}

// Each calls f with every waiter, in order. f may Notify or Remove that waiter.
func (l *Line[R]) Each(f func(w *Waiter[R])) {
	for w := l.head; w != nil; {
		next := w.next
		f(w)
		w = next
	}
}

// Verdict is what a pass along the line decides for one waiter.
type Verdict uint8

// The verdicts of Serve.
const (
	Grant  Verdict = iota // its tokens are at hand
	Refuse                // the window has too few tokens for it
	Miss                  // so has every window before its deadline
)

// Serve goes along the line once. hand is how many tokens may be given out, and left
// how many more the store has. reachable reports whether w gets its tokens before its
// deadline, if others get ahead tokens before it after the reset. verdict is called for
// each waiter whose wait is over, and must Notify it. Serve returns what is left of hand.
//
// Service is strictly first come, first served: a waiter that the store has enough for
// holds up all behind it. A waiter that the window cannot serve is refused or, if it
// stays, parked. A parked waiter holds no token, so waiters behind it that do not stay
// are served, but no waiter that stays passes another that stays.
func (l *Line[R]) Serve(hand, left int64, reachable func(w *Waiter[R], ahead int64) bool, verdict func(*Waiter[R], Verdict)) int64 {
	var ahead int64 // tokens of parked waiters
	for w := l.head; w != nil; {
		next := w.next
		switch blocked := w.Stays && ahead > 0; {
		case w.N <= hand && !blocked:
			hand -= w.N
			verdict(w, Grant)
		case w.N <= sum(hand, left) && !blocked:
			l.unparkFrom(w)
			return hand
		case !w.Stays:
			verdict(w, Refuse)
		case !reachable(w, ahead):
			verdict(w, Miss)
		default:
			l.park(w, true)
			ahead += w.N
		}
		w = next
	}
	return hand
}

// sum is a + b without overflow; b may be as large as an integer gets.
func sum(a, b int64) int64 {
	if s := a + b; s >= a {
		return s
	}
	return b
}

// unparkFrom makes w and all behind it active, so that they wait for the next fetch.
func (l *Line[R]) unparkFrom(w *Waiter[R]) {
	for ; w != nil; w = w.next {
		l.park(w, false)
	}
}

func (l *Line[R]) park(w *Waiter[R], parked bool) {
	if w.parked == parked {
		return
	}
	l.count(w, -1)
	w.parked = parked
	l.count(w, 1)
}

// Pool reuses waiters, because a crowd needs many. The zero Pool is ready for use, and
// safe for concurrent use.
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
	*w = Waiter[R]{Ready: w.Ready, Timer: w.Timer}
	p.free.Put(w)
}

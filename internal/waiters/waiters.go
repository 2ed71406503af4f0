// Package waiters is a line of callers who wait for tokens of one key: first come, first
// served.
//
// It decides which callers are served, wherever the tokens come from. R is the outcome
// for a caller. A Line is not safe for concurrent use; its owner's lock guards it.
// Only the wake-up crosses goroutines: a waiter's outcome is written before Ready is
// signalled, and read after.
//
// What a Line does costs the same however many wait in it, except Serve when the windows to
// come are later or smaller than they were.
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
	Deadline int64         // of a waiter that stays, in the owner's time; 0 = none
	Ready    chan struct{} // holds an element when Outcome is there
	Outcome  R

	seq        uint64
	in         *list[R] // nil if it is in no line
	prev, next *Waiter[R]
}

// Done reports whether the waiter has left the line. Under the owner's lock.
func (w *Waiter[R]) Done() bool { return w.in == nil }

// counts is how many tokens w counts for in a sum, so that no sum of millions of waiters overflows. Nobody waits for more
// than that in earnest.
func (w *Waiter[R]) counts() int64 { return min(w.N, 1<<40) }

// Seq is the waiter's sequence number in its line; it grows.
func (w *Waiter[R]) Seq() uint64 { return w.seq }

// Line is the waiters of one key. The zero Line is empty, and must not be copied later.
//
// A waiter moves from recent to early when it is parked for the first time, and never back.
// After that all early waiters are parked, or none is, so that nobody visits each of them.
type Line[R any] struct {
	early  list[R] // waiters that stay and were parked before; all of them came before all recent ones
	recent list[R]
	parked bool   // the early waiters are parked
	last   uint64 // sequence number

	windows Windows // when the early waiters were last compared with their deadlines
	inTime  int64   // they all are in time if the next window opens then or earlier

	visits int // waiters that Serve and Since looked at, for tests
}

// Empty reports whether nobody is in line.
func (l *Line[R]) Empty() bool { return l.early.head == nil && l.recent.head == nil }

// Tokens is how many tokens the active waiters ask for together: the first one exactly, and the others as much as
// each counts for in a sum.
func (l *Line[R]) Tokens() int64 {
	n, w := l.recent.tokens, l.First()
	if !l.parked {
		n += l.early.tokens
	}
	if w != nil {
		n += w.N - w.counts()
	}
	return n
}

// Active is how many waiters are not parked.
func (l *Line[R]) Active() int { return l.early.count + l.recent.count - l.Parked() }

// Passing is how many active waiters do not stay.
func (l *Line[R]) Passing() int { return l.recent.passing }

// Parked is how many waiters wait for the reset, because the window cannot serve them.
func (l *Line[R]) Parked() int {
	if l.parked {
		return l.early.count
	}
	return 0
}

// Waits is how many tokens the first parked waiter waits for.
func (l *Line[R]) Waits() int64 {
	if l.Parked() == 0 {
		return 0
	}
	return l.early.head.N
}

// Last is the sequence number of the last waiter that came.
func (l *Line[R]) Last() uint64 { return l.last }

// First returns the first active waiter, or nil.
func (l *Line[R]) First() *Waiter[R] {
	if l.parked || l.early.head == nil {
		return l.recent.head
	}
	return l.early.head
}

// Lacks is how many tokens the first active waiter lacks that hand does not serve, in order; 0
// if it serves all. It visits those that are served.
func (l *Line[R]) Lacks(hand int64) int64 {
	for _, q := range [...]*list[R]{&l.early, &l.recent} {
		if q == &l.early && l.parked {
			continue
		}
		for w := q.head; w != nil; w = w.next {
			if l.visits++; w.N > hand {
				return w.N - hand
			}
			hand -= w.N
		}
	}
	return 0
}

// Push puts w at the end of the line.
func (l *Line[R]) Push(w *Waiter[R]) {
	l.last++
	w.seq = l.last
	l.recent.push(w)
}

// Remove takes w out of the line without an outcome.
func (l *Line[R]) Remove(w *Waiter[R]) { w.in.remove(w) }

// Notify takes w out of the line and wakes its caller with the outcome.
func (l *Line[R]) Notify(w *Waiter[R], outcome R) {
	l.Remove(w)
	w.Outcome = outcome
	w.Ready <- struct{}{} // never blocks: there is room for one
}

// Since calls f with every waiter whose sequence number is above seq, in order. f may Notify
// or Remove that waiter. The others cost nothing.
func (l *Line[R]) Since(seq uint64, f func(w *Waiter[R])) {
	for _, q := range [...]*list[R]{&l.early, &l.recent} {
		for w := q.since(seq); w != nil; {
			l.visits++
			next := w.next
			f(w)
			w = next
		}
	}
}

// list is waiters in the order in which they came, linked through them.
type list[R any] struct {
	head, tail *Waiter[R]
	tokens     int64
	count      int
	passing    int // waiters that do not stay
}

func (q *list[R]) push(w *Waiter[R]) {
	w.in, w.prev = q, q.tail
	if q.tail == nil {
		q.head = w
	} else {
		q.tail.next = w
	}
	q.tail = w
	q.add(w, 1)
}

func (q *list[R]) remove(w *Waiter[R]) {
	if w.prev == nil {
		q.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.in, w.prev, w.next = nil, nil, nil
	q.add(w, -1)
}

func (q *list[R]) add(w *Waiter[R], by int) {
	q.count += by
	q.tokens += w.counts() * int64(by)
	if !w.Stays {
		q.passing += by
	}
}

// since returns the first waiter whose sequence number is above seq.
func (q *list[R]) since(seq uint64) *Waiter[R] {
	if q.head == nil || q.head.seq > seq {
		return q.head
	}
	var first *Waiter[R]
	for w := q.tail; w.seq > seq; w = w.prev {
		first = w
	}
	return first
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
// it gets its tokens before its deadline, by what is known of the windows to come.
func (l *Line[R]) Serve(hand, left int64, to Windows, verdict func(*Waiter[R], Verdict)) int64 {
	l.parked = false
	for w := l.First(); w != nil; w = l.First() { // each leaves, or is parked, or is the last
		l.visits++
		var ahead int64 // tokens of parked waiters
		if l.parked {
			ahead = l.early.tokens
		}
		switch blocked := w.Stays && l.parked; {
		case w.N <= hand && !blocked:
			hand -= w.N
			verdict(w, Grant)
		case w.N-hand <= left && !blocked:
			return hand
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

// park parks w, behind the early waiters, which are parked with the first w of a Serve. Their
// deadlines are compared again if one may be missed now.
func (l *Line[R]) park(w *Waiter[R], ahead int64, to Windows, verdict func(*Waiter[R], Verdict)) {
	if !l.parked {
		l.parked = true
		if was := l.windows; to.Next > l.inTime || to.Length != was.Length || to.Tokens != was.Tokens {
			l.compare(to, verdict)
		}
		l.windows = to
	}
	if w.in != &l.early {
		w.in.remove(w)
		l.early.push(w)
		l.inTime = min(l.inTime, latest(to, w, ahead))
	}
}

// compare compares the early waiters with their deadlines.
func (l *Line[R]) compare(to Windows, verdict func(*Waiter[R], Verdict)) {
	var ahead int64
	l.inTime = math.MaxInt64
	for w := l.early.head; w != nil; {
		l.visits++
		next := w.next
		if at := latest(to, w, ahead); at < to.Next {
			verdict(w, Miss)
		} else {
			ahead += w.counts()
			l.inTime = min(l.inTime, at)
		}
		w = next
	}
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
	*w = Waiter[R]{Ready: w.Ready}
	p.free.Put(w)
}

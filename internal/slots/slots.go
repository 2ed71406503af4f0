// Package slots bounds how many calls are in flight at once, and lines up who wants to make
// the next one: a semaphore whose waiters hold no goroutine.
//
// The bound adapts to what the called side serves, as TCP's window does: a failure halves it,
// and it rises by one when as many calls as it allows have succeeded. Calls that were in
// flight at a failure are of the same congestion, so their failures do not count.
package slots

import "sync"

// Slots are the slots of one kind of call; T is who wants one. Call Init first. It is safe
// for concurrent use, and calls nothing back.
type Slots[T any] struct {
	mu    sync.Mutex
	most  int // the bound while all goes well
	bound int // from 1 to most
	good  int // calls that have succeeded since the bound changed
	same  int // calls in flight since the last failure that counts
	taken int
	line  []T
}

// Init sets the largest number of calls in flight, at least 1.
func (s *Slots[T]) Init(most int) { s.most, s.bound = most, most }

// Take takes a slot for t if one is free.
func (s *Slots[T]) Take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.bound {
		return false
	}
	s.taken++
	return true
}

// Push puts t at the end of the line.
func (s *Slots[T]) Push(t T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line = append(s.line, t)
}

// Ready reports whether a slot is free that somebody waits for.
func (s *Slots[T]) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken < s.bound && len(s.line) > 0
}

// Next takes a slot for the first in line, who leaves the line, if a slot is free.
func (s *Slots[T]) Next() (t T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken >= s.bound || len(s.line) == 0 {
		return t, false
	}
	var none T
	t, s.line[0] = s.line[0], none
	if s.line = s.line[1:]; len(s.line) == 0 {
		s.line = nil
	}
	s.taken++
	return t, true
}

// Outcome is how the call in a slot has ended.
type Outcome uint8

const (
	Unused   Outcome = iota // no call was made
	Answered                // the called side has answered
	Failed                  // it has not, or turned the call away
)

// Free gives a slot back.
func (s *Slots[T]) Free(o Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if s.same > 0 {
		s.same--
		return
	}
	switch o {
	case Failed:
		s.bound, s.good, s.same = max(s.bound/2, 1), 0, s.taken
	case Answered:
		if s.good++; s.good >= s.bound && s.bound < s.most {
			s.bound, s.good = s.bound+1, 0
		}
	}
}

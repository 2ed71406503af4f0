// Package slots bounds how many calls are in flight at once, and lines up who wants to make
// the next one: a semaphore whose waiters hold no goroutine.
//
// The bound adapts to what the called side serves, as TCP's window does: it begins small
// and doubles with each round trip (slow start), until a call fails or is slow. That halves
// it, and from then on it rises by one with each round trip. Many processes may begin at one
// instant, and none of them knows of the others.
package slots

import (
	"sync"
	"time"
)

// Slots are the slots of one kind of call; T is who wants one. Call Init first. It is safe
// for concurrent use, and calls nothing back.
type Slots[T any] struct {
	mu          sync.Mutex
	least, most int
	bound       int // of calls in flight, from least to most
	calm        int // up to this bound nothing failed; above it the bound rises slowly
	good        int // calls in a row that were served in time, while the bound rises slowly
	old         int // calls in flight since before the bound was halved, which are no news
	fastest     time.Duration
	taken       int
	line        []T
}

// Init sets the bounds of calls in flight, at least 1. If they are equal nothing adapts.
func (s *Slots[T]) Init(least, most int) { s.least, s.most, s.bound, s.calm = least, most, least, most }

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

// Clear makes the line empty, and returns who stood in it.
func (s *Slots[T]) Clear() (line []T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line, s.line = s.line, nil
	return line
}

// Outcome is how the call in a slot has ended.
type Outcome uint8

const (
	Unused   Outcome = iota // no call was made, or its end says nothing of the called side
	Answered                // the called side has answered
	Failed                  // it has not, or turned the call away
)

// slack is how much longer than twice the fastest call a call may take in time.
const slack = 5 * time.Millisecond

// Free gives a slot back. took is how long the call took, if it was answered.
func (s *Slots[T]) Free(o Outcome, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	if o == Answered {
		s.fastest += s.fastest >> 10 // the way may have become longer for good
		if s.bound == s.least {      // then it is not these calls that make it slow
			s.fastest += s.fastest >> 4
		}
		if took < s.fastest || s.fastest == 0 {
			s.fastest = took
		}
	}
	switch {
	case o == Unused:
	case s.old > 0:
		s.old--
	case o == Failed || took > 2*s.fastest+slack:
		s.bound = max(s.bound/2, s.least)
		s.calm, s.good, s.old = s.bound, 0, s.taken
	case s.bound < s.calm:
		s.bound++
	default:
		if s.good++; s.good >= s.bound {
			s.bound, s.good = s.bound+1, 0
		}
	}
	s.bound = min(s.bound, s.most)
	if s.taken == 0 && len(s.line) == 0 { // what it was says nothing of the next time
		s.bound, s.calm, s.good = s.least, s.most, 0
	}
}

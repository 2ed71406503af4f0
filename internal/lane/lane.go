// Package lane bounds how many calls are in flight at once, and lines up who wants to make
// the next one: a semaphore whose waiters hold no goroutine.
//
// Some calls are more urgent than the rest. They go first, and the rest may take only a part
// of the slots, so an urgent call finds room however long the line of the rest is.
package lane

import "sync"

// Lane is the slots, and two lines of those who wait for one; T is who wants one. Call Init
// first. It is safe for concurrent use, and calls nothing back.
type Lane[T any] struct {
	mu         sync.Mutex
	most       int // calls in flight
	mostOfRest int // those of them that are not urgent

	inFlight, rest int
	urgent, others []T // the lines, each in the order of coming
}

// Init sets how many calls may be in flight, and how many of these may be of the rest, which is
// at most most.
func (l *Lane[T]) Init(most, mostOfRest int) { l.most, l.mostOfRest = most, mostOfRest }

// free reports whether a slot is free. The caller holds the lock.
func (l *Lane[T]) free(urgent bool) bool {
	return l.inFlight < l.most && (urgent || l.rest < l.mostOfRest)
}

// occupy takes a slot that is free, or gives it back if n is -1. The caller holds the lock.
func (l *Lane[T]) occupy(urgent bool, n int) {
	l.inFlight += n
	if !urgent {
		l.rest += n
	}
}

// Take takes a slot if one is free.
func (l *Lane[T]) Take(urgent bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.free(urgent) {
		return false
	}
	l.occupy(urgent, 1)
	return true
}

// Free gives back a slot that was taken as urgent or as one of the rest.
func (l *Lane[T]) Free(urgent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.occupy(urgent, -1)
}

// Push puts t at the end of a line.
func (l *Lane[T]) Push(t T, urgent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.line(urgent)
	*line = append(*line, t)
}

func (l *Lane[T]) line(urgent bool) *[]T {
	if urgent {
		return &l.urgent
	}
	return &l.others
}

// due reports whether the first in a line may go. The caller holds the lock.
func (l *Lane[T]) due(urgent bool) bool { return len(*l.line(urgent)) > 0 && l.free(urgent) }

// Ready reports whether somebody in line may go.
func (l *Lane[T]) Ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.due(true) || l.due(false)
}

// Next takes a slot for the first who may go, and who leaves the line.
func (l *Lane[T]) Next() (t T, urgent, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	urgent = l.due(true)
	if !urgent && !l.due(false) {
		return t, false, false
	}
	line := l.line(urgent)
	var none T
	t, (*line)[0] = (*line)[0], none
	if *line = (*line)[1:]; len(*line) == 0 {
		*line = nil
	}
	l.occupy(urgent, 1)
	return t, urgent, true
}

// Clear makes both lines empty, and returns who stood in them.
func (l *Lane[T]) Clear() (stood []T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stood = append(l.urgent, l.others...)
	l.urgent, l.others = nil, nil
	return stood
}

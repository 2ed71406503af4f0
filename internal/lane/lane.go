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

	// All that follows is guarded by mu. rest counts those in flight that are not urgent, so it is a part of inFlight. Each line
	// is in the order of coming.
	inFlight, rest int
	urgent, others []T
}

// Init sets how many calls may be in flight, and how many of these may be of the rest, which is
// at most most.
func (l *Lane[T]) Init(most, mostOfRest int) { l.most, l.mostOfRest = most, mostOfRest }

// Take takes a slot if one is free. It looks at no line: whoever asks first has it. A line stands only while no slot is free, or
// while its owner holds it up.
func (l *Lane[T]) Take(urgent bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight == l.most || !urgent && l.rest == l.mostOfRest {
		return false
	}
	if l.inFlight++; !urgent {
		l.rest++
	}
	return true
}

// Free gives back a slot that was taken as urgent or as one of the rest.
func (l *Lane[T]) Free(urgent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inFlight--; !urgent {
		l.rest--
	}
}

// Push puts t at the end of a line.
func (l *Lane[T]) Push(t T, urgent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if urgent {
		l.urgent = append(l.urgent, t)
	} else {
		l.others = append(l.others, t)
	}
}

// Ready reports whether somebody in line may go.
func (l *Lane[T]) Ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight < l.most && (len(l.urgent) > 0 || len(l.others) > 0 && l.rest < l.mostOfRest)
}

// Next takes a slot for the first who may go, and who leaves the line. The urgent go first. If they have to wait, then all slots
// are taken, so the others wait, too.
func (l *Lane[T]) Next() (t T, urgent, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := &l.others
	if urgent = len(l.urgent) > 0; urgent {
		line = &l.urgent
	}
	if len(*line) == 0 || l.inFlight == l.most || !urgent && l.rest == l.mostOfRest {
		return t, false, false
	}
	if l.inFlight++; !urgent {
		l.rest++
	}
	// Leave the line. What stood there must not be kept from the garbage collector.
	var none T
	t, (*line)[0] = (*line)[0], none
	if *line = (*line)[1:]; len(*line) == 0 {
		*line = nil // and not an array of which nothing is used
	}
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

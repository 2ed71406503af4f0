package reservoir

import (
	"sync"
	"time"
)

// place is a caller's turn in what a key will fetch. Its outcome is written
// under entry.mu before ready is told, and only read after. Its caller alone
// keeps it when it has left the queue, and may use it again.
type place struct {
	n        int64
	wait     bool   // stays through a refusal, until the reset
	deadline int64  // of a waiter, in clock time; 0 = none
	turn     uint64 // grows along the queue

	ready  chan struct{} // of one
	done   bool
	result Result
	err    error
	win    *window // that paid, when allowed

	prev, next *place
}

// queue is the places of one key, first come first. Guarded by entry.mu.
type queue struct {
	head, tail *place
	tokens     int64 // that all places together ask for
	once       int   // places that do not wait for the reset
	turns      uint64
}

func (q *queue) empty() bool { return q.head == nil }

func (q *queue) push(p *place) {
	q.turns++
	p.turn, p.prev = q.turns, q.tail
	if q.tail == nil {
		q.head = p
	} else {
		q.tail.next = p
	}
	q.tail = p
	q.tokens += p.n
	if !p.wait {
		q.once++
	}
}

func (q *queue) remove(p *place) {
	if p.prev == nil {
		q.head = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		q.tail = p.prev
	} else {
		p.next.prev = p.prev
	}
	p.prev, p.next = nil, nil
	q.tokens -= p.n
	if !p.wait {
		q.once--
	}
}

// settle removes p and tells its caller the outcome.
func (q *queue) settle(p *place, r Result, w *window, err error) {
	q.remove(p)
	p.done, p.result, p.win, p.err = true, r, w, err
	p.ready <- struct{}{}
}

// places are used again, for a crowd's sake, and so are the timers of those who
// wait in them. They belong to one limiter, as they may to one bubble of a test.
type places struct{ free, timers sync.Pool }

func (s *places) get(n int64, wait bool) *place {
	p, ok := s.free.Get().(*place)
	if !ok {
		p = &place{ready: make(chan struct{}, 1)}
	}
	p.n, p.wait = n, wait
	return p
}

// put takes p back from its caller, who must have left the queue.
func (s *places) put(p *place) {
	select {
	case <-p.ready: // told, but the caller had left
	default:
	}
	*p = place{ready: p.ready}
	s.free.Put(p)
}

func (s *places) timer(d time.Duration) *time.Timer {
	if t, ok := s.timers.Get().(*time.Timer); ok {
		t.Reset(d)
		return t
	}
	return time.NewTimer(d)
}

func (s *places) stop(t *time.Timer) {
	t.Stop()
	s.timers.Put(t)
}

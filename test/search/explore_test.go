package search

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A result is what a search has found.
type result struct {
	states, steps int
	depth         int
	took          time.Duration
	whole         bool // nothing is left to look at
	err           error
	trace         []string // how the error comes about
	seen          [kinds]int
}

func (r result) rate() float64 { return float64(r.states) / r.took.Seconds() }

// set is a set of hashes. Two states of the same hash are taken for one: of n states n*n/2^65 are expected to be
// missed, which is 0.0003 of 10^8.
type set struct {
	slots []uint64
	n     int
}

func newSet() *set { return &set{slots: make([]uint64, 1<<16)} }

// add reports whether h is new.
func (s *set) add(h uint64) bool {
	if h == 0 {
		h = 1
	}
	if 4*s.n >= 3*len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, 2*len(old))
		for _, h := range old {
			if h != 0 {
				s.slots[s.slot(h)] = h
			}
		}
	}
	at := s.slot(h)
	if s.slots[at] == h {
		return false
	}
	s.slots[at] = h
	s.n++
	return true
}

//go:norace
func (s *set) slot(h uint64) int {
	mask := uint64(len(s.slots) - 1)
	at := h & mask
	for s.slots[at] != 0 && s.slots[at] != h {
		at = (at + 1) & mask
	}
	return int(at)
}

// A frame is a state on a way, and what may happen next and was not looked at.
type frame struct {
	s    *state
	next []action
	by   action
}

// search is what wide and deep have in common.
type search struct {
	*scope
	known *set
	began time.Time
	r     result
}

func (c *scope) search() *search { return &search{scope: c, known: newSet(), began: time.Now()} }

// step lets a happen in from, and returns the state if it is new. If it is wrong, way leads to from.
func (c *search) step(from *state, a action, way func() []action) (*state, uint64) {
	c.r.steps++
	c.r.seen[a.kind]++
	s, err := c.after(from, a)
	sum := c.hash(s)
	if err == nil {
		if !c.known.add(sum) {
			c.spare = s
			return nil, 0
		}
		err = c.rest(s)
	}
	if c.r.err = err; err != nil {
		at := c.start()
		for _, a := range append(way(), a) {
			c.r.trace = append(c.r.trace, c.text(at, a))
			at, _ = c.after(at, a)
		}
		c.r.depth = len(c.r.trace)
	}
	return s, sum
}

func (c *search) end(whole bool) result {
	c.r.whole, c.r.states, c.r.took = whole, c.known.n, time.Since(c.began)
	return c.r
}

// wide looks at the states that need few steps first, and so finds a shortest way to an error.
func (c *scope) wide(states int) result {
	type origin struct {
		from int32
		by   action
	}
	all, first := c.search(), c.start()
	all.known.add(c.hash(first))
	queue, origins := []*state{first}, []origin{{from: -1}}
	var to []action
	for at := 0; at < len(queue); at++ {
		from := queue[at]
		queue[at] = nil
		to = c.actions(from, to[:0])
		for _, a := range to {
			next, _ := all.step(from, a, func() (way []action) {
				for i := int32(at); i > 0; i = origins[i].from {
					way = append(way, origins[i].by)
				}
				slices.Reverse(way)
				return way
			})
			if all.r.err != nil || all.known.n >= states {
				return all.end(false)
			}
			if next != nil {
				queue, origins = append(queue, next), append(origins, origin{int32(at), a})
			}
		}
	}
	return all.end(true)
}

// A region is what deep looks at together: the states behind one that is a few steps away.
type region struct {
	way   []action
	stack []frame
}

// deep looks at all states, in some regions by turns, so that a search that is cut off has seen some of everything. It
// needs memory for little more than the hashes.
func (c *scope) deep(states int, until time.Time) result {
	const regions, turn = 200, 64
	all, first := c.search(), c.start()
	all.known.add(c.hash(first))
	queue := []region{{stack: []frame{{s: first, next: c.shuffled(first, 0)}}}}
	for len(queue) > 0 && all.r.err == nil {
		now := queue[0]
		queue = queue[1:]
		for end := all.known.n + turn; len(now.stack) > 0 && all.known.n < end; {
			top := &now.stack[len(now.stack)-1]
			if len(top.next) == 0 {
				now.stack = now.stack[:len(now.stack)-1]
				continue
			}
			a := top.next[0]
			top.next = top.next[1:]
			next, sum := all.step(top.s, a, now.path)
			if all.r.err != nil || all.known.n >= states || all.known.n%1024 == 0 && time.Now().After(until) {
				return all.end(false)
			}
			if next == nil {
				continue
			}
			f := frame{s: next, next: c.shuffled(next, sum), by: a}
			if len(now.stack) == 1 && len(queue) < regions {
				queue = append(queue, region{now.path(), []frame{f}})
				queue[len(queue)-1].way = append(queue[len(queue)-1].way, a)
				continue
			}
			now.stack = append(now.stack, f)
			all.r.depth = max(all.r.depth, len(now.way)+len(now.stack))
		}
		if len(now.stack) > 0 {
			queue = append(queue, now)
		}
	}
	return all.end(true)
}

// path is the way to the last state.
func (r *region) path() []action {
	way := slices.Clone(r.way)
	for _, f := range r.stack[min(1, len(r.stack)):] {
		way = append(way, f.by)
	}
	return way
}

// shuffled returns what may happen in s, in an order that depends on its hash.
func (c *scope) shuffled(s *state, sum uint64) []action {
	list := c.actions(s, nil)
	rand.New(rand.NewPCG(sum, c.seed)).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

func (r result) String() string {
	text := fmt.Sprintf("%d states in %v, %.0f a second, %d steps, depth %d, whole %v", r.states, r.took.Round(time.Millisecond), r.rate(), r.steps, r.depth, r.whole)
	if r.err != nil {
		text += fmt.Sprintf("\n%v", r.err)
		for _, line := range r.trace {
			text += "\n\t" + line
		}
	}
	return text
}

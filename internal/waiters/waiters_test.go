package waiters

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// line is a Line whose waiters are told what became of them.
type line struct {
	Line[string]
	pool Pool[string]
	all  []*Waiter[string]
}

func (l *line) push(n int64, stays bool) *Waiter[string] {
	w := l.pool.Get(n, stays)
	l.Push(w)
	l.all = append(l.all, w)
	return w
}

// serve serves the line; who has a deadline reaches its turn if no more tokens than
// that are ahead of it.
func (l *line) serve(hand, left int64) int64 {
	return l.Serve(hand, left, func(w *Waiter[string], ahead int64) bool {
		return w.Deadline == 0 || ahead <= w.Deadline
	}, func(w *Waiter[string], v Verdict) {
		l.Notify(w, []string{"grant", "refuse", "miss"}[v])
	})
}

// said is what all that were ever pushed were told, in order.
func (l *line) said() (s []string) {
	for _, w := range l.all {
		switch {
		case w.Outcome != "":
			s = append(s, w.Outcome)
		case w.Done():
			s = append(s, "left")
		case w.parked:
			s = append(s, "parked")
		default:
			s = append(s, "waits")
		}
	}
	return s
}

// TestServe: n asks and leaves if it must wait for the reset, -n stays.
func TestServe(t *testing.T) {
	const inf = math.MaxInt64
	for _, row := range []struct {
		name       string
		line       []int64
		hand, left int64
		rest       int64
		want       []string
	}{
		{"empty", nil, 5, inf, 5, nil},
		{"all that is there", []int64{2, -3}, 5, 0, 0, []string{"grant", "grant"}},
		{"the first holds up those behind it", []int64{4, 1, -1}, 3, inf, 3, []string{"waits", "waits", "waits"}},
		{"to the token", []int64{4, 1}, 3, 1, 3, []string{"waits", "waits"}},
		{"who cannot be served is refused, and holds up nobody", []int64{5, 1}, 3, 1, 2, []string{"refuse", "grant"}},
		{"or is parked, if it stays", []int64{-5, 1}, 3, 1, 2, []string{"parked", "grant"}},
		{"who stays passes nobody who does", []int64{-5, -1, 1, -2}, 3, 1, 2, []string{"parked", "parked", "grant", "parked"}},
		{"but who leaves may hold up those behind it", []int64{-5, 4, -1, 1}, 3, 1, 3, []string{"parked", "waits", "waits", "waits"}},
		{"nothing is left", []int64{1, -1}, 0, 0, 0, []string{"refuse", "parked"}},
		{"as many as there are numbers", []int64{inf, 1}, 2, inf, 2, []string{"waits", "waits"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var l line
			for _, n := range row.line {
				l.push(max(n, -n), n < 0)
			}
			assert.Equal(t, row.rest, l.serve(row.hand, row.left))
			assert.Equal(t, row.want, l.said())
		})
	}
}

// TestMiss: who stays, and would be served after its deadline, is told at once, and is
// ahead of nobody.
func TestMiss(t *testing.T) {
	var l line
	for _, w := range []struct{ n, deadline int64 }{{4, 0}, {5, 3}, {6, 4}, {2, 9}, {2, 10}} {
		l.push(w.n, true).Deadline = w.deadline
	}
	l.serve(0, 0)
	assert.Equal(t, []string{"parked", "miss", "parked", "miss", "parked"}, l.said())
}

// TestWakeUp: a waiter is told once, without blocking, and is empty when it is used
// again, though its caller has left without a look.
func TestWakeUp(t *testing.T) {
	var l line
	for range 100 {
		w := l.push(2, true)
		w.Deadline = 7
		l.Notify(w, "grant")
		assert.True(t, w.Done())
		require.Len(t, w.Ready, 1)
		l.pool.Put(w)
		w = l.pool.Get(1, false)
		require.Empty(t, w.Ready)
		require.Equal(t, Waiter[string]{N: 1, Ready: w.Ready, Timer: w.Timer}, *w)
		l.pool.Put(w)
	}
}

// TestAfter: one timer serves a waiter for all its waits.
func TestAfter(t *testing.T) {
	var p Pool[string]
	w := p.Get(1, false)
	<-w.After(time.Millisecond)
	timer := w.Timer
	<-w.After(time.Millisecond)
	assert.Same(t, timer, w.Timer)
	p.Put(w)
	assert.NotNil(t, w.Ready)
	assert.Same(t, timer, w.Timer)
}

// TestEach: in order, and the one that it is given may be told.
func TestEach(t *testing.T) {
	var l line
	for n := range int64(4) {
		l.push(n, false)
	}
	var seen []int64
	l.Each(func(w *Waiter[string]) {
		seen = append(seen, w.N)
		if w.N%2 == 0 {
			l.Notify(w, "gone")
		}
	})
	assert.Equal(t, []int64{0, 1, 2, 3}, seen)
	assert.EqualValues(t, 1, l.First().N)
	assert.EqualValues(t, 4, l.Last())
	assert.EqualValues(t, 2, l.First().Seq())
}

// TestAgainstModel compares a line with a plain list under random events.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var l line
		var m model
		for step := range 60 {
			switch rnd.IntN(4) {
			case 0, 1:
				w := l.push(1+rnd.Int64N(5), rnd.IntN(2) == 0)
				w.Deadline = rnd.Int64N(3) * 4
				m = append(m, &entry{n: w.N, stays: w.Stays, deadline: w.Deadline, seq: uint64(len(l.all))})
			case 2:
				if len(m) > 0 {
					i := rnd.IntN(len(m))
					l.Remove(l.all[m[i].seq-1])
					m = slices.Delete(m, i, i+1)
				}
			case 3:
				hand, left := rnd.Int64N(8), rnd.Int64N(6)
				before := l.said()
				rest := l.serve(hand, left)
				want := m.serve(hand, left, before)
				require.Equal(t, want, rest, "seed %d, step %d", seed, step)
				require.Equal(t, before, l.said(), "seed %d, step %d", seed, step)
			}
			require.Equal(t, m.String(), l.String(), "seed %d, step %d", seed, step)
		}
	}
}

// String is all that a Line says of itself.
func (l *line) String() string {
	s := fmt.Sprint(l.Empty(), l.Tokens(), l.Active(), l.Passing(), l.Parked(), l.Last() == uint64(len(l.all)))
	if w := l.First(); w != nil {
		s += fmt.Sprint(" first ", w.Seq())
	}
	l.Each(func(w *Waiter[string]) { s += fmt.Sprint(" ", w.Seq()) })
	for w := l.tail; w != nil; w = w.prev { // the other way round
		s += fmt.Sprint(" ", w.Seq())
	}
	return s
}

// entry is a waiter of the model.
type entry struct {
	n, deadline   int64
	seq           uint64
	stays, parked bool
}

type model []*entry

// serve is the rules of Serve, each as it is told: one after the other, with a look
// back for those who stay. It writes into said what each is told.
func (m *model) serve(hand, left int64, said []string) int64 {
	var kept model
	held := false // somebody could be served by what the store has left
	for _, e := range *m {
		var ahead int64
		for _, k := range kept {
			if k.stays && k.parked {
				ahead += k.n
			}
		}
		behind := e.stays && ahead > 0
		switch {
		case held:
			e.parked, kept = false, append(kept, e)
			said[e.seq-1] = "waits"
		case !behind && e.n <= hand:
			hand -= e.n
			said[e.seq-1] = "grant"
		case !behind && e.n <= hand+left:
			held = true
			e.parked, kept = false, append(kept, e)
			said[e.seq-1] = "waits"
		case !e.stays:
			said[e.seq-1] = "refuse"
		case e.deadline != 0 && ahead > e.deadline:
			said[e.seq-1] = "miss"
		default:
			e.parked, kept = true, append(kept, e)
			said[e.seq-1] = "parked"
		}
	}
	*m = kept
	return hand
}

func (m model) String() string {
	var tokens int64
	var active, passing, parked int
	var first *entry
	order, back := "", ""
	for _, e := range m {
		if e.parked {
			parked++
		} else {
			if first == nil {
				first = e
			}
			tokens += e.n
			active++
			if !e.stays {
				passing++
			}
		}
		order += fmt.Sprint(" ", e.seq)
		back = fmt.Sprint(" ", e.seq) + back
	}
	s := fmt.Sprint(len(m) == 0, tokens, active, passing, parked, true)
	if first != nil {
		s += fmt.Sprint(" first ", first.seq)
	}
	return s + order + back
}

package waiters

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

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

// later is the windows to come: the next opens at 100, and each lasts 10 and has 4 tokens.
var later = Windows{Next: 100, Length: 10, Tokens: 4}

func (l *line) serve(hand, left int64) int64 { return l.serveBefore(later, hand, left) }

func (l *line) serveBefore(to Windows, hand, left int64) int64 {
	return l.Serve(hand, left, to, func(w *Waiter[string], v Verdict) {
		l.Notify(w, []string{"grant", "refuse", "miss"}[v])
	})
}

// said is what all that were ever pushed were told, in order.
func (l *line) said() (s []string) {
	for _, w := range l.all {
		switch {
		case w.Outcome != "":
			s = append(s, w.Outcome)
		case !w.InLine:
			s = append(s, "left")
		case l.parked && w.parked:
			s = append(s, "parked")
		default:
			s = append(s, "waits")
		}
	}
	return s
}

// TestMiss: who stays, and would be served after its deadline, is told at once, and is
// ahead of nobody.
func TestMiss(t *testing.T) {
	var l line
	for _, w := range []struct{ n, deadline int64 }{
		{4, 0}, {4, 109}, {4, 110}, {3, 119}, {1, 110}, {2, 120}, // in the windows at 100, 110, 110, 120, 110, 120
		{1, 100}, {1, -5}, {1 << 60, 1 << 61}, {1 << 40, 0}, {1, 1 << 41}, {1, 1 << 43}, // in a window at 2.5 << 40
	} {
		l.push(w.n, true).Deadline = w.deadline
	}
	l.serve(0, 0)
	told := []string{"parked", "miss", "parked", "miss", "miss", "parked", "miss", "miss", "miss", "parked", "miss", "parked"}
	assert.Equal(t, told, l.said())
	l.serveBefore(Windows{Next: 101, Length: 10, Tokens: 4}, 0, 0)
	told[2] = "miss"
	assert.Equal(t, told, l.said(), "the next window opens later")
	l.serveBefore(Windows{Next: 100, Length: 20, Tokens: 4}, 0, 0)
	l.serveBefore(Windows{Next: 110, Length: 10, Tokens: 4}, 0, 0)
	assert.Equal(t, told, l.said(), "just in time")
	l.serveBefore(Windows{Next: 110, Length: 10, Tokens: 2}, 0, 0)
	told[5] = "miss"
	assert.Equal(t, told, l.said(), "it has fewer tokens")
	for _, row := range []struct{ n, deadline, want int64 }{
		{1, 0, math.MaxInt64}, {4, 30, 29}, {5, 30, 20}, {9, 25, 5}, {13, 29, math.MinInt64}, {5, -1, math.MinInt64}, {4, -1, -2},
	} {
		assert.Equal(t, row.want, latest(later, &Waiter[string]{N: row.n, Deadline: row.deadline}, 0), "%+v", row)
	}
}

// TestMissLater: who was in time is told when the windows to come are known to be later, or longer.
func TestMissLater(t *testing.T) {
	for _, last := range []Windows{{120, 10, 4}, {100, 30, 4}} {
		var l line
		l.push(1, true)
		l.push(4, true).Deadline = 120 // in the second window
		for _, to := range []Windows{{90, 20, 4}, {100, 10, 4}} {
			l.serveBefore(to, 0, 0)
			assert.Equal(t, []string{"parked", "parked"}, l.said())
		}
		l.serveBefore(last, 0, 0)
		assert.Equal(t, []string{"parked", "miss"}, l.said(), "%+v", last)
	}
}

// TestHugeTokens: a waiter counts for 1<<40 tokens at most, unless it is the first, and no more when it has gone.
func TestHugeTokens(t *testing.T) {
	const huge, most = 1<<53 - 1, 1 << 40
	var l line
	for range 3 {
		l.push(huge, true)
		l.push(huge, false)
	}
	l.push(7, false)
	assert.Nil(t, l.Rests)
	assert.EqualValues(t, huge+5*most+7, l.Tokens)
	assert.EqualValues(t, 3, l.serve(3, huge-4), "the three that stay are parked")
	assert.Equal(t, []string{"parked", "refuse", "parked", "refuse", "parked", "refuse", "waits"}, l.said())
	assert.EqualValues(t, 7, l.Tokens)
	assert.EqualValues(t, huge, l.Rests.N)
	l.serve(huge, math.MaxInt64)
	assert.EqualValues(t, huge+most+7, l.Tokens)
}

// TestCostOfAnEvent: an event visits the head of the line, newcomers and those that leave,
// in a line of 20,000 as in one of 2,000. Deadlines are compared if one may be missed now.
func TestCostOfAnEvent(t *testing.T) {
	const many, few, unknown = 20_000, 2_000, math.MaxInt64
	type visits struct{ arrive, come, cancel, reset, serve, since, pass int }
	in := func(n int, parked bool, deadline int64) (v visits) {
		var l line
		left := int64(unknown)
		if parked {
			left = 0
		}
		of := func(events int, event func(i int)) int {
			before := l.visits
			for i := range events {
				event(i)
			}
			return l.visits - before
		}
		come := func(i int) {
			l.push(1, i%7 > 0 || parked).Deadline = deadline
			l.serve(0, left)
		}
		for i := range n {
			come(i)
		}
		v.arrive = of(100, come)
		v.come = of(100, func(i int) { // to a parked line, and to a line that the probe made active
			come(i)
			l.serve(0, unknown)
			l.serve(0, left)
		})
		v.cancel = of(100, func(i int) {
			l.Remove(l.all[n/4+2*i])
			l.serve(0, left)
		})
		v.reset = of(1, func(int) {
			l.serve(0, unknown)
			l.serveBefore(Windows{Next: 200, Length: 10, Tokens: 4}, 50, left)
		})
		v.serve = of(100, func(int) { l.serveBefore(Windows{Next: 200, Length: 10, Tokens: 4}, 1, left) })
		v.since = of(100, func(int) { l.Since(l.Last-3, func(*Waiter[string]) {}) })
		v.pass = of(100, func(int) {
			l.push(0, false)
			l.serve(0, left)
		})
		return v
	}
	fetching := visits{arrive: 100, come: 300, cancel: 100, reset: 52, serve: 200, since: 300, pass: 100}
	parked := visits{arrive: 200, come: 400, cancel: 100, reset: 52, serve: 200, since: 300, pass: 200}
	for _, deadline := range []int64{0, math.MaxInt64 - 1} {
		assert.Equal(t, fetching, in(few, false, deadline), "deadline %d", deadline)
		assert.Equal(t, fetching, in(many, false, deadline), "deadline %d", deadline)
		assert.Equal(t, parked, in(few, true, deadline), "deadline %d", deadline)
		assert.Equal(t, parked, in(many, true, deadline), "deadline %d", deadline)
	}

	var l line
	for range few {
		l.push(4, true).Deadline = 100 + few*10 // the last gets its tokens just in time if the next window opens at 110
	}
	for i, want := range []int{few, 1, 1, 1, few + 1, 1} {
		before := l.visits
		l.serveBefore(Windows{Next: int64(107 + i), Length: 10, Tokens: 4}, 0, 0)
		assert.Equal(t, want, l.visits-before, "the next window opens at %d", 107+i)
	}
	assert.Equal(t, few-1, l.Parked)
}

// TestWakeUp: a waiter is told once, without blocking, and is empty when it is used
// again, though its caller has left without a look.
func TestWakeUp(t *testing.T) {
	var l line
	for range 100 {
		w := l.push(2, true)
		w.Deadline = 7
		l.Notify(w, "grant")
		assert.False(t, w.InLine)
		require.Len(t, w.Ready, 1)
		l.pool.Put(w)
		w = l.pool.Get(1, false)
		require.Empty(t, w.Ready)
		require.Equal(t, Waiter[string]{N: 1, Ready: w.Ready}, *w)
		l.pool.Put(w)
	}
}

// TestAgainstModel compares a line with a plain list under random events.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var l line
		var m model
		to := later
		for step := range 60 {
			switch rnd.IntN(4) {
			case 0, 1:
				w := l.push(1+rnd.Int64N(5), rnd.IntN(2) == 0)
				w.Some = !w.Stays && rnd.IntN(2) == 0
				w.Deadline = rnd.Int64N(3) * (95 + rnd.Int64N(40))
				m = append(m, &entry{n: w.N, stays: w.Stays, some: w.Some, deadline: w.Deadline, seq: uint64(len(l.all))})
			case 2:
				if len(m) > 0 {
					i := rnd.IntN(len(m))
					l.Remove(l.all[m[i].seq-1])
					m = slices.Delete(m, i, i+1)
				}
			case 3:
				hand, left := rnd.Int64N(8), rnd.Int64N(6)
				to.Next = 100 + rnd.Int64N(12)
				if rnd.IntN(8) == 0 {
					to.Length, to.Tokens = 8+rnd.Int64N(3), 3+rnd.Int64N(3)
				}
				before := l.said()
				rest := l.serveBefore(to, hand, left)
				want := m.serve(to, hand, left, before)
				require.Equal(t, want, rest, "seed %d, step %d", seed, step)
				require.Equal(t, before, l.said(), "seed %d, step %d", seed, step)
			}
			require.Equal(t, m.String(), l.String(), "seed %d, step %d", seed, step)
		}
	}
}

// String is all that a Line says of itself.
func (l *line) String() string {
	s := fmt.Sprint(l.Len, l.Tokens, l.Active, l.Passing, l.Parked, l.Last == uint64(len(l.all)))
	if w := l.First; w != nil {
		s += fmt.Sprint(" first ", w.Seq)
	}
	if w := l.Rests; w != nil {
		s += fmt.Sprint(" rests ", w.Seq)
	}
	l.Since(0, func(w *Waiter[string]) { s += fmt.Sprint(" ", w.Seq) })
	for w := l.tail; w != nil; w = w.prev { // the other way round
		s += fmt.Sprint(" ", w.Seq)
	}
	return s
}

// entry is a waiter of the model.
type entry struct {
	n, deadline   int64
	seq           uint64
	stays, parked bool
	some          bool
}

type model []*entry

// serve is the rules of Serve, each as it is told: one after the other, with a look
// back for those who stay. It writes into said what each is told.
func (m *model) serve(to Windows, hand, left int64, said []string) int64 {
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
		case !behind && e.n <= hand+left || e.some && left > 0:
			held = true
			e.parked, kept = false, append(kept, e)
			said[e.seq-1] = "waits"
		case e.some && hand > 0:
			hand = 0
			said[e.seq-1] = "grant"
		case !e.stays:
			said[e.seq-1] = "refuse"
		case e.deadline != 0 && (e.deadline <= to.Next || (ahead+e.n-1)/to.Tokens > (e.deadline-to.Next)/to.Length):
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
	var first, rests *entry
	order, back := "", ""
	for _, e := range m {
		if e.parked {
			if rests == nil {
				rests = e
			}
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
	s := fmt.Sprint(len(m), tokens, active, passing, parked, true)
	if first != nil {
		s += fmt.Sprint(" first ", first.seq)
	}
	if rests != nil {
		s += fmt.Sprint(" rests ", rests.seq)
	}
	return s + order + back
}

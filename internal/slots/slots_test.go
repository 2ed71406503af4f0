package slots

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// takeAll takes all free slots and returns how many these were.
func takeAll(s *Slots[int]) (n int) {
	for s.Take() {
		n++
	}
	return n
}

func TestFirstInLineIsNext(t *testing.T) {
	var s Slots[int]
	s.Init(2, 2)
	assert.False(t, s.Ready())
	require.Equal(t, 2, takeAll(&s))
	for i := range 5 {
		s.Push(i)
	}
	_, ok := s.Next()
	assert.False(t, ok, "no slot is free")
	assert.False(t, s.Ready())
	var came []int
	for range 5 {
		s.Free(Answered, time.Millisecond)
		require.True(t, s.Ready())
		i, ok := s.Next()
		require.True(t, ok)
		came = append(came, i)
		require.False(t, s.Ready())
	}
	assert.Equal(t, []int{0, 1, 2, 3, 4}, came)
	s.Free(Unused, 0)
	_, ok = s.Next()
	assert.False(t, ok, "nobody is in line")
	s.Push(6)
	s.Push(7)
	assert.Equal(t, []int{6, 7}, s.Clear())
	assert.False(t, s.Ready())
	assert.True(t, s.Take())
}

// rounds makes as many calls as it may, rounds times, and returns how many these were each
// time. Somebody is in line throughout.
func rounds(s *Slots[int], times int, o Outcome, took time.Duration) (all []int) {
	for range times {
		n := takeAll(s)
		all = append(all, n)
		for range n {
			s.Free(o, took)
		}
	}
	return all
}

// TestBound: the bound doubles with each round; a failure or a slow call halves it, once for
// all calls that were in flight; then it rises by one with each round.
func TestBound(t *testing.T) {
	var s Slots[int]
	s.Init(1, 20)
	s.Push(0)
	const fast, slow = time.Millisecond, 10 * time.Millisecond
	assert.Equal(t, []int{1, 2, 4, 8, 16, 20}, rounds(&s, 6, Answered, fast))
	assert.Equal(t, []int{20, 10, 5, 2, 1, 1}, rounds(&s, 6, Failed, 0))
	assert.Equal(t, []int{1, 1, 1}, rounds(&s, 3, Unused, 0), "which says nothing")
	assert.Equal(t, []int{1, 2, 3, 4, 5}, rounds(&s, 5, Answered, 2*fast+slack))
	assert.Equal(t, []int{6, 3, 1, 1}, rounds(&s, 4, Answered, slow))

	line, ok := s.Next()
	require.True(t, ok)
	require.Zero(t, line)
	s.Free(Answered, fast)
	s.Push(0)
	assert.Equal(t, []int{1, 2, 4, 8}, rounds(&s, 4, Answered, fast), "anew after nobody was in line")
}

// TestFailureOfOne: one failure among many calls in flight halves the bound, and the others
// neither halve it again nor raise it.
func TestFailureOfOne(t *testing.T) {
	for _, o := range []Outcome{Answered, Failed} {
		var s Slots[int]
		s.Init(1, 16)
		s.Push(0)
		rounds(&s, 5, Answered, time.Millisecond)
		require.Equal(t, 16, takeAll(&s))
		s.Free(Failed, 0)
		for range 15 {
			s.Free(o, time.Millisecond)
		}
		require.Equal(t, 8, takeAll(&s))
		for range 7 {
			s.Free(Answered, time.Millisecond)
		}
		assert.Equal(t, 7, takeAll(&s), "eight must succeed before the bound rises")
	}
}

// TestWayBecomesLonger: a call that is alone in flight and yet takes longer than before
// shows a longer way. After a few of them the bound rises again.
func TestWayBecomesLonger(t *testing.T) {
	var s Slots[int]
	s.Init(1, 16)
	s.Push(0)
	rounds(&s, 100, Answered, 10*time.Millisecond)
	assert.Equal(t, []int{16, 8, 4, 2, 1, 1}, rounds(&s, 6, Answered, 50*time.Millisecond))
	rounds(&s, 14+16, Answered, 50*time.Millisecond)
	assert.Equal(t, 16, takeAll(&s))
}

// TestFixed: if the bounds are equal, nothing changes them.
func TestFixed(t *testing.T) {
	var s Slots[int]
	s.Init(8, 8)
	assert.Equal(t, []int{8, 8}, rounds(&s, 2, Failed, 0))
	assert.Equal(t, []int{8, 8}, rounds(&s, 2, Answered, time.Millisecond))
	assert.Equal(t, []int{8, 8}, rounds(&s, 2, Answered, time.Second))
}

func TestNeverMoreThanTheBound(t *testing.T) {
	const most, all = 4, 1000
	var s Slots[int]
	s.Init(most, most)
	var inFlight, served atomic.Int64
	var goOn func()
	var wg sync.WaitGroup
	call := func() {
		assert.LessOrEqual(t, inFlight.Add(1), int64(most))
		served.Add(1)
		inFlight.Add(-1)
		s.Free(Answered, time.Millisecond)
		goOn()
	}
	goOn = func() {
		for {
			if _, ok := s.Next(); !ok {
				return
			}
			wg.Go(call)
		}
	}
	for i := range all {
		wg.Go(func() {
			if s.Take() {
				call()
				return
			}
			s.Push(i)
			if s.Ready() { // a slot has become free in between
				goOn()
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, all, served.Load())
	assert.False(t, s.Ready())
	assert.Equal(t, most, takeAll(&s))
	assert.Empty(t, s.line)
}

package slots

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"

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
	s.Init(2)
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
		s.Free(Answered)
		require.True(t, s.Ready())
		i, ok := s.Next()
		require.True(t, ok)
		came = append(came, i)
		require.False(t, s.Ready())
	}
	assert.Equal(t, []int{0, 1, 2, 3, 4}, came)
	s.Free(Unused)
	_, ok = s.Next()
	assert.False(t, ok, "nobody is in line")
	assert.True(t, s.Take())
}

// TestBound: a failure halves the bound, once for all calls that were in flight; calls that
// succeed raise it by one for as many as it allows.
func TestBound(t *testing.T) {
	var s Slots[int]
	s.Init(8)
	bounds := func(o Outcome) (all []int) {
		for range 4 {
			n := takeAll(&s)
			all = append(all, n)
			for range n {
				s.Free(o)
			}
		}
		return all
	}
	assert.Equal(t, []int{8, 4, 2, 1}, bounds(Failed))
	assert.Equal(t, []int{1, 1, 1, 1}, bounds(Failed))
	assert.Equal(t, []int{1, 1, 1, 1}, bounds(Unused), "it says nothing")
	assert.Equal(t, []int{1, 2, 3, 4}, bounds(Answered))
	assert.Equal(t, []int{5, 6, 7, 8}, bounds(Answered))
	assert.Equal(t, []int{8, 8, 8, 8}, bounds(Answered))
}

func TestNeverMoreThanTheBound(t *testing.T) {
	const most, all = 4, 1000
	var s Slots[int]
	s.Init(most)
	var inFlight, served atomic.Int64
	var goOn func()
	var wg sync.WaitGroup
	call := func() {
		assert.LessOrEqual(t, inFlight.Add(1), int64(most))
		served.Add(1)
		inFlight.Add(-1)
		s.Free(Answered)
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
	assert.Empty(t, slices.Clone(s.line))
}

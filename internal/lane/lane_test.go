package lane

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const urgent, rest = true, false

func newLane(most, mostOfRest int) *Lane[int] {
	l := new(Lane[int])
	l.Init(most, mostOfRest)
	return l
}

// takeAll takes all free slots and returns how many these were.
func takeAll(l *Lane[int], urgent bool) (n int) {
	for l.Take(urgent) {
		n++
	}
	return n
}

// TestBounds: the rest may take a part of the slots, and urgent calls take what is left.
func TestBounds(t *testing.T) {
	l := newLane(5, 2)
	assert.Equal(t, 2, takeAll(l, rest))
	assert.Equal(t, 3, takeAll(l, urgent))
	l.Free(urgent)
	assert.False(t, l.Take(rest), "two of the rest are in flight")
	assert.True(t, l.Take(urgent))
	l.Free(rest)
	assert.True(t, l.Take(urgent))
	assert.False(t, l.Take(rest), "five are in flight")
	for range 4 {
		l.Free(urgent)
	}
	assert.Equal(t, 1, takeAll(l, rest))
	assert.Equal(t, 3, takeAll(l, urgent))
}

// TestOrder: urgent ones go first, and each line is first come, first served.
func TestOrder(t *testing.T) {
	l := newLane(2, 1)
	assert.False(t, l.Ready(), "nobody stands in line")
	require.Equal(t, 2, takeAll(l, urgent))
	for i := range 3 {
		l.Push(i, rest)
		l.Push(10+i, urgent)
	}
	_, _, ok := l.Next()
	assert.False(t, ok, "no slot is free")
	assert.False(t, l.Ready())
	var came []int
	for range 6 {
		l.Free(urgent)
		require.True(t, l.Ready())
		i, first, ok := l.Next()
		require.True(t, ok)
		require.Equal(t, i >= 10, first)
		require.False(t, l.Ready())
		if came = append(came, i); !first { // so that an urgent slot is taken again
			l.Free(rest)
			require.True(t, l.Take(urgent))
		}
	}
	assert.Equal(t, []int{10, 11, 12, 0, 1, 2}, came)
	l.Free(urgent)
	_, _, ok = l.Next()
	assert.False(t, ok, "nobody is in line")
}

// TestUrgentFindsRoom: while the rest has all that it may take, the next slots are for urgent ones.
func TestUrgentFindsRoom(t *testing.T) {
	l := newLane(3, 1)
	require.True(t, l.Take(rest))
	l.Push(1, rest)
	assert.False(t, l.Ready())
	l.Push(2, urgent)
	assert.True(t, l.Ready())
	i, first, ok := l.Next()
	assert.True(t, ok && first && i == 2)
	_, _, ok = l.Next()
	assert.False(t, ok)
	l.Free(rest)
	i, first, ok = l.Next()
	assert.True(t, ok && !first && i == 1)
}

func TestClear(t *testing.T) {
	l := newLane(1, 1)
	require.True(t, l.Take(rest))
	l.Push(1, rest)
	l.Push(2, urgent)
	l.Free(rest)
	assert.Equal(t, []int{2, 1}, l.Clear())
	assert.False(t, l.Ready())
	assert.True(t, l.Take(rest))
}

func TestNeverMoreThanTheBound(t *testing.T) {
	const most, mostOfRest, all = 6, 2, 1000
	l := newLane(most, mostOfRest)
	var inFlight, restInFlight, served atomic.Int64
	var goOn func()
	var wg sync.WaitGroup
	call := func(urgent bool) {
		assert.LessOrEqual(t, inFlight.Add(1), int64(most))
		if !urgent {
			assert.LessOrEqual(t, restInFlight.Add(1), int64(mostOfRest))
			restInFlight.Add(-1)
		}
		served.Add(1)
		inFlight.Add(-1)
		l.Free(urgent)
		goOn()
	}
	goOn = func() {
		for {
			_, urgent, ok := l.Next()
			if !ok {
				return
			}
			wg.Go(func() { call(urgent) })
		}
	}
	for i := range all {
		wg.Go(func() {
			urgent := i%2 == 0
			if l.Take(urgent) {
				call(urgent)
				return
			}
			l.Push(i, urgent)
			if l.Ready() { // a slot has become free in between
				goOn()
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, all, served.Load())
	assert.False(t, l.Ready())
	assert.Equal(t, mostOfRest, takeAll(l, rest))
	assert.Equal(t, most-mostOfRest, takeAll(l, urgent))
	assert.Empty(t, append(l.urgent, l.others...))
}

package redisstore

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBudget: a tenth of the calls, and a reserve that only load makes larger.
func TestBudget(t *testing.T) {
	now := time.Now()
	b := newBudget(now)
	all := func(calls int64) (n int) {
		for n < 1_000_000 && b.spend(now, calls) {
			n++
		}
		return n
	}
	require.Equal(t, reserve, all(0))
	require.Zero(t, all(9))
	require.Equal(t, 1, all(10))
	require.Equal(t, 99, all(1000), "of one second, all is kept")
	now = now.Add(10 * time.Second)
	require.Equal(t, 110, all(11_000), "of ten seconds, that of one")
	now = now.Add(time.Hour)
	require.Equal(t, reserve, all(20_000), "a quiet hour saves nothing up")
}

// TestRetriesAreBudgeted: of what a failing server gets, at most a tenth is
// repetitions, beside the reserve, whatever fails, however many callers there are.
func TestRetriesAreBudgeted(t *testing.T) {
	for _, answer := range []string{hangUp, "-LOADING Redis is loading the dataset in memory\r\n", "-TRYAGAIN\r\n", "-READONLY\r\n"} {
		t.Run(answer, func(t *testing.T) {
			const workers, each = 8, 100
			server := newScripted(t, func(int, *script) string { return answer })
			s := New(server.client(t))
			s.primary.whole.lanes = alone // a server that hangs up sees no more of a pipeline
			var failed atomic.Int64
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range each {
						if one(t.Context(), s, syncScript) != nil {
							failed.Add(1)
						}
					}
				})
			}
			wg.Wait()
			const calls = workers * each
			require.EqualValues(t, calls, failed.Load())
			extra := server.called() - calls
			t.Logf("%d calls, %d commands more", calls, extra)
			require.LessOrEqual(t, extra, calls/10+reserve)
			require.GreaterOrEqual(t, extra, inVain, "it does repeat")
		})
	}
}

// TestNothingIsRepeatedInVain: a server that has answered no repetition gets no more
// of them, whatever was saved up, until it has answered something.
func TestNothingIsRepeatedInVain(t *testing.T) {
	var well atomic.Bool
	server := newScripted(t, func(_ int, sc *script) string {
		if well.Load() {
			return served(sc)
		}
		return hangUp
	})
	s := New(server.client(t))
	g := s.primary.whole
	for range 3 {
		g.budget.have = 1000
		before := server.called()
		for range 100 {
			require.Error(t, one(t.Context(), s, syncScript))
		}
		require.Equal(t, 100+inVain, server.called()-before)
		well.Store(true)
		require.NoError(t, one(t.Context(), s, syncScript))
		well.Store(false)
	}
}

// TestLateIsFree: a server's clock that has stepped makes every call of the moment
// late, at a server that fails nobody.
func TestLateIsFree(t *testing.T) {
	late := func(sc *script) string { return strings.Replace(served(sc), ":0", ":1", 1) }
	server := newScripted(t, func(n int, sc *script) string {
		if n%2 == 0 {
			return late(sc)
		}
		return served(sc)
	})
	s := New(server.client(t))
	for range 5 * reserve {
		require.NoError(t, one(t.Context(), s, takeScript))
	}
	require.Equal(t, 10*reserve, server.called())
}

// TestBudgetIsPerNode: the repetitions at one node of a cluster are not at the cost
// of another.
func TestBudgetIsPerNode(t *testing.T) {
	var a, b = newGroup(nil, nil, lanes), newGroup(nil, nil, lanes)
	for a.afford(time.Now()) {
	}
	require.False(t, a.afford(time.Now()))
	require.True(t, b.afford(time.Now()))
}

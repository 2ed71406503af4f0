package redisstore

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRetriesAreBudgeted: of what a failing server gets, at most a tenth is
// repetitions, beside the reserve, whatever fails, however many callers there are.
func TestRetriesAreBudgeted(t *testing.T) {
	for _, answer := range []string{hangUp, "-LOADING Redis is loading the dataset in memory\r\n", "-TRYAGAIN\r\n", "-READONLY\r\n"} {
		t.Run(answer, func(t *testing.T) {
			const workers, each = 8, 100
			server := newScripted(t, func(int, *script) string { return answer })
			s := New(server.client(t))
			s.whole.pipelines = unbounded // a server that hangs up sees no more of a pipeline
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
			require.LessOrEqual(t, extra, calls/10+initial)
			require.GreaterOrEqual(t, extra, maxUnanswered, "it does repeat")
		})
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
	for range 5 * initial {
		require.NoError(t, one(t.Context(), s, takeScript))
	}
	require.Equal(t, 10*initial, server.called())
}

// TestBudgetIsBounded: a quiet time saves up no more than a few repetitions, and what is
// saved at one server is not spent at another.
func TestBudgetIsBounded(t *testing.T) {
	server := newScripted(t, func(_ int, sc *script) string { return served(sc) })
	s := New(server.client(t))
	spend := func(g *group) (n int) {
		for g.withdraw() {
			n++
		}
		return n
	}
	other := s.newGroup(s.client)
	for range 2 * longest {
		require.NoError(t, one(t.Context(), s, checkScript))
	}
	require.Equal(t, initial, spend(s.whole))
	require.Equal(t, initial, spend(other))
}

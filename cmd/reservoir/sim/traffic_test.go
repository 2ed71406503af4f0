package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestShapeMakesItsTraffic(t *testing.T) {
	s := Shape{Tokens: 1, Rate: 10_000, Keys: 5, Processes: 4, Length: 2 * time.Second, Seed: 1}
	a := s.Traffic()
	require.Equal(t, a, s.Traffic(), "the same seed, the same traffic")
	require.InDelta(t, s.Rate*s.Length.Seconds(), len(a.Requests), 600)
	require.Equal(t, []string{"key-0", "key-1", "key-2", "key-3", "key-4"}, a.Keys)
	require.True(t, slices.IsSortedFunc(a.Requests, func(a, b Request) int { return int(a.At - b.At) }))
	processes, keys := make([]int, 4), make([]int, 5)
	for _, q := range a.Requests {
		require.Less(t, q.At, s.Length)
		processes[q.Process]++
		keys[q.Key]++
	}
	for _, n := range processes {
		require.InDelta(t, 5000, n, 400)
	}
	for _, n := range keys {
		require.InDelta(t, 4000, n, 400)
	}
	s.Seed = 2
	require.NotEqual(t, a, s.Traffic())
}

// Each key's requests come to one process in runs, and each process gets about as many runs.
func TestShapeSticky(t *testing.T) {
	s := Shape{Tokens: 1, Rate: 10_000, Keys: 3, Processes: 4, Sticky: 20, Length: 2 * time.Second, Seed: 1}
	runs, seen, last := make([]int, 4), make([]int, 3), make([]int32, 3)
	for _, q := range s.Traffic().Requests {
		if seen[q.Key]%20 == 0 {
			runs[q.Process]++
			last[q.Key] = q.Process
		}
		seen[q.Key]++
		require.Equal(t, last[q.Key], q.Process)
	}
	for _, n := range runs {
		require.InDelta(t, 250, n, 60)
	}
}

func TestShapeZipf(t *testing.T) {
	s := Shape{Tokens: 1, Rate: 10_000, Keys: 100, Zipf: 1.3, Processes: 1, Length: time.Second, Seed: 1}
	keys := make([]int, 100)
	for _, q := range s.Traffic().Requests {
		keys[q.Key]++
	}
	require.Greater(t, keys[0], 2*keys[3])
	s.Keys = 1
	require.NotEmpty(t, s.Traffic().Requests)
}

func TestPolicies(t *testing.T) {
	list, err := Policies([]string{"direct", "fixed", "7", "10", "ladder", "adaptive", "direct", "adaptive:1-50", "adaptive:5-0"}, 1000)
	require.NoError(t, err)
	var got []string
	for _, p := range list {
		got = append(got, p.Name)
	}
	require.Equal(t, []string{"direct", "fixed 1", "fixed 10", "fixed 100", "fixed 7", "ladder", "adaptive", "adaptive 1-50", "adaptive 5-0"}, got)
	for _, bad := range []string{"", "0", "-1", "1.5", "Direct", "fixed 7", " direct", "adaptive:", "adaptive:0-5", "adaptive:7-5", "adaptive:1", "stranding:0.02", "direct:1"} {
		_, err := Policies([]string{bad}, 1000)
		require.ErrorIs(t, err, ErrPolicy, bad)
	}
	for _, p := range list {
		require.NotNil(t, p.Option)
	}
}

package bench

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// counting is a peer that says yes to every other request.
func counting(asked *int64) peer {
	return peer{ok: func(*worker) bool {
		*asked++
		return *asked%2 == 1
	}}
}

func TestWorkerTimes(t *testing.T) {
	for _, row := range []struct {
		n, every, first int
		timed           int
	}{
		{n: 10, every: 1, timed: 10},
		{n: 10, every: 5, first: 0, timed: 2},
		{n: 10, every: 5, first: 4, timed: 2},
		{n: 10, every: 4, first: 0, timed: 3},
		{n: 10, every: 4, first: 7, timed: 2},
		{n: 3, every: 251, first: 2, timed: 1},
		{n: 3, every: 251, first: 3, timed: 0},
		{n: 0, every: 1, timed: 0},
	} {
		var asked int64
		w := &worker{first: row.first, sample: newSample()}
		w.times(row.n, counting(&asked), row.every)
		require.Equal(t, int64(row.n), asked, row)
		require.Equal(t, asked, w.asked, row)
		require.Equal(t, (asked+1)/2, w.good, row)
		require.EqualValues(t, row.timed, w.latency.TotalCount(), row)
	}
}

// A worker that comes too late makes a request all the same: without one there
// would be nothing to check.
func TestWorkerUntilMakesOne(t *testing.T) {
	var stop atomic.Bool
	stop.Store(true)
	for _, first := range []int{0, 3} {
		var asked int64
		w := &worker{first: first, sample: newSample()}
		w.until(&stop, counting(&asked), 10)
		require.Positive(t, w.asked)
		require.Equal(t, asked, w.asked)
	}
}

func TestKeys(t *testing.T) {
	k := keys{list: []string{"a", "b", "c"}, at: 1}
	require.Equal(t, []string{"c", "a", "b", "c"}, []string{k.next(), k.next(), k.next(), k.next()})

	once := keys{once: []byte("x:")}
	seen := make(map[string]bool)
	for range 100 {
		seen[once.next()] = true
	}
	require.Len(t, seen, 100)
}

// Workers and slices share no key where each is asked for once.
func TestWorkersKeysDiffer(t *testing.T) {
	d, seen := &driver{}, make(map[string]bool)
	for range 12 {
		for _, w := range d.workers(t.Context(), scenario{name: "once", goroutines: 12}) {
			for range 40 {
				seen[w.keys.next()] = true
			}
		}
	}
	require.Len(t, seen, 12*12*40)
}

func TestZipf(t *testing.T) {
	counts := make(map[string]int)
	list := zipf(1_000, 1.1)
	for _, key := range list {
		counts[key]++
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	require.Greater(t, len(counts), 900)
	require.InDelta(t, 0.18, float64(most)/float64(len(list)), 0.02, "1 to the sum of i^-1.1 for i up to 1,000")
}

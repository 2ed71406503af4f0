package docs_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// TestWorstIntervals compares the table of rolling.md with the most that each rule admits in less than
// a window, to callers who know its weak point.
func TestWorstIntervals(t *testing.T) {
	page, err := os.ReadFile("docs/rolling.md")
	require.NoError(t, err)
	const limit, window = 1000, 60_000 // ms
	attacks := []map[int]int{          // requests by ms; 1 in each other one after the last
		{0: 1, window - 1: limit, window + 1: limit},
		{0: limit},
		{window - 1: limit},
	}
	fixed := reservoir.PerMinute(limit)
	for name, make := range map[string]func(t *testing.T) func(ms int) bool{
		"fixed window":                          func(t *testing.T) func(int) bool { return ask(t, fixed) },
		"`Rolling()`":                           func(t *testing.T) func(int) bool { return ask(t, fixed.Rolling()) },
		"sliding window counter (Cloudflare's)": func(*testing.T) func(int) bool { return slidingCounter(limit, window) },
		"GCRA with a burst of L":                func(*testing.T) func(int) bool { return gcra(limit, window) },
		"sliding log":                           func(*testing.T) func(int) bool { return slidingLog(limit, window) },
	} {
		most := 0
		for _, attack := range attacks {
			synctest.Test(t, func(t *testing.T) {
				allow, last, start := make(t), slices.Max(slices.Collect(maps.Keys(attack))), time.Now()
				var admitted []time.Duration
				for ms := range 3 * window {
					time.Sleep(time.Duration(ms)*time.Millisecond - time.Since(start))
					tries := attack[ms]
					if ms > last {
						tries = 1
					}
					for range tries {
						if allow(ms) {
							admitted = append(admitted, time.Since(start))
						}
					}
				}
				from := 0
				for i, at := range admitted {
					for at-admitted[from] >= window*time.Millisecond {
						from++
					}
					most = max(most, i-from+1)
				}
			})
		}
		assert.Contains(t, string(page), fmt.Sprintf("| %s | %.2f |", name, float64(most)/limit))
	}
}

// ask asks a limiter for a token.
func ask(t *testing.T, limit reservoir.Limit) func(int) bool {
	l, err := reservoir.New(memstore.New(), limit)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close(context.Background())) })
	return func(int) bool {
		r, err := l.Allow(t.Context(), "k")
		require.NoError(t, err)
		return r.Allowed
	}
}

// slidingCounter counts in fixed windows, and adds the one before in proportion.
func slidingCounter(limit, window int) func(ms int) bool {
	counts := map[int]int{}
	return func(ms int) bool {
		w, part := ms/window, float64(ms%window)/float64(window)
		if float64(counts[w-1])*(1-part)+float64(counts[w])+1 > float64(limit) {
			return false
		}
		counts[w]++
		return true
	}
}

// gcra is the generic cell rate algorithm with a burst of the limit.
func gcra(limit, window int) func(ms int) bool {
	full, each := 0.0, float64(window)/float64(limit) // when the bucket is full again
	return func(ms int) bool {
		next := max(full, float64(ms)) + each
		if next-float64(ms) > float64(window) {
			return false
		}
		full = next
		return true
	}
}

// slidingLog remembers each admission.
func slidingLog(limit, window int) func(ms int) bool {
	var log []int
	return func(ms int) bool {
		for len(log) > 0 && ms-log[0] >= window {
			log = log[1:]
		}
		if len(log) >= limit {
			return false
		}
		log = append(log, ms)
		return true
	}
}

package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Of a rolling limit of L tokens no interval of the window's length T sees more than L. A token counts in an interval if
// its call began and ended in it, because it was spent at some moment of its call. So nothing that kept the promise is
// found wrong. A token that is given back counts until the call that gives it back begins. Hence a token counts from the
// end of its call, for a T since its beginning, and the most that count at one moment is the most of all intervals.

// change is one, at a moment, of the tokens that count or of the limits that are allowed.
type change struct {
	at             time.Time
	tokens, limits int64
}

// count adds tokens, or takes them away, at a moment, until a T has passed since their request began.
func (s *sums) count(from, began time.Time, n int64) {
	if until := began.Add(shortWindow); from.Before(until) {
		s.Counts = append(s.Counts, change{at: from, tokens: n}, change{at: until, tokens: -n})
	}
}

// intervals compares each interval with the limit. What a store has lost may be admitted again, and a clock that jumps
// ahead lets so much time pass; one that steps back gives nothing.
func (v *verdict) intervals(at place) {
	const name, bar = "over-admission in an interval of a rolling limit", "0, or one limit each time that data is lost"
	changes := slices.Clone(at.Counts)
	for _, e := range at.Events {
		more := once(at.Scenario.Loses != nothing)
		switch e.Kind {
		case clockBack:
			more = 0
		case clockForward:
			more = 3 // windows, at most: see step
		}
		changes = append(changes, change{at: e.Begin, limits: more}, change{at: e.Over.Add(2 * shortWindow), limits: -more})
	}
	sweep(changes, func(when time.Time, tokens, limits int64) {
		if over := tokens - at.limit.Tokens; over > 0 {
			hold(v, name, bar, fmt.Sprintf("%v, in the interval that ends at %v", at, when), over, limits*at.limit.Tokens)
		}
	})
	hold(v, name, bar, at, 0, int64(0))
}

// sweep calls look with the sums at each moment of a change, in order.
func sweep(changes []change, look func(at time.Time, tokens, limits int64)) {
	slices.SortFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	var tokens, limits int64
	for i, c := range changes {
		tokens, limits = tokens+c.tokens, limits+c.limits
		if i+1 == len(changes) || changes[i+1].at.After(c.at) {
			look(c.at, tokens, limits)
		}
	}
}

// TestEveryInterval compares the judge with a look at every interval that begins with one call and ends with another,
// of random histories.
func TestEveryInterval(t *testing.T) {
	type spend struct{ begin, end, backAt, tokens, back int64 } // ms
	rng, reached := rand.New(rand.NewPCG(1, 1)), 0
	for range 3000 {
		s, length := &sums{}, shortWindow.Milliseconds()
		var all []spend
		for range 1 + rng.IntN(12) {
			begin := rng.Int64N(4 * length)
			one := spend{begin: begin, end: begin + rng.Int64N(length*6/5), tokens: 1 + rng.Int64N(3)}
			s.count(time.UnixMilli(one.end), time.UnixMilli(begin), one.tokens)
			if rng.IntN(3) == 0 {
				one.back, one.backAt = 1+rng.Int64N(one.tokens), one.end+rng.Int64N(length*3/2)
				s.count(time.UnixMilli(one.backAt), time.UnixMilli(begin), -one.back)
			}
			all = append(all, one)
		}
		most, found := int64(0), int64(0)
		for _, first := range all {
			for _, last := range all {
				if last.end-first.begin >= length {
					continue
				}
				n := int64(0)
				for _, one := range all {
					if one.begin >= first.begin && one.end <= last.end {
						n += one.tokens
						if one.back > 0 && one.backAt <= last.end {
							n -= one.back
						}
					}
				}
				most = max(most, n)
			}
		}
		sweep(s.Counts, func(_ time.Time, tokens, _ int64) { found = max(found, tokens) })
		require.Equal(t, most, found, "%v", all)
		if most > 3 {
			reached++
		}
	}
	require.Greater(t, reached, 1000, "several calls were in one interval")
}

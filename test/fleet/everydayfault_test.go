package fleet

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/testnet"
)

// The same seeds give the same figures, and others give others. What a fault
// changes shows in the columns: without messages tokens stay idle elsewhere, and from a store
// that is now and then late callers get late answers.
func TestEverydayFigures(t *testing.T) {
	row := everydayOf(t, "10/60/random")
	fine := row.measure(t, theDefault, 1, 1, nil).figures()
	require.Equal(t, fine, row.measure(t, theDefault, 1, 1, nil).figures())
	require.NotEqual(t, fine, row.measure(t, theDefault, 2, 1, nil).figures())
	require.Equal(t, []float64{100, 100, 0}, fine[first:waited])

	deaf := row.measure(t, theDefault, 1, 1, func(n *testnet.Network) { n.Deafen(errors.New("no messages")) }).figures()
	require.Less(t, deaf[worst], fine[worst])
	require.Greater(t, deaf[needless], 0.0)

	var replies atomic.Int64
	late := row.measure(t, theDefault, 1, 1, func(n *testnet.Network) {
		travel := n.Travel
		n.Travel = func(who int, leg testnet.Leg) time.Duration {
			d := travel(who, leg)
			if leg == testnet.Coming && replies.Add(1)%10 == 0 {
				d += 40 * time.Millisecond
			}
			return d
		}
	}).figures()
	require.Greater(t, late[longest], 40.0)
	require.Less(t, fine[longest], 10.0)

	// A rolling limit has figures of its own, and a visit leaves tokens at rest.
	rolling := everydayOf(t, "3/60/sticky").measure(t, policyOf("rolling"), 1, 1, nil)
	require.InDelta(t, 94, rolling.figures()[used], 2)
	rest := measureRow(t, block{name: "rest-default"}, "300/1m0s/1ms", 10)
	require.Positive(t, rest.Rests)
	require.Positive(t, rest.Most)
}

// Two of four are admitted. The refusal at 2 is needless, and that at 3 is true, though it was
// answered before the last token was. A token counts from the request on, until it is forgotten.
func TestTruth(t *testing.T) {
	at := func(asked, at time.Duration, n int64, allowed bool) answer {
		return answer{asked: asked, at: at, since: at, tokens: n, allowed: allowed}
	}
	for _, c := range []struct {
		answers    []answer
		remembered time.Duration
		refused    []int64 // what counts as spent at each refusal
		spent      int64
	}{
		{[]answer{at(2, 2, 1, false), at(1, 1, 1, true), at(3, 3, 1, false), at(3, 3, 1, true)}, time.Hour, []int64{1, 2}, 2},
		{[]answer{at(1, 2, 1, false), at(1, 9, 5, true)}, time.Hour, []int64{5}, 5},                // it was asked for before the refusal
		{[]answer{at(1, 2, 5, true), at(4, 7, 1, false), at(4, 8, 1, false)}, 5, []int64{5, 0}, 0}, // forgotten since 7
		{[]answer{at(1, 1, 10, true), {asked: 3, at: 3, since: 1, tokens: -7, allowed: true}, at(3, 3, 8, false), at(4, 4, 8, false)}, time.Hour, []int64{10, 3}, 3},
	} {
		var refused []int64
		spent := truth(c.answers, c.remembered, func(_ answer, spent int64) { refused = append(refused, spent) })
		require.Equal(t, c.refused, refused)
		require.Equal(t, c.spent, spent)
	}
	s := sums{Worst: 1}
	s.refuse(answer{tokens: 5}, 6, 10, true) // of 10 tokens four are left, which is too few
	s.refuse(answer{tokens: 4}, 6, 10, true)
	require.Equal(t, sums{Refusing: 2, First: 1.9, Worst: 0.9, Needless: 1}, s)
}

// Ten tokens of ten in an interval of ten, of which three may have been spent before it.
func TestMost(t *testing.T) {
	answers := []answer{
		{asked: 0, at: 2, tokens: 3, allowed: true}, {asked: 5, at: 6, tokens: 4, allowed: true},
		{asked: 7, at: 8, tokens: 9, allowed: false}, {asked: 9, at: 11, tokens: 3, allowed: true},
	}
	require.EqualValues(t, 7, most(answers, 10))
	require.EqualValues(t, 10, most(answers, 12))
}

// What a table says is read again, and changes are marked beside it.
func TestEverydayTable(t *testing.T) {
	b := block{name: "default", what: "x", columns: rowColumns, names: []string{"3/60/bursts"}, rows: map[string][]float64{}}
	b.rows["3/60/bursts"] = sums{Windows: 10, Requests: 1000, Calls: 200, Waited: 300, Tokens: 1}.figures()
	then := parse(b.text(block{}, 0))["default"]
	require.NotContains(t, b.text(then, 0.05), "!")
	b.rows["3/60/bursts"] = sums{Windows: 10, Requests: 1000, Calls: 209, Waited: 309, Tokens: 1}.figures()
	require.NotContains(t, b.text(then, 0.05), "!")
	b.rows["3/60/bursts"] = sums{Windows: 10, Requests: 1000, Calls: 400, Waited: 600, Needless: 1, Tokens: 1}.figures()
	text := b.text(then, 0.05)
	for _, cell := range []string{"40.0 (20.0)!", "0.10 (0.00)!", "60.0 (30.0)!"} {
		require.Contains(t, text, cell)
	}
	exact := block{name: "exact", rows: then.rows}
	text = verdict(map[string]block{"default": b, "exact": exact}, map[string]block{"default": then})
	require.Contains(t, text, "calls at most 2 above exact need, 6 for several tokens: ✗ 1: 3/60/bursts 40.0 (20.0)")
	require.Contains(t, text, "default: none needless: ✗ 1: 3/60/bursts 0.10")
	require.NotContains(t, text, "sum of the calls", "of a part of the rows")
}

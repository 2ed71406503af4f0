package backend

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var rolls = Limit{Tokens: 10, Window: time.Minute}.Rolling()

// TestRollingStatements: a statement of a rolling limit says its account by buckets, and others say nothing of buckets.
func TestRollingStatements(t *testing.T) {
	good := Statement{
		Key: "k", Limit: rolls, Client: "c", Life: 1, Seq: MaxTokens, Window: Window{Gen: MaxTokens}, Want: 2, Need: 1, Hints: Hints{Idle: 3, Pace: 4},
		Rolling: Rolling{Known: MaxTokens, After: MaxTokens, Within: MaxWindow, Changes: slices.Repeat([]Change{{0, MaxTokens}, {MaxTokens, -MaxTokens}}, 15)},
	}
	good.Changes = append(good.Changes, Change{})
	require.Len(t, good.Changes, MaxChanges)
	require.NoError(t, good.Validate())
	bare := Statement{Key: "k", Limit: rolls, Window: Window{Gen: 1}, Need: 1, Rolling: Rolling{Within: time.Second}}
	require.NoError(t, bare.Validate())
	used := Statement{Key: "k", Limit: rolls, Rolling: Rolling{Changes: []Change{{7, 1}, {}}}}
	require.NoError(t, used.Validate())
	fixed := Statement{Key: "k", Limit: Limit{Tokens: 10, Window: time.Minute}, Client: "c", Life: 1, Seq: 1, Window: Window{End: 1}, Mine: 1, Change: 1, Used: 1, Hints: Hints{Run: 1}}
	require.NoError(t, fixed.Validate())

	for what, change := range map[string]func(q *Statement){
		"a window's end":           func(q *Statement) { q.Window.End = 1 },
		"an account":               func(q *Statement) { q.Mine = 1 },
		"used":                     func(q *Statement) { q.Change = 1 },
		"given back":               func(q *Statement) { q.Change = -1 },
		"charged to all":           func(q *Statement) { q.Used = 1 },
		"a run":                    func(q *Statement) { q.Run = 1 },
		"a reply before the first": func(q *Statement) { q.Known = -1 },
		"a reply after the last":   func(q *Statement) { q.Known = MaxTokens + 1 },
		"after no bucket":          func(q *Statement) { q.After = -1 },
		"after too late a bucket":  func(q *Statement) { q.After = MaxTokens + 1 },
		"a reply before now":       func(q *Statement) { q.Within = -1 },
		"a reply in years":         func(q *Statement) { q.Within = MaxWindow + 1 },
		"too many buckets":         func(q *Statement) { q.Changes = append(q.Changes, Change{}) },
		"a bucket below 0":         func(q *Statement) { q.Changes = []Change{{-1, 1}} },
		"too late a bucket":        func(q *Statement) { q.Changes = []Change{{MaxTokens + 1, 1}} },
		"too many tokens":          func(q *Statement) { q.Changes = []Change{{1, MaxTokens + 1}} },
		"too many given back":      func(q *Statement) { q.Changes = []Change{{}, {1, -MaxTokens - 1}} },
	} {
		q := good
		q.Changes = slices.Clone(good.Changes)
		change(&q)
		require.ErrorIs(t, q.Validate(), ErrTokens, what)
	}
	for what, q := range map[string]Statement{
		"a charge, and what was used": {Need: 1, Rolling: Rolling{Changes: []Change{{1, 1}}}},
		"a give-back":                 {Rolling: Rolling{Changes: []Change{{1, 1}, {1, -1}}}},
	} {
		q.Key, q.Limit = "k", rolls
		require.ErrorIs(t, q.Validate(), ErrTokens, "without a client: "+what)
	}
	for what, part := range map[string]Rolling{"a reply": {Known: 1}, "changes": {Changes: []Change{{}}}, "a later bucket": {After: 1}, "a time": {Within: 1}} {
		q := fixed
		q.Rolling = part
		require.ErrorIs(t, q.Validate(), ErrTokens, "of a fixed limit: "+what)
	}
}

// TestBuckets: each instant lies in one bucket, and a window has exactly that number of them.
func TestBuckets(t *testing.T) {
	for _, window := range []time.Duration{MinRolling, MinRolling + time.Millisecond, 61537 * time.Millisecond, time.Hour, MaxWindow} {
		for range 1000 {
			at := rand.Int64N(1 << 51)
			bucket := Bucket(at, window)
			require.Less(t, at, BucketEnd(bucket, window))
			require.GreaterOrEqual(t, at, BucketEnd(bucket-1, window))
			require.Equal(t, bucket+1, Bucket(BucketEnd(bucket, window), window))
			require.Equal(t, BucketEnd(bucket, window)+window.Microseconds(), BucketEnd(bucket+Buckets, window))
		}
	}
}

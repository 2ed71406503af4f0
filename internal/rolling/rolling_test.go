package rolling

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend"
)

// start is the store's time at which tests begin, Unix us.
const start = int64(1_700_000_000_000_000)

func limit(tokens int64, window time.Duration) backend.Limit {
	return backend.Limit{Tokens: tokens, Window: window}.Rolling()
}

// TestSpentOnce shows one client's account: what it has spent counts until a window after its
// slice, what it has not is carried over.
func TestSpentOnce(t *testing.T) {
	var r Ring
	l := limit(100, 20*time.Second) // slices of a second
	q := backend.SyncRequest{Key: "k", Client: "a.1", Limit: l, Want: 100, Need: 1, Exact: true}
	one, _ := r.Sync(q, start)
	assert.Equal(t, int64(100), one.Grant)
	assert.Zero(t, one.Remaining)

	q.Account, q.Window, q.Granted, q.Total, q.Used = one.Account, one.Window, one.Granted, one.Total, 100
	q.Want, q.Need = 1, 1
	q.Spent = []backend.Spent{{Slice: backend.MaxTokens, Tokens: 40}}
	two, _ := r.Sync(q, start+1_000_000)
	assert.True(t, two.Carried)
	assert.Zero(t, two.Grant)
	assert.Equal(t, int64(1e9)*21, int64(two.Frees), "spent in the present slice, which begins now")

	q.Want, q.Need, q.Window, q.Spent[0].Tokens = 100, 100, two.Window, 40
	q.Least = 1
	three, _ := r.Sync(q, start+22_000_000)
	assert.Equal(t, int64(40), three.Grant, "60 are held, and 40 count no more")
}

// TestTake shows that L direct calls are admitted in a window, and when the next is.
func TestTake(t *testing.T) {
	var r Ring
	q := backend.TakeRequest{Key: "k", Limit: limit(3, 20*time.Second), Tokens: 1, Within: time.Second}
	for range 3 {
		assert.True(t, r.Take(q, start).Allowed)
	}
	no := r.Take(q, start)
	assert.False(t, no.Allowed)
	assert.Equal(t, 22*time.Second, no.Frees, "the end of the slice after the next, and a window")
	assert.False(t, r.Take(q, start+22_000_000-1).Allowed)
	assert.True(t, r.Take(q, start+22_000_000).Allowed)
}

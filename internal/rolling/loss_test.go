package rolling

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend"
)

// TestLoss loses the ring once in each run, or puts an older copy in its place. No interval has
// more than twice the limit: what was spent before, and what is granted after. Whatever the clients
// state afterwards, all is free again after the longest lease and a window.
func TestLoss(t *testing.T) {
	over, twice, learnt := 0, 0, 0
	for i := range *runs / 4 {
		w := newWorld(i, fault{loses: true})
		text := w.run()
		assert.Empty(t, text, "run %d", i)
		if w.worst > 1 {
			over++
		}
		if w.worst > 1.5 {
			twice++
		}
		if w.learnt {
			learnt++
		}
	}
	t.Logf("%d of %d runs over, %d by more than half, %d learnt", over, *runs/4, twice, learnt)
	assert.Positive(t, over, "data was lost")
	assert.Positive(t, learnt, "a client showed it")
}

// TestShorter shows that a window which becomes shorter counts leases of the old one until they
// end, and a window longer.
func TestShorter(t *testing.T) {
	var r Ring
	old, l := limit(100, time.Minute), limit(100, time.Second) // slices of 3 s, and of 50 ms
	one, _ := r.Sync(backend.SyncRequest{Key: "k", Client: "a.1", Limit: old, Want: 60, Exact: true}, start)
	assert.Equal(t, int64(60), one.Grant)
	deadline := start + (one.Left - time.Minute).Microseconds()

	q := backend.SyncRequest{Key: "k", Client: "b.1", Limit: l, OpenLength: time.Minute, Want: 100, Exact: true}
	now := deadline - 1_000_000 // in the last slice of the lease
	two, _ := r.Sync(q, now)
	assert.Equal(t, int64(40), two.Grant)
	q.Account, q.Window, q.Granted, q.Spent = two.Account, two.Window, two.Granted, []backend.Spent{{Slice: backend.MaxTokens, Tokens: 40}}
	q.Total, q.Used = two.Total, 100
	for now < deadline+1_000_000 {
		now += 100_000
		two, _ = r.Sync(q, now)
		assert.LessOrEqual(t, two.Granted, int64(80), "the other 60 may be spent until the deadline")
		q.Window, q.Granted, q.Total = two.Window, two.Granted, two.Total
		q.Spent[0].Tokens = two.Granted
	}
	two, _ = r.Sync(q, now+30_000_000)
	assert.Equal(t, int64(100), two.Grant)
}

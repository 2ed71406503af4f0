package rolling

import (
	"testing"

	"github.com/stretchr/testify/assert"
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

package reservoir

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A key is not evicted while its fetch is under way: what the fetch brings beyond
// its caller's need would be in no stock.
func TestNoEvictionDuringAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := overNetwork(memstore.New(), time.Minute)
		l := open(t, net, PerHour(10), WithBatch(Fixed(5)), WithIdle(time.Second), WithFetchTimeout(time.Hour))
		assert.True(t, allow(t, l, "k", 1).Allowed)
		assert.EqualValues(t, 1, l.Stats().Spent)
		assert.EqualValues(t, 4, l.Stats().Held)
	})
}

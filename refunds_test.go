package reservoir_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
)

// Tokens that come back after the store has lost its data are charged to nobody, if the first
// statement to the new store hands them back. Those that an earlier statement may have handed
// back stay charged, because others may have got them since.
func TestReturnsAfterDataLoss(t *testing.T) {
	for what, repeated := range map[string]bool{"first statement": false, "repeated": true} {
		inBubbles(t, what, batches(), func(t *testing.T, _ string, opt reservoir.Option) {
			net := far(time.Millisecond)
			l := open(t, net, reservoir.PerHour(10_000), opt)
			r := allow(t, l, "k", 4000)
			net.loseData()
			require.NoError(t, l.Settle(bg, "k", r, 1200))
			if repeated {
				net.next("sync", loseRequest)
			}
			require.NoError(t, l.Close(bg))
			if repeated {
				require.EqualValues(t, 1, net.happened(loseRequest))
				assert.GreaterOrEqual(t, used(t, net, "k"), int64(4000))
				return
			}
			assert.EqualValues(t, 1200, used(t, net, "k"))
			assert.GreaterOrEqual(t, l.Stats().Returned, int64(2800))
		})
	}
}

package reservoir

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Who refunds a direct call again and again gives back what its own process has
// used, and nothing of what others have.
func TestRefundOfDirectCallsIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		mine, other := open(t, store, PerMinute(10), WithDirect()), open(t, store, PerMinute(10), WithDirect())
		require.True(t, allow(t, other, "k", 5).Allowed)
		r := allow(t, mine, "k", 3)
		require.True(t, r.Allowed)
		for range 10 {
			require.NoError(t, mine.Refund(context.Background(), "k", r))
		}
		assert.EqualValues(t, 5, used(t, store, "k"))
	})
}

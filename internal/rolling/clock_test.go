package rolling

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/go-reservoir/reservoir/backend"
)

// TestRefundAfterSilence has the store's clock step back, and then nobody call until the ring begins anew. What
// was spent before is over, so giving that back frees nothing of what was spent since: neither at once nor when the
// new ring's clock has come to the time at which it was spent.
func TestRefundAfterSilence(t *testing.T) {
	const second = int64(1_000_000)
	l := limit(5, 20*time.Second) // slices of a second
	take := backend.TakeRequest{Key: "k", Limit: l, Tokens: 5, Within: time.Second}
	for back := range int64(100) { // seconds
		var r Ring
		assert.True(t, r.Take(take, start).Allowed)
		now := start - back*second
		assert.False(t, r.Take(take, now).Allowed)
		now += 22 * second
		old := r.Take(take, now)
		assert.True(t, old.Allowed)

		now += 29 * second
		assert.False(t, r.Open(now))
		refund := backend.SettleRequest{Key: "k", Window: old.Window, Tokens: -5, Limit: l}
		last := now - 100*second
		for end := now + 100*second; now < end; now += second / 2 {
			r.Settle(refund, now)
			if r.Take(take, now).Allowed {
				assert.GreaterOrEqual(t, now-last, 20*second, "%d s back: 10 of 5", back)
				last = now
			}
		}
	}
}

package counter

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// holder is an honest client: everything that it holds is idle, because those who wait for
// tokens spend them when they come.
type holder struct {
	backend.SyncRequest
	stock int64
	known bool                  // the ledger should know of the stock
	sent  []backend.SyncRequest // statements that may arrive again
}

// TestIdleIsBounded: whatever replies are lost and whatever statements are late or repeated, the
// ledger's sum is that of its accounts, it knows of all that was stated and not called, and no
// more than the limit is granted.
func TestIdleIsBounded(t *testing.T) {
	called := 0
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		some := func(n int64) int64 { return rnd.Int64N(n + 1) }
		limit := backend.Limit{Tokens: 1 + some(1000), Window: time.Minute}
		holders, c, now := make(map[string]*holder), Counter{}, int64(1e12)
		for _, name := range []string{"a", "b", "c"} {
			holders[name] = &holder{SyncRequest: backend.SyncRequest{Client: name, Limit: limit, Exact: true}}
		}
		for range 300 {
			now += some(100_000)
			for _, h := range holders {
				spent := some(h.stock)
				h.stock -= spent
				if rnd.IntN(2) > 0 {
					continue
				}
				back := some(h.stock)
				h.Returned, h.stock = h.Returned+back, h.stock-back
				h.Want, h.Idle = some(limit.Tokens/4), h.stock
				h.Need = some(h.Want)
				h.Leaving, h.Waited = rnd.IntN(9) == 0, rnd.IntN(3) == 0
				if rnd.IntN(9) == 0 {
					h.Idle = -1
				}
				r, late := h.SyncRequest, len(h.sent) > 0 && rnd.IntN(4) == 0
				if h.sent = append(h.sent, r); late {
					r = h.sent[rnd.IntN(len(h.sent))]
				}
				reply, messages := c.Sync(r, now)
				h.known = (h.known || !late) && r.Idle >= 0 && !r.Leaving
				if !late && rnd.IntN(4) > 0 {
					h.Window, h.Granted, h.Total, h.Used = reply.Window, reply.Granted, reply.Total, limit.Tokens-reply.Remaining
					h.stock += reply.Grant - min(r.Need, reply.Grant)
				}
				for _, m := range messages {
					if m.Kind == backend.Recall {
						holders[m.Process].known = false
						called++
					}
				}
				sum, in := int64(0), c.Contents(now)
				for _, a := range in.Clients {
					sum += a.Idle
					if h := holders[a.Client]; h.known {
						require.GreaterOrEqual(t, a.Idle, h.stock, "seed %d, %s", seed, a.Client)
					}
				}
				require.Equal(t, sum, in.Idle)
				require.LessOrEqual(t, in.Used, limit.Tokens)
			}
		}
	}
	require.Positive(t, called)
}

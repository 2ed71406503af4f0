package ledger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/ledger"
)

// TestHoldOfALostLedger: a hold makes a ledger of the open window, if that is lost, and what is charged to nobody known can still be claimed.
func TestHoldOfALostLedger(t *testing.T) {
	limit, now := backend.Limit{Tokens: 10, Window: time.Minute}, int64(1e15)
	var c ledger.Counter
	q := backend.Statement{Client: "a.1", Life: 1, Seq: 1, Want: 3, Need: 3, Limit: limit}
	r, _ := c.Sync(q, now)
	require.EqualValues(t, 3, r.Grant)
	c.LoseLedger()
	c.Sync(backend.Statement{Limit: limit, Hold: time.Second}, now)
	q.Seq, q.Window, q.Mine, q.Used, q.Runs = 2, r.Window, r.Mine, r.Used, true
	r, _ = c.Sync(q, now)
	require.Equal(t, []int64{3, 3, 0}, []int64{r.Used, r.Mine, r.Grant})
}

package tokens

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
)

// TestLateReply: a window and more after a Reset, about which the reply before was in doubt, a statement of a rolling limit is answered that
// was sent long ago. What is held of buckets that count no more must not be spent with what the reply brings; and this may count for as
// long after the reply as any, because nobody knows how long the statement took to arrive.
func TestLateReply(t *testing.T) {
	var k Tokens
	k.Init(aMinute, 1)
	hear := func(sent, store, now, grant int64) Moved {
		q := backend.Statement{Limit: aMinute}
		k.State(&q, sent*sec)
		r := backend.Reply{Now: store * 1_000_000, Grant: grant, Grants: []backend.Change{{Bucket: store / 3, Tokens: grant}}}
		return k.Apply(&q, &r, sent*sec, now*sec).Moved
	}
	hear(0, 300, 1, 5)
	k.Lease().Doubt(sec)
	m := hear(2, 370, 71, 7)
	require.EqualValues(t, 5, m.Expired)
	require.EqualValues(t, 7, k.Held())
	require.Zero(t, k.Spent())
	require.Equal(t, 71*sec+int64(Longest(aMinute)), k.Lease().LatestEnd())
}

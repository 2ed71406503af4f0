package redisstore

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// TestAckFollowsSlot: a slot that moves takes the WAIT with it, while it moves
// (ASK) and afterwards (MOVED), before and after the store knows the nodes.
func TestAckFollowsSlot(t *testing.T) {
	x := &nodes{t: t, cluster: redistest.StartCluster(t, 3, 1)}
	from, to := x.cluster.Nodes[0], x.cluster.Nodes[1]
	key := x.keys(from, "k", 1)[0]
	for _, node := range x.cluster.Nodes[:3] {
		require.NoError(t, node.Client().ScriptLoad(t.Context(), takeScript.source).Err())
	}
	client := x.cluster.Client(func(o *redis.ClusterOptions) { o.ClusterStateReloadInterval = time.Hour })
	x.Store = New(client, WithReplicaAck(1, soon), WithWarnings(nil))
	fresh := New(x.cluster.Client(), WithReplicaAck(1, soon), WithWarnings(nil)) // which asks where the slots are when it is first used
	left := int64(9)
	take := func(s *Store) {
		t.Helper()
		got, err := s.Take(t.Context(), backend.TakeRequest{Key: key, Limit: limit10, Tokens: 1})
		require.NoError(t, err)
		require.True(t, got.Allowed)
		require.Equal(t, left, got.Remaining, "charged once")
		left--
	}
	take(x.Store)
	ask, moved := x.slot("{"+key+"}", to)
	ask()
	x.cluster.ResetStats()
	take(x.Store)
	require.EqualValues(t, 1, to.Calls("asking"))
	require.EqualValues(t, 1, to.Calls("wait"))
	take(fresh)
	require.EqualValues(t, 2, to.Calls("asking"))

	moved()
	x.cluster.ResetStats()
	for range 3 {
		take(x.Store)
	}
	require.EqualValues(t, 3, to.Calls("wait"))
	require.EqualValues(t, 3, to.Calls("evalsha"))
	take(fresh)
	require.EqualValues(t, 4, to.Calls("wait"))
}

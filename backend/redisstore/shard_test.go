package redisstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// TestShard: a cluster's masters are parts of the store, once they are known.
func TestShard(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	s := redisstore.New(c.Client())
	outer, err := sharding.New(map[string]backend.Store{"eu": s})
	require.NoError(t, err)
	c.ResetStats()
	require.Empty(t, s.Shard("k"))
	require.Equal(t, "eu", outer.Shard("k"))
	require.Zero(t, c.Calls("cluster|slots"), "it asked nobody")
	take(t, s, "k", 1)
	for _, key := range []string{"foo", "bar", "k", "hello"} {
		require.Equal(t, c.NodeOf(key).Addr(), s.Shard(key))
		require.Equal(t, "eu/"+c.NodeOf(key).Addr(), outer.Shard(key))
	}

	one := redisstore.New(redistest.Start(t).Client())
	require.Empty(t, one.Shard("k"))
	take(t, one, "k", 1)
	require.Empty(t, one.Shard("k"))
	require.Empty(t, redisstore.New(nil).Shard("k"))
}

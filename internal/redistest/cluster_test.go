package redistest_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestClusterServesAllSlots(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	client := c.Client(func(o *redis.ClusterOptions) { o.MaxRedirects = -1 })
	require.Len(t, c.Nodes, 6)
	require.Equal(t, c.Nodes[3].Addr(), c.Addrs()[3])
	c.ResetStats()
	used := make(map[*redistest.Server]bool)
	for i := range 300 {
		key := fmt.Sprintf("key%d", i)
		require.NoError(t, client.Set(ctx, key, i, 0).Err())
		require.Equal(t, fmt.Sprint(i), client.Get(ctx, key).Val())
		used[c.NodeOf(key)] = true
	}
	require.Len(t, used, 3)
	require.Equal(t, int64(300), c.Calls("get"), "without a detour")
}

func TestNodeOfOwnsTheKey(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	// The slots of foo and user123 are 12182 and 13438, of the last third.
	require.Same(t, c.Nodes[2], c.NodeOf("foo"))
	require.Same(t, c.NodeOf("user123"), c.NodeOf("{user123}.firstname"))
}

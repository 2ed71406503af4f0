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

func TestClusterFailsOver(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 1)
	client := c.Client()
	require.NoError(t, client.Set(ctx, "key", "value", 0).Err())
	old := c.NodeOf("key")
	require.Equal(t, int64(1), old.Client().Wait(ctx, 1, patience).Val())

	old.Kill()
	require.Eventually(t, func() bool { return c.NodeOf("key") != nil }, patience, interval)
	require.NotSame(t, old, c.NodeOf("key"))
	require.Eventually(t, func() bool {
		client.ReloadState(ctx)
		return client.Get(ctx, "key").Val() == "value"
	}, patience, interval)

	// A master that returns hears that it is none, whatever it says first.
	old.Restart()
	require.NotSame(t, old, c.NodeOf("key"))
	require.Eventually(t, func() bool {
		return old.Client().Do(ctx, "role").Val().([]any)[0] == "slave"
	}, patience, interval)
}

func TestReshard(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, 3, 0)
	client := c.Client()
	from, to := c.NodeOf("foo"), c.NodeOf("bar")
	require.NotSame(t, from, to)
	list := c.SlotsOf(from)[:50]
	list = append(list, c.SlotOf("foo"))
	for i := range 250 { // more than one step moves
		require.NoError(t, client.Set(ctx, fmt.Sprintf("{foo}%d", i), i, 0).Err())
	}
	before := len(c.SlotsOf(to))
	c.Reshard(from, to, list)
	require.Len(t, c.SlotsOf(to), before+len(list))
	require.Same(t, to, c.NodeOf("foo"))
	require.Zero(t, from.Client().DBSize(ctx).Val())
	for i := range 250 {
		require.Equal(t, fmt.Sprint(i), to.Client().Get(ctx, fmt.Sprintf("{foo}%d", i)).Val())
	}
	c.Reshard(to, from, list)
	require.Same(t, from, c.NodeOf("foo"))
	require.Len(t, c.SlotsOf(to), before)
}

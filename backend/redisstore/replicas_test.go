package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

// announceReplicas returns when all nodes tell clients of the replicas. Without a write, a
// node would do that only after its first ping to its replica, ten seconds later.
func announceReplicas(t *testing.T, c *redistest.Cluster) {
	t.Helper()
	client := c.Client()
	for i := range 30 { // a replica that was sent nothing yet is not told of
		require.NoError(t, client.Set(t.Context(), fmt.Sprint("warm", i), 1, 0).Err())
	}
	for _, node := range c.Nodes { // until all nodes tell clients of the replicas
		client := node.Client()
		require.Eventually(t, func() bool {
			//lint:ignore SA1019 it is what go-redis' cluster client itself goes by
			slots, err := client.ClusterSlots(context.Background()).Result()
			return err == nil && len(slots) == 3 && len(slots[0].Nodes)+len(slots[1].Nodes)+len(slots[2].Nodes) == 6
		}, 20*time.Second, 5*time.Millisecond)
	}
}

package redistest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestReplicasFollow(t *testing.T) {
	r := redistest.StartReplicated(t, 2)
	require.Len(t, r.Replicas, 2)
	require.NoError(t, r.Primary.Client().Set(ctx, "key", "value", 0).Err())
	require.Equal(t, int64(2), r.Primary.Client().Wait(ctx, 2, patience).Val())
	for _, replica := range r.Replicas {
		client := replica.Client()
		require.Equal(t, "value", client.Get(ctx, "key").Val())
		require.ErrorContains(t, client.Set(ctx, "key", "other", 0).Err(), "READONLY")
	}
}

func TestLinkLosesTheLastWrites(t *testing.T) {
	r := redistest.StartReplicated(t, 1)
	primary, replica := r.Primary.Client(), r.Replicas[0].Client()
	link := r.Link(0)
	require.NoError(t, primary.Incr(ctx, "key").Err())
	require.Equal(t, int64(1), primary.Wait(ctx, 1, patience).Val())

	link.Hold(true)
	require.NoError(t, primary.Incr(ctx, "key").Err())
	require.Eventually(t, func() bool { return link.Held() > 0 }, patience, interval)
	r.Primary.Kill()
	link.Cut()
	r.Promote(0)
	require.Equal(t, "1", replica.Get(ctx, "key").Val())
}

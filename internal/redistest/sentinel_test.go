package redistest_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir/internal/redistest"
)

func TestSentinelFailsOver(t *testing.T) {
	t.Parallel()
	r := redistest.StartReplicated(t, 1)
	s := redistest.StartSentinel(t, r, 1)
	client := s.FailoverClient(func(o *redis.FailoverOptions) { o.MaxRetries = -1 })
	require.Same(t, r.Primary, s.Primary())
	require.NoError(t, client.Set(ctx, "key", "value", 0).Err())
	require.Equal(t, int64(1), r.Primary.Calls("set"))
	require.Equal(t, int64(1), r.Primary.Client().Wait(ctx, 1, patience).Val())

	r.Primary.Kill()
	require.Eventually(t, func() bool { return s.Primary() == r.Replicas[0] }, patience, interval)
	require.Eventually(t, func() bool {
		return client.Set(ctx, "key", "other", 0).Err() == nil
	}, patience, interval)
	require.Equal(t, "other", r.Replicas[0].Client().Get(ctx, "key").Val())
}

func TestSentinelsKnowEachOther(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t, redistest.StartReplicated(t, 1), 3)
	require.Len(t, s.Sentinels, 3)
	for _, one := range s.Sentinels {
		client := redis.NewSentinelClient(&redis.Options{Addr: one.Addr()})
		others, err := client.Sentinels(ctx, s.MasterName).Result()
		require.NoError(t, err)
		require.Len(t, others, 2)
		require.NoError(t, client.CkQuorum(ctx, s.MasterName).Err())
		require.NoError(t, client.Close())
	}
}

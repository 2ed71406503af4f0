package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// failoverLimit is so long that no window ends in a test.
var failoverLimit = reservoir.PerHour(200_000)

// TestSentinelFailover kills a primary that three Sentinels watch, under two
// limiters. They find the new one by themselves, and the key's window goes on there
// with all that was charged.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	servers := redistest.StartReplicated(t, 1)
	sentinel := redistest.StartSentinel(t, servers, 3)
	limiters := make([]*reservoir.Limiter, 2)
	for i := range limiters {
		client := sentinel.FailoverClient(func(o *redis.FailoverOptions) {
			o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		})
		l, err := reservoir.New(redisstore.New(client), failoverLimit,
			reservoir.WithBatch(reservoir.Fixed(100)), reservoir.WithFetchTimeout(time.Second))
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		limiters[i] = l
	}
	var admitted int64
	spend := func(l *reservoir.Limiter, most int64) (reset time.Time, err error) {
		for range most {
			r, err := l.Allow(t.Context(), "k")
			if err != nil || !r.Allowed {
				return r.Reset, err
			}
			admitted++
			reset = r.Reset
		}
		return reset, nil
	}
	before, err := spend(limiters[0], 5050)
	require.NoError(t, err)
	_, err = spend(limiters[1], 3010)
	require.NoError(t, err)
	primary, replica := servers.Primary.Client(), servers.Replicas[0].Client()
	require.Eventually(t, func() bool { // batches are ordered ahead, so both may still change
		return primary.Get(t.Context(), "{k}").Val() == replica.Get(t.Context(), "{k}").Val()
	}, 5*time.Second, 2*time.Millisecond)

	servers.Primary.Kill()
	for i, l := range limiters {
		require.Eventually(t, func() bool {
			reset, err := spend(l, 1000) // more than is in stock
			return err == nil && reset.Equal(before)
		}, 60*time.Second, 10*time.Millisecond, "limiter %d", i)
	}
	require.Eventually(t, func() bool { // the Sentinel that is asked may learn of it last
		return sentinel.Primary() == servers.Replicas[0]
	}, 10*time.Second, 10*time.Millisecond)

	for _, l := range limiters { // one of the Sentinels may still name the dead one
		require.Eventually(t, func() bool {
			_, err := spend(l, failoverLimit.Tokens)
			return err == nil
		}, 10*time.Second, 10*time.Millisecond)
	}
	require.LessOrEqual(t, admitted, failoverLimit.Tokens, "one limit over both servers")
	require.GreaterOrEqual(t, admitted, failoverLimit.Tokens-200, "and nothing of it is lost but what is in stock")
}

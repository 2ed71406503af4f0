package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// What docs/migrating.md shows of the libraries to migrate from, and what it says
// of the differences.

func fromRedisRate(ctx context.Context, rdb *redis.Client) error {
	limiter := redis_rate.NewLimiter(rdb)

	res, err := limiter.Allow(ctx, "project:123", redis_rate.PerMinute(60))
	if err != nil {
		return err
	}
	fmt.Println("allowed", res.Allowed, "remaining", res.Remaining)
	return nil
}

func TestFromRedisRate(t *testing.T) {
	rdb := redistest.Start(t).Client()
	ctx := t.Context()
	require.NoError(t, fromRedisRate(ctx, rdb))
	require.Equal(t, []string{"rate:project:123"}, rdb.Keys(ctx, "*").Val())

	theirs := redis_rate.NewLimiter(rdb)
	limit := redis_rate.PerMinute(60)
	ours, err := reservoir.New(redisstore.New(rdb), reservoir.PerMinute(60), reservoir.WithFetchTimeout(10*time.Second))
	require.NoError(t, err)
	defer ours.Close(context.Background())

	// Both admit the whole limit at once. What follows differs.
	a, err := theirs.AllowN(ctx, "burst", limit, 60)
	require.NoError(t, err)
	require.Equal(t, 60, a.Allowed)
	b, err := ours.AllowN(ctx, "burst", 60)
	require.NoError(t, err)
	require.True(t, b.Allowed)
	a, err = theirs.Allow(ctx, "burst", limit)
	require.NoError(t, err)
	require.Zero(t, a.Allowed)
	require.LessOrEqual(t, a.RetryAfter, time.Second, "a token comes back each second")
	b, err = ours.Allow(ctx, "burst")
	require.NoError(t, err)
	require.False(t, b.Allowed)
	require.Greater(t, b.RetryAfter, 30*time.Second, "all come back at the reset")

	// What can never be admitted.
	a, err = theirs.AllowN(ctx, "large", limit, 61)
	require.NoError(t, err)
	require.Zero(t, a.Allowed)
	require.Positive(t, a.RetryAfter)
	_, err = ours.AllowN(ctx, "large", 61)
	require.ErrorIs(t, err, reservoir.ErrExceedsLimit)

	// Nothing is shared.
	require.NotContains(t, rdb.Keys(ctx, "{burst}*").Val(), "rate:burst")
}

func fromTimeRate(ctx context.Context) (bool, error) {
	api := rate.NewLimiter(100, 10)

	if err := api.Wait(ctx); err != nil {
		return false, err
	}
	return api.Allow(), nil
}

// A bucket of 10 that fills at 100 a second admits, from full, as much in an interval of
// 100 ms as two windows of 10 tokens that meet in it do.
func TestFromTimeRate(t *testing.T) {
	allowed, err := fromTimeRate(t.Context())
	require.NoError(t, err)
	require.True(t, allowed)
	bucket, begin := rate.NewLimiter(100, 10), time.Now()
	admitted := 0
	for ms := range 100 {
		for bucket.AllowN(begin.Add(time.Duration(ms)*time.Millisecond), 1) {
			admitted++
		}
	}
	require.InDelta(t, 2*10, admitted, 1)
	require.False(t, bucket.AllowN(begin.Add(time.Hour), 11), "never, and it is not an error")
	require.Error(t, bucket.WaitN(t.Context(), 11))
}

package bench

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

// What docs/migrating.md shows of the libraries to migrate from, and what it says
// of the differences.

// errTooMany answers a request that was refused.
type errTooMany struct{ after time.Duration }

func (errTooMany) Error() string { return "too many requests" }

func tooMany(after time.Duration) error { return errTooMany{after} }

// withRedisRate returns a function that handles a request of redis_rate's user.
func withRedisRate(rdb *redis.Client) func(context.Context) error {
	limiter := redis_rate.NewLimiter(rdb) // once

	return func(ctx context.Context) error {
		res, err := limiter.Allow(ctx, "user:42", redis_rate.PerMinute(60))
		if err != nil {
			return err
		}
		if res.Allowed == 0 {
			return tooMany(res.RetryAfter)
		}
		return nil
	}
}

// instead returns the same with reservoir, and a function that ends it.
func instead(rdb *redis.Client) (handle func(context.Context) error, stop func(context.Context) error, err error) {
	store := redisstore.New(rdb)
	limiter, err := reservoir.New(store, reservoir.PerMinute(60)) // once
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) error {
			res, err := limiter.Allow(ctx, "user:42")
			if err != nil {
				return err
			}
			if !res.Allowed {
				return tooMany(res.RetryAfter)
			}
			return nil
		}, func(ctx context.Context) error {
			err = limiter.Close(ctx) // when the process stops: returns unused tokens
			return err
		}, nil
}

// Both listings of redis_rate's part admit 60 and refuse with a time to come back at.
func TestListingsOfRedisRate(t *testing.T) {
	rdb, ctx := redistest.Start(t).Client(), context.Background()
	after, stop, err := instead(rdb)
	require.NoError(t, err)
	for _, handle := range []func(context.Context) error{withRedisRate(rdb), after} {
		admitted := 0
		for {
			err := handle(ctx)
			if refused, ok := errors.AsType[errTooMany](err); ok {
				require.Positive(t, refused.after)
				break
			}
			if err == nil { // a busy machine may be late
				admitted++
			}
		}
		require.InDelta(t, 60, admitted, 1) // redis_rate's bucket fills meanwhile
	}
	require.NoError(t, stop(ctx))
}

func TestFromRedisRate(t *testing.T) {
	rdb := redistest.Start(t).Client()
	ctx := t.Context()
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

// A client that spends evenly is refused in a burst, with 100 a minute: redis_rate has a token
// again after 0.6 s, a fixed window at its end, and a rolling limit when a slice leaves.
func TestRefusedClientWaits(t *testing.T) {
	rdb := redistest.Start(t).Client()
	theirs := redis_rate.NewLimiter(rdb)
	_, err := theirs.AllowN(t.Context(), "k", redis_rate.PerMinute(100), 100)
	require.NoError(t, err)
	r, err := theirs.Allow(t.Context(), "k", redis_rate.PerMinute(100))
	require.NoError(t, err)
	require.Zero(t, r.Allowed)
	require.LessOrEqual(t, r.RetryAfter, 600*time.Millisecond)

	waits := func(limit reservoir.Limit) (wait time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			limiter, err := reservoir.New(memstore.New(), limit)
			require.NoError(t, err)
			defer limiter.Close(context.Background())
			for range 200 { // two minutes and a bit of nine tenths of the limit
				_, err := limiter.Allow(t.Context(), "k")
				require.NoError(t, err)
				time.Sleep(time.Minute / 90)
			}
			for r := (reservoir.Result{Allowed: true}); r.Allowed; wait = r.RetryAfter { // and a burst
				r, err = limiter.Allow(t.Context(), "k")
				require.NoError(t, err)
			}
		})
		return wait
	}
	fixed, rolling := waits(reservoir.PerMinute(100)), waits(reservoir.PerMinute(100).Rolling())
	t.Logf("fixed %v, rolling %v", fixed, rolling)
	require.Greater(t, fixed, 30*time.Second)
	require.Less(t, rolling, 10*time.Second)
}

var visitors sync.Map // user → *rate.Limiter

// withTimeRate admits ten requests a second for each user, and 20 at once.
func withTimeRate(user string) bool {
	l, _ := visitors.LoadOrStore(user, rate.NewLimiter(10, 20))
	return l.(*rate.Limiter).Allow()
}

func TestListingsOfTimeRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, store := context.Background(), memstore.New()
		user, before, after := "alice", 0, 0
		limiter, err := reservoir.New(store, reservoir.Limit{
			Tokens: 20, Window: 2 * time.Second}) // burst, burst ÷ rate
		require.NoError(t, err)
		for range 30 {
			if withTimeRate(user) {
				before++
			}
			r, err := limiter.Allow(ctx, "user:"+user)
			require.NoError(t, err)
			if r.Allowed {
				after++
			}
		}
		require.Equal(t, 20, before)
		require.Equal(t, 20, after)
		err = limiter.Close(ctx) // when the process stops: returns unused tokens
		require.NoError(t, err)
	})
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

package bench

import (
	"context"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/go-reservoir/reservoir/lua"
)

// Peers over go-redis, as published.
var (
	redisRate = kind{name: "redis_rate", every: 1, sends: scripts, calls: true, open: openRedisRate}
	ulule     = kind{name: "ulule/limiter", every: 1, sends: scripts, calls: true, open: openUlule}

	// throttledRedis reads the state, computes the next, and swaps if it is still the
	// same; where others are quicker ten times over it fails. It sends TIME and GET
	// together. GETs cannot be counted, for the script of the swap makes some
	// too, so TIME counts twice.
	throttledRedis = kind{
		name: "throttled", every: 1, calls: true, lossy: true, open: openThrottled,
		sends: []string{"time", "time", "setnx", "expire", "eval", "evalsha"},
	}

	// evalsha is the least that a call can cost: the library's own script.
	evalsha = kind{name: "bare EVALSHA, go-redis", every: 1, sends: scripts, calls: true, open: openEvalsha}
)

func openRedisRate(r *rig) peer {
	l := redis_rate.NewLimiter(r.goRedis)
	limit := redis_rate.Limit{Rate: int(r.limit.Tokens), Burst: int(r.limit.Tokens), Period: r.limit.Window}
	return peer{allow: func(ctx context.Context, key string) (bool, error) {
		res, err := l.Allow(ctx, key, limit)
		return err == nil && res.Allowed > 0, err
	}}
}

func openUlule(r *rig) peer {
	store := must(ululestore.NewStore(r.goRedis))
	l := limiter.New(store, limiter.Rate{Period: r.limit.Window, Limit: r.limit.Tokens})
	return peer{allow: func(ctx context.Context, key string) (bool, error) {
		res, err := l.Get(ctx, key)
		return err == nil && !res.Reached, err
	}}
}

func openThrottled(r *rig) peer {
	return throttle(r, must(throttledstore.NewCtx(r.goRedis, "throttled:")))
}

// throttle is throttled over any of its stores.
func throttle(r *rig, store throttled.GCRAStoreCtx) peer {
	n := int(r.limit.Tokens)
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(n, r.limit.Window), MaxBurst: n}
	l := must(throttled.NewGCRARateLimiterCtx(store, quota))
	return peer{allow: func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return err == nil && !limited, err
	}}
}

func openEvalsha(r *rig) peer {
	script := redis.NewScript(lua.Take)
	tokens, window := r.limit.Tokens, r.limit.Window.Milliseconds()
	return peer{allow: func(ctx context.Context, key string) (bool, error) {
		tag := "evalsha:{" + key + "}"
		reply, err := script.Run(ctx, r.goRedis, []string{tag, tag + ":exp"}, 1, tokens, window, 0, 0, 0, "").Int64Slice()
		return err == nil && reply[0] == takeAllowed, err
	}}
}

const takeAllowed = 8 // lua.Take's first number

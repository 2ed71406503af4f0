package bench

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/lua"
)

// Kinds over Redis.
var (
	scripts = []string{"evalsha", "eval"}

	ours   = kind{name: "reservoir", every: inMemory, sends: scripts, open: openRedis("ours:")}
	direct = calling("reservoir, direct", openRedis("direct:", reservoir.WithDirect()))
	cold   = calling("reservoir", openRedis("ours:")) // new keys: every request calls

	rule1000    = kind{name: "Rockset's rule, 1000", every: inMemory, sends: scripts, open: openRockset(1000, false)}
	listing1000 = kind{name: "Rockset's listing, 1000", every: inMemory, sends: scripts, open: openRockset(1000, true)}
	rule25      = kind{name: "Rockset's rule, 25", every: 1, sends: scripts, open: openRockset(25, false)}
	listing25   = kind{name: "Rockset's listing, 25", every: 1, sends: scripts, open: openRockset(25, true)}

	redisRate      = calling("redis_rate", openRedisRate)
	rueidisLimiter = calling("[rueidislimiter]", openRueidisLimiter)
	ulule          = calling("ulule/limiter", openUlule)

	// throttledRedis reads the state, computes the next state, and swaps the two unless
	// the state has changed. It fails after ten attempts. It sends TIME and GET together.
	// TIME counts twice in place of GET, because the swap's script also calls GET.
	throttledRedis = kind{
		name: "throttled", every: 1, calls: true, lossy: true, open: openThrottled,
		sends: []string{"time", "time", "setnx", "expire", "eval", "evalsha"},
	}

	// The library's own script without a limiter: the least that a call can cost.
	evalsha     = calling("bare EVALSHA, go-redis", openEvalsha)
	rueidisBare = calling("bare EVALSHA, rueidis", openRueidis)
)

// calling is a kind that runs a script for each request.
func calling(name string, open func(*rig) peer) kind {
	return kind{name: name, every: 1, sends: scripts, calls: true, open: open}
}

// inMemory is the number of requests per timed one for kinds that mostly take
// nanoseconds, because reading the clock takes longer. It is prime, so that it does not
// coincide with batches.
const inMemory = 251

func openRedis(prefix string, opts ...reservoir.Option) func(*rig) peer {
	return func(r *rig) peer {
		return byKey(openLimiter(redisstore.New(r.goRedis, redisstore.WithPrefix(prefix)), r.limit, opts...), true)
	}
}

// openLimiter makes a limiter for any number of keys. Its fetch timeout is long, because
// a busy machine may delay a call, and a slow measurement is better than a failed one.
func openLimiter(s backend.Store, limit reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	opts = append(opts, reservoir.WithFetchTimeout(5*time.Second), reservoir.WithMaxKeys(math.MaxInt32))
	return must(reservoir.New(s, limit, opts...))
}

// openRockset counts in the same store as the library, so that only the rules differ.
func openRockset(batch int64, listing bool) func(*rig) peer {
	return func(r *rig) peer {
		store := redisstore.New(r.goRedis, redisstore.WithPrefix(fmt.Sprintf("rockset-%d-%t:", batch, listing)))
		l := &Rockset{Store: store, Limit: r.limit, Batch: batch, Listing: listing}
		return asking(l.Allow)
	}
}

func openRedisRate(r *rig) peer {
	l := redis_rate.NewLimiter(r.goRedis)
	limit := redis_rate.Limit{Rate: int(r.limit.Tokens), Burst: int(r.limit.Tokens), Period: r.limit.Window}
	return asking(func(ctx context.Context, key string) (bool, error) {
		res, err := l.Allow(ctx, key, limit)
		return err == nil && res.Allowed > 0, err
	})
}

func openUlule(r *rig) peer { return ululeOver(r, must(ululestore.NewStore(r.goRedis))) }

// ululeOver is ulule/limiter over any of its stores.
func ululeOver(r *rig, store limiter.Store) peer {
	l := limiter.New(store, limiter.Rate{Period: r.limit.Window, Limit: r.limit.Tokens})
	return asking(func(ctx context.Context, key string) (bool, error) {
		res, err := l.Get(ctx, key)
		return err == nil && !res.Reached, err
	})
}

func openThrottled(r *rig) peer {
	store := must(throttledstore.NewCtx(r.goRedis, "throttled:"))
	n := int(r.limit.Tokens)
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(n, r.limit.Window), MaxBurst: n}
	l := must(throttled.NewGCRARateLimiterCtx(store, quota))
	return asking(func(ctx context.Context, key string) (bool, error) {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		return !limited, err
	})
}

const takeAllowed = 8 // the first number of lua.Take's reply

func openEvalsha(r *rig) peer {
	script := redis.NewScript(lua.Take)
	tokens, window := r.limit.Tokens, r.limit.Window.Milliseconds()
	return asking(func(ctx context.Context, key string) (bool, error) {
		tag := "evalsha:{" + key + "}"
		reply, err := script.Run(ctx, r.goRedis, []string{tag, tag + ":exp"}, 1, tokens, window, 0, 0, 0, "").Int64Slice()
		return err == nil && reply[0] == takeAllowed, err
	})
}

// openRueidis shares pipelines between concurrent requests, as rueidis does.
func openRueidis(r *rig) peer {
	script := rueidis.NewLuaScript(lua.Take)
	tokens, window := strconv.FormatInt(r.limit.Tokens, 10), strconv.FormatInt(r.limit.Window.Milliseconds(), 10)
	args := []string{"1", tokens, window, "0", "0", "0", ""}
	return asking(func(ctx context.Context, key string) (bool, error) {
		tag := "rueidis:{" + key + "}"
		reply, err := script.Exec(ctx, r.rueidis, []string{tag, tag + ":exp"}, args).AsIntSlice()
		return err == nil && reply[0] == takeAllowed, err
	})
}

// openRueidisLimiter stands in for redis/rueidis/rueidislimiter, by its published
// behaviour: a fixed window of two keys, the count and its end, which the application's
// clock sets. One script charges first and reports the new count, so refused requests are
// charged too.
func openRueidisLimiter(r *rig) peer {
	script := rueidis.NewLuaScript(`
local ends = tonumber(redis.call('GET', KEYS[2]))
if not ends or ends < tonumber(ARGV[3]) then
  ends = ARGV[2]
  redis.call('SET', KEYS[1], 0, 'PXAT', ends + 1000)
  redis.call('SET', KEYS[2], ends, 'PXAT', ends + 1000)
end
return { redis.call('INCRBY', KEYS[1], ARGV[1]), tonumber(ends) }`)
	limit, window := r.limit.Tokens, r.limit.Window
	return asking(func(ctx context.Context, key string) (bool, error) {
		now := time.Now()
		name := "rueidislimiter:{" + key + "}"
		reply, err := script.Exec(ctx, r.rueidis, []string{name, name + ":ex"}, []string{
			"1", strconv.FormatInt(now.Add(window).UnixMilli(), 10), strconv.FormatInt(now.UnixMilli(), 10),
		}).AsIntSlice()
		return err == nil && reply[0] <= limit, err
	})
}

// Package bench measures the library side by side with its peers. Its module is
// not released, so that programs do not inherit the peers with the library.
//
// A kind is a way to limit, a peer is a kind that is set up, and a scenario is a load for
// some kinds, in this process and below the limit. A shared load comes from several processes
// and is above the limit. TestPeers runs all of them: briefly in the ordinary tests, and in full for
//
//	make bench              # tables in test/results, in less than half an hour
//	make bench SIZE=quick   # two minutes, to see whether a change is worth more
//	go test -run='^TestPeers$' -size=full -scenarios='^hot' -peers='reservoir|Rockset' # a part, in this directory
//
// The peers' packages are used as published, except two that are written here from their
// descriptions: [Rockset], which was published as an article, and rueidislimiter, which we
// could not fetch. Tables name rueidislimiter in brackets.
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
	"github.com/ulule/limiter/v3"
	ululestore "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/lua"
)

// kind is a way to limit: its name, what to expect of it, and how to set it up.
type kind struct {
	name  string
	every int      // one in this many calls is timed
	sends []string // the commands that it sends, as INFO commandstats calls them
	calls bool     // it sends at least one command for every request
	open  func(*rig) peer
}

// peer is a kind that is set up.
type peer struct {
	ok    func(w *worker) bool // makes a request, and reports whether the answer was as expected
	close func() error         // nil if there is nothing to end
}

// asking is a peer whose requests may fail.
func asking(allow func(ctx context.Context, key string) (bool, error)) peer {
	return peer{ok: func(w *worker) bool {
		ok, err := allow(w.ctx, w.keys.next())
		if err != nil {
			w.err = err
		}
		return ok && err == nil
	}}
}

func (p peer) end() error {
	if p.close == nil {
		return nil
	}
	return p.close()
}

// must panics on an error that only a mistake in this package can cause.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// rig holds what peers are set up with. Peers with the same client library share a
// client, so that idle connections of one do not hold up another.
type rig struct {
	limit   reservoir.Limit
	goRedis *redis.Client
	rueidis rueidis.Client
}

// newRig connects to the Redis at addr, with the libraries' defaults. 512 goroutines got
// equally far with 20, 64 and 512 connections of go-redis.
func newRig(addr string) *rig {
	return &rig{
		goRedis: redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64}),
		rueidis: must(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})),
	}
}

func (r *rig) close() error {
	r.rueidis.Close()
	return r.goRedis.Close()
}

// Kinds over Redis.
var (
	scripts = []string{"evalsha", "eval"}

	ours   = kind{name: "reservoir", every: inMemory, sends: scripts, open: openRedis("ours:")}
	direct = kind{name: "reservoir, direct", every: 1, sends: scripts, open: openRedis("direct:", reservoir.WithDirect())} // callers share calls
	cold   = calling("reservoir", openRedis("ours:"))                                                                      // new keys: every request calls

	ruleShare = kind{name: "Rockset's rule, L/1000", every: inMemory, sends: scripts, open: openRockset(func(limit int64) int64 { return max(limit/1000, 1) })}
	rule1000  = kind{name: "Rockset's rule, 1000", every: inMemory, sends: scripts, open: openRockset(func(int64) int64 { return 1000 })}

	redisRate      = calling("redis_rate", openRedisRate)
	rueidisLimiter = calling("[rueidislimiter]", openRueidisLimiter)
	ulule          = calling("ulule/limiter", openUlule)

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

// openRockset counts in the same store as the library, so that only the rules differ. The article has batches of a
// thousandth of the limit.
func openRockset(size func(limit int64) int64) func(*rig) peer {
	return func(r *rig) peer {
		batch := size(r.limit.Tokens)
		store := redisstore.New(r.goRedis, redisstore.WithPrefix(fmt.Sprintf("rockset-%d:", batch)))
		l := &Rockset{Store: store, Limit: backend.Limit(r.limit), Batch: batch}
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

// granted is where the reply of lua.Sync has the tokens that were granted.
const granted = 6

// counterOf has the keys of a counter.
func counterOf(name string) []string { return []string{name, name + ":exp", name + ":own"} }

func openEvalsha(r *rig) peer {
	script := redis.NewScript(lua.Sync)
	tokens, window := r.limit.Tokens, r.limit.Window.Milliseconds()
	return asking(func(ctx context.Context, key string) (bool, error) {
		reply, err := script.Run(ctx, r.goRedis, counterOf("evalsha:{"+key+"}"), "", tokens, window, 1, 0, 0).Int64Slice()
		return err == nil && reply[granted] == 1, err
	})
}

// openRueidis shares pipelines between concurrent requests, as rueidis does.
func openRueidis(r *rig) peer {
	script := rueidis.NewLuaScript(lua.Sync)
	tokens, window := strconv.FormatInt(r.limit.Tokens, 10), strconv.FormatInt(r.limit.Window.Milliseconds(), 10)
	args := []string{"", tokens, window, "1", "0", "0"}
	return asking(func(ctx context.Context, key string) (bool, error) {
		reply, err := script.Exec(ctx, r.rueidis, counterOf("rueidis:{"+key+"}"), args).AsIntSlice()
		return err == nil && reply[granted] == 1, err
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

package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-reservoir/reservoir"
)

// scenario is one situation, and who is put into it.
type scenario struct {
	name       string
	title      string
	kinds      []kind
	limit      reservoir.Limit
	list       []string // of keys; nil means that each is asked for once
	goroutines int
	procs      int           // GOMAXPROCS; 0 leaves it as it is
	delay      time.Duration // added to every round trip
}

// once reports whether every key is asked for once. Limiters are then made anew
// for each slice, as they would otherwise grow from one to the next.
func (s scenario) once() bool { return s.list == nil }

// redis reports whether requests may go to Redis.
func (s scenario) redis() bool {
	for _, k := range s.kinds {
		if k.sends != nil {
			return true
		}
	}
	return false
}

// The limits. But for the last they are more than any of the kinds can serve, so
// that none refuses. The first one's window is short, so that a run meets resets;
// ten thousand keys that are reset each second would be a measurement of resets.
var (
	hotLimit  = reservoir.PerSecond(100_000_000)
	manyLimit = reservoir.PerMinute(60 * 100_000_000)
	coldLimit = reservoir.PerMinute(1_000)
)

// manyKeys is how many keys the scenarios of many keys have.
const manyKeys = 10_000

// farDelay is what a proxy adds to each round trip.
const farDelay = time.Millisecond

// seed is that of all keys.
const seed = 1

func scenarios() []scenario {
	draws := zipf(manyKeys, 1.1, seed)
	return []scenario{
		{name: "core-1", title: "In process, one key, one core", kinds: oneKey, limit: hotLimit, list: hot(), goroutines: 1, procs: 1},
		{name: "core-1-keys-10k", title: "In process, 10,000 keys, one core", kinds: tenThousand, limit: manyLimit,
			list: evenly(manyKeys, seed), goroutines: 1, procs: 1},
		{name: "core-2", title: "In process, one key, two cores, 128 goroutines", kinds: contended, limit: hotLimit, list: hot(),
			goroutines: 2 * 64, procs: 2},
		{name: "hot-64", title: "Redis, one key, 64 goroutines", kinds: overRedis, limit: hotLimit, list: hot(), goroutines: 64},
		{name: "hot-512", title: "Redis, one key, 512 goroutines", kinds: overRedis, limit: hotLimit, list: hot(), goroutines: 512},
		{name: "far-64", title: "Redis 1 ms further away, one key, 64 goroutines", kinds: overRedis, limit: hotLimit, list: hot(),
			goroutines: 64, delay: farDelay},
		{name: "zipf-512", title: "Redis, 10,000 keys by zipf(1.1), 512 goroutines", kinds: overRedis, limit: manyLimit, list: draws, goroutines: 512},
		{name: "once-512", title: "Redis, every key once, 512 goroutines", kinds: coldKeys, limit: coldLimit, goroutines: 512},
		{name: "once-1", title: "Redis, every key once, 1 goroutine", kinds: coldKeys, limit: coldLimit, goroutines: 1},
	}
}

var (
	oneKey = []kind{
		ourKey, ourAllow, ourNo, ourRefusal, bareHandle, bareMap, xTime, uberTake, goLimiter, ululeMem, throttles,
	}
	tenThousand = []kind{ourAllow, bareMap, xTimes, goLimiter, ululeMem, throttles}
	contended   = []kind{ourKey, ourAllow, bareHandle, bareMap, xTime, uberTake, goLimiter, ululeMem}
	overRedis   = []kind{
		ours, direct, rockset, redisRate, rueidisLimiter, ulule, throttledRedis, goRedisStore, mennanov, vearne, evalsha, rueidisBare,
	}
	coldKeys = []kind{cold, direct, redisRate, rueidisLimiter, ulule, throttledRedis, goRedisStore, mennanov, evalsha, rueidisBare}
)

// worker returns the scenario's worker number i in the given slice.
func (s scenario) worker(ctx context.Context, i, slice int) *worker {
	w := &worker{ctx: ctx, first: rand.Int(), latency: newHistogram()}
	if s.once() {
		w.keys.once = fmt.Appendf(nil, "%s:%d:%d:", s.name, slice, i)
	} else {
		w.keys = keys{list: s.list, at: i * len(s.list) / s.goroutines}
	}
	return w
}

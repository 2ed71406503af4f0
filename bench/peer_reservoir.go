package bench

import (
	"context"
	"math"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// What is measured, and Rockset's rule over the same store.
var (
	ours    = kind{name: "reservoir", every: inMemory, sends: scripts, open: openRedis("ours:")}
	direct  = kind{name: "reservoir, direct", every: 1, sends: scripts, calls: true, open: openRedis("direct:", reservoir.WithDirect())}
	cold    = kind{name: "reservoir", every: 1, sends: scripts, calls: true, open: openRedis("ours:")} // keys that are new: all call
	rockset = kind{name: "Rockset's rule, 1000", every: inMemory, sends: scripts, open: openRockset}

	scripts = []string{"evalsha", "eval"}
)

// inMemory is how rarely calls are timed that mostly take some nanoseconds, of
// which reading the clock would be the larger part. It is prime, so as not to
// step with batches.
const inMemory = 251

func openRedis(prefix string, opts ...reservoir.Option) func(*rig) peer {
	return func(r *rig) peer {
		l := openLimiter(redisstore.New(r.goRedis, redisstore.WithPrefix(prefix)), r.limit, opts...)
		p := ourPeer(l, nil)
		p.loop, p.allow = nil, func(ctx context.Context, key string) (bool, error) {
			res, err := l.Allow(ctx, key)
			return res.Allowed, err
		}
		return p
	}
}

// openLimiter makes a limiter for any number of keys. A busy machine may hold up
// a call: a measurement is better slow than broken.
func openLimiter(s backend.Store, limit reservoir.Limit, opts ...reservoir.Option) *reservoir.Limiter {
	opts = append(opts, reservoir.WithFetchTimeout(5*time.Second), reservoir.WithMaxKeys(math.MaxInt32))
	return must(reservoir.New(s, limit, opts...))
}

func openRockset(r *rig) peer {
	l := NewRockset(redisstore.New(r.goRedis, redisstore.WithPrefix("rockset:")), r.limit, 1000)
	return peer{allow: func(ctx context.Context, key string) (bool, error) { return l.AllowN(ctx, key, 1) }}
}

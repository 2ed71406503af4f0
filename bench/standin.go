package bench

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
)

// Stand-ins are our own versions of what the module proxy does not serve, by
// its published behaviour and over the same client library: which calls it makes,
// what they do in Redis, and what it holds locked meanwhile. Their names are in
// brackets wherever they appear. Where a library leaves a choice, it is the one
// that is faster here. Of rueidislimiter see peer_rueidis.go.
var (
	goRedisStore = kind{name: "[sethvargo/go-redisstore]", every: 1, sends: scripts, calls: true, open: openGoRedisStore}
	mennanov     = kind{name: "[mennanov/limiters]", every: 1, sends: []string{"incr", "pexpire"}, calls: true, open: openMennanov}
	vearne       = kind{name: "[vearne/ratelimit], 1000", every: inMemory, sends: scripts, lossy: true, open: openVearne}
)

// openGoRedisStore stands in for sethvargo/go-redisstore, the Redis store of
// sethvargo/go-limiter: a script over a hash, by the application's clock, over a
// pool of redigo's. Its own pool keeps no idle connection, and so dials for each
// request; this one is as its NewWithPool allows.
func openGoRedisStore(r *rig) peer {
	script := redis.NewScript(1, `
local key, now, most, interval = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local f = redis.call('HMGET', key, 's', 't', 'k')
local start, last, tokens = tonumber(f[1]), tonumber(f[2]), tonumber(f[3])
if not start then
  start, last, tokens = now, 0, most
  redis.call('HSET', key, 's', start, 't', last, 'm', most, 'i', interval)
end
local tick = math.max(math.floor((now - start) / interval), 0)
if last < tick then
  tokens = most
  redis.call('HSET', key, 's', start, 't', tick)
end
local ok = tokens > 0
if ok then
  redis.call('HSET', key, 'k', string.format('%.0f', tokens - 1))
  redis.call('EXPIRE', key, 3 * math.ceil(interval / 1e9))
end
return { tokens, start + (tick + 1) * interval, ok and 1 or 0 }`)
	return peer{allow: func(ctx context.Context, key string) (bool, error) {
		conn, err := r.redigo.GetContext(ctx)
		if err != nil {
			return false, err
		}
		defer conn.Close()
		reply, err := redis.Int64s(script.DoContext(ctx, conn,
			"go-redisstore:"+key, time.Now().UnixNano(), r.limit.Tokens, int64(r.limit.Window)))
		return err == nil && reply[2] == 1, err
	}}
}

// fixedWindow stands in for mennanov/limiters' FixedWindow on Redis: a counter
// for each window of the application's clock, by INCR and PEXPIRE in a pipeline,
// with the limiter's lock held until the reply comes. A window that is known to
// be used up costs no call.
type fixedWindow struct {
	mu   sync.Mutex
	key  string
	open time.Time
	over bool
}

func (f *fixedWindow) allow(ctx context.Context, r *rig) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	open := now.Truncate(r.limit.Window)
	if open != f.open {
		f.open, f.over = open, false
	}
	if f.over {
		return false, nil
	}
	count, err := f.increment(ctx, r, r.limit.Window-now.Sub(open))
	if err != nil {
		return false, err
	}
	f.over = count > r.limit.Tokens
	return !f.over, nil
}

// increment leaves the call to a goroutine and waits for it or ctx, as there.
func (f *fixedWindow) increment(ctx context.Context, r *rig, left time.Duration) (int64, error) {
	name := "mennanov:" + f.key + "/" + strconv.FormatInt(f.open.UnixNano(), 10)
	var count *goredis.IntCmd
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err = r.goRedis.Pipelined(ctx, func(p goredis.Pipeliner) error {
			count = p.Incr(ctx, name)
			p.PExpire(ctx, name, max(left, time.Millisecond))
			return nil
		})
	}()
	select {
	case <-done:
		if err != nil {
			return 0, err
		}
		return count.Result()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func openMennanov(r *rig) peer {
	m := perKey[fixedWindow]{make: func(key string) *fixedWindow { return &fixedWindow{key: key} }}
	return peer{allow: func(ctx context.Context, key string) (bool, error) { return m.get(key).allow(ctx, r) }}
}

// counter stands in for vearne/ratelimit's counter: a batch at a time into a local
// count that never expires. Callers who find none share one fetch, made under
// the first one's context; there is no place in it for them, so that who comes
// after the batch is gone is refused, whatever the limit has left. A local
// limiter of twice the rate keeps floods from Redis.
type counter struct {
	key    string
	flight singleflight.Group
	flood  *rate.Limiter

	mu sync.Mutex
	n  int64
}

func (c *counter) spend() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n <= 0 {
		return false
	}
	c.n--
	return true
}

func (c *counter) allow(ctx context.Context, r *rig) (bool, error) {
	const batch = 1000
	if !c.flood.Allow() {
		return false, nil
	}
	if c.spend() {
		return true, nil
	}
	_, err, _ := c.flight.Do(c.key, func() (any, error) {
		n, err := vearneScript.Run(ctx, r.goRedis, []string{"vearne:" + c.key},
			r.limit.Window.Microseconds(), r.limit.Tokens, batch).Int64()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.n += n
		return nil, err
	})
	return err == nil && c.spend(), err
}

// vearneScript counts in windows of the server's clock, and grants what is left of
// a batch.
var vearneScript = goredis.NewScript(`
local t = redis.call('TIME')
local key = KEYS[1] .. ':' .. math.floor((t[1] * 1000000 + t[2]) / tonumber(ARGV[1]))
local n = math.min(tonumber(ARGV[2]) - tonumber(redis.call('GET', key) or 0), tonumber(ARGV[3]))
if n <= 0 then return 0 end
redis.call('INCRBY', key, n)
redis.call('PEXPIRE', key, math.ceil(ARGV[1] / 1000) + 1000)
return n`)

func openVearne(r *rig) peer {
	flood := 2 * int(r.perSecond()) // less than one in a second is none at all, as there
	m := perKey[counter]{make: func(key string) *counter {
		return &counter{key: key, flood: rate.NewLimiter(rate.Limit(flood), flood)}
	}}
	return peer{allow: func(ctx context.Context, key string) (bool, error) { return m.get(key).allow(ctx, r) }}
}

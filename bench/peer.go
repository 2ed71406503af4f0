package bench

import (
	"context"
	"errors"

	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/go-reservoir/reservoir"
)

// kind is a way to limit: its name, what to expect of it, and how to set it up.
// A name in brackets is a stand-in: see standin.go.
type kind struct {
	name  string
	every int      // one in so many calls is timed
	sends []string // the commands that it sends, as INFO commandstats calls them
	calls bool     // it sends at least one for every request
	lossy bool     // it refuses or fails at a limit that is not reached
	open  func(*rig) peer
}

// peer is a kind, set up, with either allow or loop.
type peer struct {
	allow  func(ctx context.Context, key string) (bool, error)
	loop   loop
	close  func() error // nil if there is nothing to end
	waited func() int64 // requests that waited for the network; nil if it does not say
}

// loop makes n requests and returns how many were answered as they should be.
type loop func(w *worker, n int) (good int64)

// looping is the loop of what takes nanoseconds. It adds a call of about one, the same
// to all; the way through allow would add several.
func looping(ok func(w *worker) bool) loop {
	return func(w *worker, n int) (good int64) {
		for range n {
			if ok(w) {
				good++
			}
		}
		return good
	}
}

// through is the loop of what has none.
func (p peer) through(w *worker, n int) (good int64) {
	for range n {
		ok, err := p.allow(w.ctx, w.keys.next())
		if err != nil {
			w.err = err
		}
		if ok {
			good++
		}
	}
	return good
}

// set opens k and completes what it left out.
func (k kind) set(r *rig) peer {
	p := k.open(r)
	if p.loop == nil {
		p.loop = p.through
	}
	if p.close == nil {
		p.close = func() error { return nil }
	}
	return p
}

// must is for what only a mistake in this package can make fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// rig is what peers are set up with. Those that use the same client library
// share a client, so that none is held up by the idle connections of another.
type rig struct {
	limit   reservoir.Limit
	goRedis *goredis.Client
	rueidis rueidis.Client
	redigo  *redis.Pool
}

// conns is how many connections a client may open that gives each to one request
// at a time. With 20, 64 and 512 of them, 512 goroutines got as far.
const conns = 64

// newRig connects to the Redis at addr, with the libraries' defaults.
func newRig(addr string, limit reservoir.Limit) *rig {
	return &rig{
		limit:   limit,
		goRedis: goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: conns}),
		rueidis: must(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})),
		redigo: &redis.Pool{
			MaxActive: conns, MaxIdle: conns, Wait: true,
			Dial: func() (redis.Conn, error) { return redis.Dial("tcp", addr) },
		},
	}
}

func (r *rig) close() error {
	if r.goRedis == nil {
		return nil
	}
	r.rueidis.Close()
	return errors.Join(r.goRedis.Close(), r.redigo.Close())
}

// perSecond is the limit as a rate.
func (r *rig) perSecond() float64 { return float64(r.limit.Tokens) / r.limit.Window.Seconds() }

// Package bench measures the library side by side with its peers. It is a
// module of its own, so that nobody who imports the library inherits them.
//
// A kind is a way to limit, a peer is one that is set up, a scenario says who is
// measured at what, and a driver has them take turns. TestPeers does all of it:
// very small in the ordinary tests, where it proves that everything works, and
// in full for
//
//	make bench              # tables and a chart in bench/results
//	make bench SIZE=quick   # a minute, to see whether a change is worth more
//	go test -run='^TestPeers$' -size=full -scenarios='^hot' -peers='reservoir|Rockset' # a part, in this directory
//
// BenchmarkPeers has the same scenarios for benchstat.
//
// The peers' own packages are used as published. What cannot be had is written
// here from its description: [Rockset], which was published as an article, and
// rueidislimiter, which the module proxy does not serve: its name is in brackets.
//
// Package fleet, below this one, models many processes that share a limit.
package bench

import (
	"context"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/go-reservoir/reservoir"
)

// kind is a way to limit: its name, what to expect of it, and how to set it up.
type kind struct {
	name  string
	every int      // one in so many calls is timed
	sends []string // the commands that it sends, as INFO commandstats calls them
	calls bool     // it sends at least one for every request
	lossy bool     // it refuses or fails at a limit that is not reached
	open  func(*rig) peer
}

// peer is a kind, set up.
type peer struct {
	ok     func(w *worker) bool // makes a request, and reports whether it was answered as it should be
	close  func() error         // nil if there is nothing to end
	waited func() int64         // requests that waited for the network; nil if it does not say
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
	}
}

func (r *rig) close() error {
	if r.goRedis == nil {
		return nil
	}
	r.rueidis.Close()
	return r.goRedis.Close()
}

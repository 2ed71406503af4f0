// Package bench measures the library side by side with its peers. It is a separate
// module, so that programs do not inherit the peers with the library.
//
// A kind is a way to limit, a peer is a kind that is set up, and a scenario is a load for
// some kinds. TestPeers runs all scenarios: briefly in the ordinary tests, and in full for
//
//	make bench              # tables and a chart in bench/results
//	make bench SIZE=quick   # a minute, to see whether a change is worth more
//	go test -run='^TestPeers$' -size=full -scenarios='^hot' -peers='reservoir|Rockset' # a part, in this directory
//
// BenchmarkPeers has the same scenarios for benchstat. The peers' packages are used as
// published, except two that are written here from their descriptions: [Rockset], which was
// published as an article, and rueidislimiter, which the module proxy does not serve.
// Tables name rueidislimiter in brackets.
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
	every int      // one in this many calls is timed
	sends []string // the commands that it sends, as INFO commandstats calls them
	calls bool     // it sends at least one command for every request
	lossy bool     // it refuses or fails at a limit that is not reached
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
	goRedis *goredis.Client
	rueidis rueidis.Client
}

// newRig connects to the Redis at addr, with the libraries' defaults. 512 goroutines got
// equally far with 20, 64 and 512 connections of go-redis.
func newRig(addr string) *rig {
	return &rig{
		goRedis: goredis.NewClient(&goredis.Options{Addr: addr, PoolSize: 64}),
		rueidis: must(rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})),
	}
}

func (r *rig) close() error {
	r.rueidis.Close()
	return r.goRedis.Close()
}

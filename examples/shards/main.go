// Shards counts limits on three Redis servers that know nothing of each other, each
// with a replica that answers what needs no decision. It starts the servers,
// stops one under load, and starts it again.
//
//	go run ./examples/shards
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	logging.Disable() // go-redis would report each attempt to reach the shard that is stopped
	err := run(ctx, os.Stdout)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "shards:", err)
		os.Exit(1)
	}
}

// run starts servers, and shows.
func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "shards")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	servers := map[string]*pair{}
	for _, name := range []string{"a", "b", "c"} {
		p, err := startPair(ctx, dir, name)
		if err != nil {
			return err
		}
		defer p.stop()
		servers[name] = p
	}
	store, err := open(servers)
	if err != nil {
		return err
	}
	defer store.Close()
	return show(ctx, out, store, servers)
}

// open returns one store over all shards. A shard is its name: a key stays
// where it is when the address behind the name changes.
func open(servers map[string]*pair) (*redisstore.Shards, error) {
	shards := map[string][]string{}
	for name, s := range servers {
		shards[name] = []string{"redis://" + s.primary.addr, "redis://" + s.replica.addr}
	}
	return redisstore.OpenShards(shards)
}

const perHour = 100

func show(ctx context.Context, out io.Writer, store *redisstore.Shards, servers map[string]*pair) error {
	changes := make(chan reservoir.ShardState, 8)
	limiter, err := reservoir.New(store, reservoir.PerHour(perHour),
		reservoir.WithFailure(reservoir.FailLocal(0.1)), // while a shard is away: a tenth of the limit per process
		reservoir.WithFetchTimeout(time.Second),
		reservoir.WithBatch(reservoir.Fixed(1)), // no stock, so that the figures are the same in each run
		reservoir.WithHooks(reservoir.Hooks{ShardState: func(s reservoir.ShardState) { changes <- s }}))
	if err != nil {
		return err
	}
	defer limiter.Close(context.WithoutCancel(ctx))
	d := &demo{out: out, limiter: limiter, store: store, servers: servers}

	fmt.Fprintf(out, "60 requests for each of six users, who have %d an hour:\n", perHour)
	if err := d.ask(ctx, 60); err != nil {
		return err
	}
	servers["b"].primary.stop()
	fmt.Fprintln(out, "\nThe primary of b is stopped. 60 more:")
	if err := d.ask(ctx, 60); err != nil {
		return err
	}
	news, err := await(ctx, changes)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe limiter was told that %s. Checks are answered by the replicas, that of b too:\n", tell(news))
	if err := d.check(ctx); err != nil {
		return err
	}
	if err := servers["b"].primary.start(ctx); err != nil {
		return err
	}
	if news, err = await(ctx, changes); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe primary of b is started, with nothing in memory, and the limiter was told that %s. 60 more:\n", tell(news))
	if err := d.ask(ctx, 60); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nWhat the primaries hold:")
	return d.inspect(ctx)
}

// await returns the next news of a shard. The limiter notices by itself, without
// requests, that a shard is back.
func await(ctx context.Context, news <-chan reservoir.ShardState) (reservoir.ShardState, error) {
	select {
	case s := <-news:
		return s, nil
	case <-ctx.Done():
		return reservoir.ShardState{}, ctx.Err()
	}
}

func tell(s reservoir.ShardState) string {
	if s.Away {
		return s.Shard + " is away"
	}
	return s.Shard + " is back"
}

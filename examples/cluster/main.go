// Cluster limits requests by a Redis Cluster while one of its masters dies and its
// replica takes over. It starts the cluster, loads it before, meanwhile and
// after, and tells what callers saw.
//
//	go run ./examples/cluster
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

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	logging.Disable() // go-redis would report each attempt to reach the master that is stopped
	err := run(ctx, os.Stdout)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// run starts a cluster, and shows.
func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "cluster")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	nodes, stop, err := startCluster(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	client := newClient(nodes)
	defer client.Close()
	return show(ctx, out, client, nodes)
}

// newClient needs some of the nodes; it asks these for the others.
func newClient(nodes []*server) *redis.ClusterClient {
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.addr)
	}
	return redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 addrs,
		MaxRetries:            -1, // the store decides what may be repeated
		DialerRetries:         1,
		DialTimeout:           200 * time.Millisecond,
		ReadTimeout:           200 * time.Millisecond,
		WriteTimeout:          200 * time.Millisecond,
		ContextTimeoutEnabled: true,
	})
}

const perHour = 100

func show(ctx context.Context, out io.Writer, client *redis.ClusterClient, nodes []*server) error {
	store := redisstore.New(client)
	limiter, err := reservoir.New(store, reservoir.PerHour(perHour),
		reservoir.WithFailure(reservoir.FailLocal(0.1)), // while a master is away: a tenth of the limit per process
		reservoir.WithFetchTimeout(500*time.Millisecond),
		reservoir.WithBatch(reservoir.Fixed(1))) // no stock, so that the figures are the same in each run
	if err != nil {
		return err
	}
	defer limiter.Close(context.WithoutCancel(ctx))
	d := &demo{out: out, limiter: limiter, store: store, nodes: nodes}

	// Connections first: no request is to wait for them, and be left to the policy.
	if err := client.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() }); err != nil {
		return err
	}
	fmt.Fprintf(out, "Three masters, a replica each. 60 requests for each of %d users, who have %d an hour:\n", len(users), perHour)
	if err := d.ask(ctx, 60); err != nil {
		return err
	}
	if err := d.stopMasterOf(ctx, client, "user:anna"); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nThe master of user:anna is stopped. 60 more at once, before its replica has taken over:")
	if err := d.ask(ctx, 60); err != nil {
		return err
	}
	answered, err := find(ctx, limiter)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nUntil a replica took over, user:emma, of another master, was looked at again and again. Answered: %s.\n", answered)
	fmt.Fprintln(out, "\nThe replica has taken over, and the limiter has found it. 60 more:")
	if err := d.ask(ctx, 60); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nWhat is left:")
	return d.check(ctx)
}

// find asks for a key of the master that is away until a replica answers. The limiter
// probes it by itself. These requests ask for the whole limit, so that none is admitted
// and the next table has it all. It tells how often a key of another master was answered
// meanwhile.
func find(ctx context.Context, limiter *reservoir.Limiter) (string, error) {
	for looks, answers := 0, 0; ; {
		r, err := limiter.AllowN(ctx, "user:anna", perHour)
		switch {
		case err != nil:
			return "", err
		case r.Source == reservoir.Fallback:
		case answers*20 < looks*19:
			return fmt.Sprintf("%d of %d", answers, looks), nil
		default: // a moment in which a machine is busy is not what this is about
			return "yes", nil
		}
		looks++
		if _, err := limiter.Check(ctx, "user:emma"); err == nil {
			answers++
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// Cluster limits requests by a Redis Cluster while one of its masters dies and its replica
// takes over, and prints what callers see. See README.md.
package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/example"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func main() { example.Main("cluster", run) }

// run starts a cluster and calls show.
func run(ctx context.Context, t testing.TB, out io.Writer) error {
	cluster := redistest.StartCluster(t, 3, 1)
	for _, node := range cluster.Nodes {
		node.Do("config", "set", "cluster-require-full-coverage", "no") // or all keys are refused while one master is away
	}
	options, err := redisstore.Options("redis-cluster://" + strings.Join(cluster.Addrs()[:3], ",")) // some nodes; they know the others
	if err != nil {
		return err
	}
	client := redis.NewUniversalClient(options).(*redis.ClusterClient)
	defer client.Close()
	store := redisstore.New(client)
	limiter, err := reservoir.New(store, reservoir.PerHour(100),
		reservoir.WithFailure(reservoir.FailLocal(0.1)), // while a master is away: a tenth of the limit per process
		reservoir.WithFetchTimeout(500*time.Millisecond),
		reservoir.WithBatch(reservoir.Fixed(1))) // no stock, so that the figures are the same in each run
	if err != nil {
		return err
	}
	defer limiter.Close(context.WithoutCancel(ctx))
	// Connect first, so that no request waits for a connection and is left to the policy.
	if err := client.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return c.Ping(ctx).Err() }); err != nil {
		return err
	}
	return show(ctx, out, limiter, store, cluster)
}

func show(ctx context.Context, out io.Writer, limiter *reservoir.Limiter, store *redisstore.Store, cluster *redistest.Cluster) error {
	ask := func(what string) error {
		fmt.Fprintf(out, "%s\n  user        master   admitted by the store  by the failure policy\n", what)
		for _, user := range []string{"user:anna", "user:emma", "user:hugo", "user:max", "user:ben", "user:felix"} {
			admitted, err := requests(ctx, limiter, user)
			if err != nil {
				return err
			}
			master := "replica" // it is a master now
			if i := slices.Index(cluster.Addrs()[:3], store.Shard(user)); i >= 0 {
				master = fmt.Sprint(i + 1)
			}
			fmt.Fprintf(out, "  %-10s  %-7s  %21d  %21d\n", user, master, admitted[false], admitted[true])
		}
		return nil
	}
	if err := ask("Three masters, a replica each. 60 requests for each of 6 users, who have 100 an hour:"); err != nil {
		return err
	}
	cluster.NodeOf("{user:anna}").Kill()
	if err := ask("\nThe master of user:anna is stopped. 60 more at once, before its replica has taken over:"); err != nil {
		return err
	}
	answered, err := find(ctx, limiter)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nUntil a replica took over, user:emma, of another master, was checked again and again. Answered: %s.\n", answered)
	return ask("\nThe replica has taken over, and the limiter has found it. 60 more:")
}

// requests counts the admitted ones of 60 requests: under true by the failure policy.
func requests(ctx context.Context, limiter *reservoir.Limiter, user string) (map[bool]int, error) {
	admitted := map[bool]int{}
	for range 60 {
		r, err := limiter.Allow(ctx, user)
		if err != nil {
			return nil, err
		}
		if r.Allowed {
			admitted[r.Source == reservoir.Fallback]++
		}
	}
	return admitted, nil
}

// find requests a key of the stopped master until its replica answers; the limiter's own
// probes find the replica. Each request is for the whole limit, so that it is never
// admitted. find returns whether another master's key was answered during this time.
func find(ctx context.Context, limiter *reservoir.Limiter) (string, error) {
	for looks, failed := 1.0, 0.0; ; looks++ {
		r, err := limiter.AllowN(ctx, "user:anna", 100)
		switch {
		case err != nil:
			return "", err
		case r.Source != reservoir.Fallback && failed > looks/20: // a few failures only mean a busy machine
			return fmt.Sprintf("all but %v of %v", failed, looks), nil
		case r.Source != reservoir.Fallback:
			return "yes", nil
		}
		if _, err := limiter.Check(ctx, "user:emma"); err != nil {
			failed++
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

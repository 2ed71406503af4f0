// Shards counts limits on three independent Redis servers, each with a
// replica that answers reads. See README.md.
package main

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/example"
	"github.com/go-reservoir/reservoir/internal/redistest"
)

func main() { example.Main("shards", run) }

// run starts the servers and makes requests. A key belongs to a shard's name, so it stays
// there when the address behind the name changes.
func run(ctx context.Context, t testing.TB, out io.Writer) error {
	pairs, shards := map[string]*redistest.Replicated{}, map[string][]string{}
	for _, name := range []string{"a", "b", "c"} {
		p := redistest.StartReplicated(t, 1)
		pairs[name], shards[name] = p, []string{"redis://" + p.Primary.Addr(), "redis://" + p.Replicas[0].Addr()}
	}
	store, err := redisstore.OpenShards(shards)
	if err != nil {
		return err
	}
	defer store.Close()
	changes := make(chan reservoir.ShardState, 8)
	limiter, err := reservoir.New(store, reservoir.PerHour(100),
		reservoir.WithFailure(reservoir.FailLocal(0.1)), // while a shard is away: a tenth of the limit per process
		reservoir.WithFetchTimeout(time.Second),
		reservoir.WithBatch(reservoir.Fixed(1)), // no stock, so that the figures are the same in each run
		reservoir.WithHooks(reservoir.Hooks{ShardState: func(s reservoir.ShardState) { changes <- s }}))
	if err != nil {
		return err
	}
	defer limiter.Close(context.WithoutCancel(ctx))
	d := demo{out, limiter, store, pairs}
	if err := d.ask(ctx, "60 requests for each of six users, who have 100 an hour:"); err != nil {
		return err
	}
	pairs["b"].Primary.Kill()
	if err := d.ask(ctx, "\nThe primary of b is stopped. 60 more:"); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nThe hook reports: %s.\n", await(ctx, changes))
	pairs["b"].Primary.Restart()
	return d.ask(ctx, "The primary of b is started, with nothing in memory, and the hook reports: "+await(ctx, changes)+". 60 more:")
}

// await returns the next change of a shard's state. The limiter notices without requests
// that a shard is back.
func await(ctx context.Context, news <-chan reservoir.ShardState) string {
	select {
	case s := <-news:
		return s.Shard + map[bool]string{true: " is away", false: " is back"}[s.Away]
	case <-ctx.Done():
		return ctx.Err().Error()
	}
}

type demo struct {
	out     io.Writer
	limiter *reservoir.Limiter
	store   *redisstore.Shards
	pairs   map[string]*redistest.Replicated
}

// ask makes 60 requests for each of six users, two per shard. It prints how many the store
// and the policy admitted, and how many a replica says are left.
func (d demo) ask(ctx context.Context, what string) error {
	fmt.Fprintf(d.out, "%s\n  user        shard  admitted by the store  by the failure policy  left\n", what)
	for _, user := range []string{"user:anna", "user:emma", "user:hugo", "user:max", "user:ben", "user:felix"} {
		admitted := map[bool]int{} // under true by the policy
		for range 60 {
			r, err := d.limiter.Allow(ctx, user)
			if err != nil {
				return err
			}
			if r.Allowed {
				admitted[r.Source == reservoir.Fallback]++
			}
		}
		shard := d.store.Shard(user)     // without a call
		if d.pairs[shard].Primary.Up() { // its replica may lag
			d.pairs[shard].AwaitSync()
		}
		r, err := d.limiter.Check(ctx, user)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "  %-10s  %-5s  %21d  %21d  %4d\n", user, shard, admitted[false], admitted[true], r.Remaining)
	}
	return nil
}

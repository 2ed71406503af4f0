package main

import (
	"context"
	"fmt"
	"io"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// users are two for each shard.
var users = []string{"user:anna", "user:emma", "user:hugo", "user:max", "user:ben", "user:felix"}

// demo asks for the users and prints what they get.
type demo struct {
	out     io.Writer
	limiter *reservoir.Limiter
	store   *redisstore.Shards
	servers map[string]*pair
}

// ask makes n requests for each user.
func (d *demo) ask(ctx context.Context, n int) error {
	fmt.Fprintln(d.out, "  user        shard  admitted by the store  by the failure policy")
	for _, user := range users {
		admitted := map[bool]int{} // by the policy?
		for range n {
			r, err := d.limiter.Allow(ctx, user)
			if err != nil {
				return err
			}
			if r.Allowed {
				admitted[r.Source == reservoir.Fallback]++
			}
		}
		// Shard tells where a key lives without asking anybody.
		fmt.Fprintf(d.out, "  %-10s  %-5s  %21d  %21d\n", user, d.store.Shard(user), admitted[false], admitted[true])
	}
	return d.settle(ctx)
}

// settle waits until the replicas have what was charged: they lag, and the
// figures are to be the same in each run.
func (d *demo) settle(ctx context.Context) error {
	for _, p := range d.servers {
		if err := p.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// check asks the replicas what is left.
func (d *demo) check(ctx context.Context) error {
	fmt.Fprintln(d.out, "  user        shard  left")
	for _, user := range users {
		r, err := d.limiter.Check(ctx, user)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "  %-10s  %-5s  %4d\n", user, d.store.Shard(user), r.Remaining)
	}
	return nil
}

// inspect looks into the primaries.
func (d *demo) inspect(ctx context.Context) error {
	fmt.Fprintln(d.out, "  user        shard  used")
	for _, user := range users {
		contents, err := d.store.Inspect(ctx, user)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "  %-10s  %-5s  %4d\n", user, d.store.Shard(user), contents.Used)
	}
	return nil
}

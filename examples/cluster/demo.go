package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

var users = []string{"user:anna", "user:emma", "user:hugo", "user:max", "user:ben", "user:felix"}

// demo asks for the users and prints what they get.
type demo struct {
	out     io.Writer
	limiter *reservoir.Limiter
	store   *redisstore.Store
	nodes   []*server // the three masters first
}

// ask makes n requests for each user, for all users at the same time.
func (d *demo) ask(ctx context.Context, n int) error {
	tallies := make([]tally, len(users))
	errs := make([]error, len(users))
	var all sync.WaitGroup
	for i, user := range users {
		all.Go(func() { tallies[i], errs[i] = d.count(ctx, user, n) })
	}
	all.Wait()
	fmt.Fprintln(d.out, "  user        master   admitted by the store  by the failure policy")
	for i, user := range users {
		fmt.Fprintf(d.out, "  %-10s  %-7s  %21d  %21d\n", user, d.name(user), tallies[i].store, tallies[i].policy)
	}
	return errors.Join(errs...)
}

// tally is how many requests were admitted, and by whom.
type tally struct{ store, policy int }

func (d *demo) count(ctx context.Context, user string, n int) (t tally, err error) {
	for range n {
		r, err := d.limiter.Allow(ctx, user)
		switch {
		case err != nil:
			return t, err
		case r.Allowed && r.Source == reservoir.Fallback:
			t.policy++
		case r.Allowed:
			t.store++
		}
	}
	return t, nil
}

// name tells which master counts a user, as the client knows, which asks nobody.
func (d *demo) name(user string) string {
	for i, n := range d.nodes[:3] {
		if n.addr == d.store.Shard(user) {
			return strconv.Itoa(i + 1)
		}
	}
	return "replica" // that was, and is a master now
}

// stopMasterOf kills the server that counts a user.
func (d *demo) stopMasterOf(ctx context.Context, client *redis.ClusterClient, user string) error {
	master, err := client.MasterForKey(ctx, "{"+user+"}")
	if err != nil {
		return err
	}
	for _, n := range d.nodes {
		if n.addr == master.Options().Addr {
			n.stop()
		}
	}
	return nil
}

// check asks the masters what is left.
func (d *demo) check(ctx context.Context) error {
	fmt.Fprintln(d.out, "  user        master   left")
	for _, user := range users {
		r, err := d.limiter.Check(ctx, user)
		if err != nil {
			return err
		}
		fmt.Fprintf(d.out, "  %-10s  %-7s  %4d\n", user, d.name(user), r.Remaining)
	}
	return nil
}

package sharding_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/internal/redistest"
	"github.com/go-reservoir/reservoir/sharding"
)

// Three servers share the keys. When one is away, only its keys get the answer of the
// failure policy. They go to no other shard, where each would find a full limit.
func Example() {
	ctx := context.Background()
	shards, stop := map[string]backend.Store{}, map[string]func(){}
	for _, name := range []string{"a", "b", "c"} {
		t, end := redistest.Example() // a service has its servers
		defer end()
		client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), DialerRetries: 1})
		defer client.Close()
		shards[name], stop[name] = redisstore.New(client), end
	}
	store, err := sharding.New(shards)
	if err != nil {
		panic(err)
	}
	limiter, err := reservoir.New(store, reservoir.PerHour(100),
		reservoir.WithFailLocal(0.1), // while a shard is away: a tenth of the limit per process
		reservoir.WithFixedBatch(1),  // no stock, so that the figures are the same in each run
		reservoir.WithFetchTimeout(5*time.Second))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(ctx)

	request := func(what string) {
		fmt.Println(what)
		for _, user := range []string{"user:anna", "user:hugo", "user:ben"} {
			byStore, byPolicy := 0, 0
			for range 60 {
				switch r, err := limiter.Allow(ctx, user); {
				case err != nil:
					fmt.Println(err)
				case r.Allowed && r.Source == reservoir.Fallback:
					byPolicy++
				case r.Allowed:
					byStore++
				}
			}
			fmt.Printf("%s on shard %s: %d by the store, %d by the failure policy\n", user, store.Shard(user), byStore, byPolicy)
		}
	}
	request("60 requests each:")
	stop["b"]()
	request("Shard b is away, 60 more:")
	// Output:
	// 60 requests each:
	// user:anna on shard a: 60 by the store, 0 by the failure policy
	// user:hugo on shard b: 60 by the store, 0 by the failure policy
	// user:ben on shard c: 60 by the store, 0 by the failure policy
	// Shard b is away, 60 more:
	// user:anna on shard a: 40 by the store, 0 by the failure policy
	// user:hugo on shard b: 0 by the store, 10 by the failure policy
	// user:ben on shard c: 40 by the store, 0 by the failure policy
}

func ExampleNew() {
	store, err := sharding.New(map[string]backend.Store{
		"a": memstore.New(), // or redisstore.New(client of a)
		"b": memstore.New(),
		"c": memstore.New(),
	})
	if err != nil {
		panic(err)
	}
	limiter, err := reservoir.New(store, reservoir.PerHour(100))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	r, err := limiter.Allow(context.Background(), "user:anna")
	fmt.Println(r.Allowed, err)

	_, err = sharding.New(nil)
	fmt.Println(err != nil)
	// Output:
	// true <nil>
	// true
}

// The names of the shards decide where a key is stored. A fourth shard takes a quarter of
// the keys, and no key moves between the first three.
func ExampleStore_Shard() {
	names := []string{"a", "b", "c", "d"}
	open := func(n int) *sharding.Store {
		shards := map[string]backend.Store{}
		for _, name := range names[:n] {
			shards[name] = memstore.New()
		}
		store, err := sharding.New(shards)
		if err != nil {
			panic(err)
		}
		return store
	}
	three, four := open(3), open(4)
	moved := map[string]int{}
	for i := range 1000 {
		key := fmt.Sprint("user:", i)
		if to := four.Shard(key); to != three.Shard(key) {
			moved[to]++
		}
	}
	fmt.Println(moved)
	// Output: map[d:250]
}

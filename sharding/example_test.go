package sharding_test

import (
	"context"
	"fmt"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/sharding"
)

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

package docs_test

import (
	"context"
	"fmt"
	"hash/crc32"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// The code of docs/migrating.md. What it says of other libraries is tested in
// test/bench/migrating_test.go.

func Example_openStore() {
	store, err := redisstore.Open("redis://:password@localhost:6379",
		redisstore.WithPrefix("api:"))
	fmt.Println(store.Close(), err)
	// Output: <nil> <nil>
}

// of is the same in all processes.
func of(percent uint32, key string, before, after *reservoir.Limiter,
) *reservoir.Limiter {
	if crc32.ChecksumIEEE([]byte(key))%100 < percent {
		return after
	}
	return before
}

// A key that moves begins a fresh window there, and finds the old one if it goes back.
func Example_keyByKey() {
	ctx := context.Background()
	before, err := reservoir.New(memstore.New(), reservoir.PerHour(5))
	check(err)
	defer before.Close(ctx)
	after, err := reservoir.New(memstore.New(), reservoir.PerHour(5))
	check(err)
	defer after.Close(ctx)

	for _, percent := range []uint32{0, 0, 10, 100, 0} {
		r, err := of(percent, "user:42", before, after).Allow(ctx, "user:42")
		fmt.Println(percent, r.Allowed, r.Remaining, err)
	}
	// Output:
	// 0 true 4 <nil>
	// 0 true 3 <nil>
	// 10 true 2 <nil>
	// 100 true 4 <nil>
	// 0 true 1 <nil>
}

package docs_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
)

// The code of docs/migrating.md that uses this library. The code that it replaces is in
// test/bench/migrating_test.go.

func fromRedisRate(ctx context.Context, store backend.Store) error {
	limiter, err := reservoir.New(store, reservoir.PerMinute(60)) // once; store is redisstore.New(rdb)
	if err != nil {
		return err
	}
	defer limiter.Close(context.Background()) // ctx may have ended by then

	r, err := limiter.Allow(ctx, "project:123")
	if err != nil {
		return err
	}
	fmt.Println("allowed", r.Allowed, "remaining", r.Remaining)
	return nil
}

func Example_fromRedisRate() {
	check(fromRedisRate(context.Background(), memstore.New()))
	// Output: allowed true remaining 59
}

func Example_fromRedisRateLimits() {
	ctx, store := context.Background(), memstore.New()
	limiter, err := reservoir.New(store, reservoir.PerMinute(60),
		reservoir.WithLimits(func(key string) reservoir.Limit {
			if strings.HasPrefix(key, "paid:") {
				return reservoir.PerMinute(600)
			}
			return reservoir.PerMinute(60)
		}))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(ctx)
	r, err := limiter.Allow(ctx, "paid:123")
	fmt.Println(r.Limit, err)
	// Output: 600 <nil>
}

func Example_openStore() {
	store, err := redisstore.Open("redis://:password@localhost:6379", redisstore.WithPrefix("api:"))
	fmt.Println(store.Close(), err)
	// Output: <nil> <nil>
}

func of(percent uint32, key string, before, after *reservoir.Limiter) *reservoir.Limiter {
	if crc32.ChecksumIEEE([]byte(key))%100 < percent { // in all processes the same
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

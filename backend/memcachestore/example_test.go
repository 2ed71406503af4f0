package memcachestore_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memcachestore"
)

// TestReadme runs this example against its own memcached.
func Example() {
	client := memcache.New(os.Getenv("MEMCACHED")) // such as 10.0.0.7:11211
	client.Timeout = 200 * time.Millisecond
	client.MaxIdleConns = 64
	defer client.Close()

	limiter, err := reservoir.New(memcachestore.New(client), reservoir.PerHour(5000))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	r, err := limiter.Allow(ctx, "user:42")
	fmt.Println(r.Allowed, r.Remaining, err)
}

// A faulty store is found when it is made, and each failure can be told from the others.
func ExampleNew() {
	store := memcachestore.New(memcache.New("10.0.0.7:11211"), memcachestore.WithPrefix("api:"))
	fmt.Println(store.Err(), memcachestore.New(nil).Err() != nil)
	for _, cause := range []error{memcachestore.ErrContended, memcachestore.ErrLedgerFull} {
		fmt.Println(cause)
	}
	// Output:
	// <nil> true
	// memcached: too many writers of one key
	// memcached: too many clients of one key
}

package memstore_test

import (
	"context"
	"fmt"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// A limit within one process, and a look at what the store holds.
func ExampleNew() {
	store, ctx := memstore.New(), context.Background()
	limiter, err := reservoir.New(store, reservoir.PerHour(100))
	if err != nil {
		panic(err)
	}
	for range 3 {
		limiter.Allow(ctx, "user:42")
	}
	limiter.Close(ctx) // hands back what it did not use
	contents, err := store.Inspect(ctx, "user:42")
	fmt.Println(contents.Used, err)
	// Output: 3 <nil>
}

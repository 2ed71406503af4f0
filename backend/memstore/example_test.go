package memstore_test

import (
	"context"
	"fmt"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// The limit holds within one process, and Inspect shows what the store holds.
func ExampleNew() {
	store, ctx := memstore.New(), context.Background()
	limiter, err := reservoir.New(store, reservoir.PerHour(100))
	if err != nil {
		panic(err)
	}
	for range 3 {
		limiter.Allow(ctx, "user:42")
	}
	limiter.Close(ctx) // returns unused tokens
	contents, err := store.Inspect(ctx, "user:42")
	fmt.Println(contents[0].Counter, contents[0].Used, err)
	// Output: 3600s 3 <nil>
}

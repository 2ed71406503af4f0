package rollout_test

import (
	"context"
	"fmt"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/rollout"
)

// A key moves to the new store in the middle of its window, together with its used tokens.
func Example() {
	ctx := context.Background()
	store, err := rollout.New(memstore.New(), memstore.New(), 0, 0) // or two redisstores
	if err != nil {
		panic(err)
	}
	limiter, err := reservoir.New(store, reservoir.PerHour(5), reservoir.WithDirect())
	if err != nil {
		panic(err)
	}
	defer limiter.Close(ctx)
	allow := func() {
		r, err := limiter.Allow(ctx, "user:42")
		fmt.Println(store.Shard("user:42"), r.Allowed, r.Remaining, err)
	}

	allow()
	allow()
	_ = store.SetPercent(0, 100) // when the flag says so
	allow()
	_ = store.SetPercent(100, 100) // when all processes have the first change; the old store is left after the hour
	allow()
	allow()
	allow()
	// Output:
	// old true 4 <nil>
	// old true 3 <nil>
	// both true 2 <nil>
	// both true 1 <nil>
	// both true 0 <nil>
	// both false 0 <nil>
}

// The range often comes as text, from a feature flag or a file.
func ExampleStore_SetPercent() {
	store, err := rollout.New(memstore.New(), memstore.New(), 0, 0)
	if err != nil {
		panic(err)
	}
	for _, flag := range []string{"0 5", "5 5", "5 100", "100 5"} {
		var low, high float64
		if _, err := fmt.Sscan(flag, &low, &high); err != nil {
			panic(err)
		}
		if err := store.SetPercent(low, high); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(store.Percent())
	// Output:
	// reservoir: rollout: keys from 100 to 5 percent, want 0 <= low <= high <= 100
	// 5 100
}

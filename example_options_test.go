package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

// Each sizing chooses the first batch of a key in its own way.
func ExampleWithBatch() {
	fetched := make(chan string, 8)
	for _, sizing := range []reservoir.Sizing{
		reservoir.Fixed(500),       // demand is known and even
		reservoir.Ladder(10, 500),  // Rockset's rule
		reservoir.Adaptive(100, 0), // as by default, but at least 100
	} {
		limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(60_000),
			reservoir.WithBatch(sizing),
			reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) { fetched <- fmt.Sprint(c.Reason, " ", c.Granted) }}))
		if err != nil {
			panic(err)
		}
		limiter.Allow(context.Background(), "user:42")
		fmt.Println(<-fetched) // a hook may come after the answer
	}
	// Output:
	// fixed 500
	// first 10
	// first 100
}

// If a limit is small, each token matters. WithDirect makes a call for each request.
func ExampleWithDirect() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(2), reservoir.WithDirect())
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	for range 4 {
		r, _ := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Remaining, r.Source, r.Source.OnNetwork())
	}
	// Output:
	// true 1 direct true
	// true 0 direct true
	// false 0 direct true
	// false 0 denied false
}

// Some keys have their own limits, which may change at any time.
func ExampleWithLimits() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(5_000),
		reservoir.WithLimits(func(key string) reservoir.Limit {
			if strings.HasPrefix(key, "ip:") {
				return reservoir.PerHour(60)
			}
			return reservoir.PerHour(5_000)
		}))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	for _, key := range []string{"user:42", "ip:192.0.2.1"} {
		r, _ := limiter.Allow(context.Background(), key)
		fmt.Println(key, r.Limit)
	}
	// Output:
	// user:42 5000
	// ip:192.0.2.1 60
}

// awayStore is a store whose server cannot be reached.
type awayStore struct{ *memstore.Store }

func (awayStore) Sync(context.Context, backend.SyncRequest) (backend.SyncReply, error) {
	return backend.SyncReply{}, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: errors.New("connection refused")}
}

// Callers without stock get these answers while the store is away.
func ExampleWithFailure() {
	for _, failure := range []reservoir.Failure{
		reservoir.FailClosed(),   // by default: no decision
		reservoir.FailOpen(),     // admit all
		reservoir.FailLocal(0.1), // at most a tenth of the limit, in this process
	} {
		limiter, err := reservoir.New(awayStore{memstore.New()}, reservoir.PerHour(100),
			reservoir.WithFailure(failure),
			reservoir.WithFetchTimeout(50*time.Millisecond)) // how long such a caller waits at most
		if err != nil {
			panic(err)
		}
		admitted := 0
		for range 50 {
			var r reservoir.Result
			if r, err = limiter.Allow(context.Background(), "user:42"); r.Allowed && r.Source == reservoir.Fallback {
				admitted++
			}
		}
		fmt.Println(admitted, err)
	}
	// Output:
	// 0 reservoir: sync: store unavailable: the circuit is open: connection refused
	// 50 <nil>
	// 10 <nil>
}

// The outcome of a failed call says whether the store may have carried it out.
func ExampleStoreCall_Outcome() {
	outcomes := make(chan string, 1)
	limiter, err := reservoir.New(awayStore{memstore.New()}, reservoir.PerHour(100),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) { outcomes <- c.Op + " " + c.Outcome() }}))
	if err != nil {
		panic(err)
	}
	_, err = limiter.Allow(context.Background(), "user:42")
	fmt.Println(<-outcomes) // a hook may come after the answer
	if failure, ok := errors.AsType[*reservoir.StoreError](err); ok {
		fmt.Println(failure.Class == backend.Unavailable)
	}
	// Output:
	// sync unavailable
	// true
}

// Two limits of one store count the same keys. Each limit has its own windows.
func ExampleWithName() {
	store, ctx := memstore.New(), context.Background()
	minute, err := reservoir.New(store, reservoir.PerMinute(2), reservoir.WithName("per-minute"))
	if err != nil {
		panic(err)
	}
	hour, err := reservoir.New(store, reservoir.PerHour(1000), reservoir.WithName("per-hour"))
	if err != nil {
		panic(err)
	}
	both := reservoir.NewGroup(minute, hour)
	for range 3 {
		r, _ := both.Allow(ctx, "user:42", "user:42")
		fmt.Println(r.Allowed, r.Limit)
	}
	// Output:
	// true 2
	// true 2
	// false 2
}

// WithMaxKeys bounds memory. Each request for a key beyond the bound makes a store call.
func ExampleWithMaxKeys() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(5_000),
		reservoir.WithMaxKeys(2),
		reservoir.WithIdle(time.Minute)) // frees the memory of a key that is idle for so long
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	for _, key := range []string{"a", "b", "c"} {
		r, _ := limiter.Allow(context.Background(), key)
		fmt.Println(key, r.Source)
	}
	fmt.Println(limiter.Stats().Keys, "keys held")
	// Output:
	// a fetched
	// b fetched
	// c direct
	// 2 keys held
}

// Two processes share a limit. No token may lie unspent in one process while the other is
// refused, at the price of more calls near the limit's end.
func ExampleWithStranding() {
	store, ctx := memstore.New(), context.Background()
	var processes []*reservoir.Limiter
	for range 2 {
		limiter, err := reservoir.New(store, reservoir.PerHour(1000), reservoir.WithStranding(0))
		if err != nil {
			panic(err)
		}
		defer limiter.Close(ctx)
		processes = append(processes, limiter)
	}
	admitted := 0
	for range 1000 {
		for _, limiter := range processes {
			if r, _ := limiter.Allow(ctx, "user:42"); r.Allowed {
				admitted++
			}
		}
	}
	fmt.Println(admitted)
	// Output: 1000
}

// WithShadow shows what a limit would refuse before you enforce it.
func ExampleWithShadow() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(2), reservoir.WithShadow())
	for range 3 {
		r, err := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Shadowed, err)
	}
	// Output:
	// true false <nil>
	// true false <nil>
	// true true <nil>
}

// Plans come from a table in a file or database. A goroutine of the service reloads the
// table while the service runs.
func ExampleUnlimited() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	plans := map[string]reservoir.Limit{
		"free":       reservoir.PerDay(2, berlin),
		"team":       reservoir.PerWeek(50_000, berlin),
		"business":   reservoir.PerMonth(1_000_000, berlin),
		"enterprise": reservoir.Unlimited(),
	}
	var planOf atomic.Pointer[map[string]string] // user → plan
	planOf.Store(&map[string]string{"user:1": "free", "user:2": "enterprise"})

	limiter, err := reservoir.New(memstore.New(), plans["free"], reservoir.WithLimits(func(key string) reservoir.Limit {
		return plans[(*planOf.Load())[key]] // an unknown user has the zero Limit, which blocks
	}))
	if err != nil {
		panic(err)
	}
	ask := func(key string) {
		r, err := limiter.AllowN(context.Background(), key, 2)
		fmt.Println(key, r.Allowed, err)
	}
	ask("user:1")
	ask("user:1")
	ask("user:2")
	ask("user:3")
	planOf.Store(&map[string]string{"user:1": "team", "user:3": "business"})
	ask("user:2")
	ask("user:3")
	// Output:
	// user:1 true <nil>
	// user:1 false <nil>
	// user:2 true <nil>
	// user:3 false <nil>
	// user:2 false <nil>
	// user:3 true <nil>
}

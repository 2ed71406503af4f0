package reservoir_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
	"github.com/go-reservoir/reservoir/sharding"
)

func Example() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(3))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	defer limiter.Close(ctx)

	for range 4 {
		r, err := limiter.Allow(ctx, "user:42")
		switch {
		case err != nil:
			fmt.Println("no decision:", err)
		case r.Allowed:
			fmt.Println("go ahead,", r.Remaining, "left")
		default:
			fmt.Println("come back in", r.RetryAfter.Round(time.Minute))
		}
	}
	// Output:
	// go ahead, 2 left
	// go ahead, 1 left
	// go ahead, 0 left
	// come back in 1m0s
}

func ExampleNew_redis() {
	client := redis.NewClient(&redis.Options{
		Addr:                  "localhost:6379",
		MaxRetries:            -1, // the store decides what may be repeated
		DialerRetries:         1,
		DialTimeout:           200 * time.Millisecond,
		ReadTimeout:           200 * time.Millisecond,
		ContextTimeoutEnabled: true,
	})
	defer client.Close()
	limiter, err := reservoir.New(redisstore.New(client), reservoir.PerSecond(10_000))
	if err != nil {
		panic(err)
	}
	fmt.Println(limiter.Stats().StoreCalls, "calls so far") // New does no I/O
	// Output: 0 calls so far
}

func ExampleNew_shards() {
	shards := map[string]backend.Store{}
	for _, name := range []string{"a", "b", "c"} {
		shards[name] = memstore.New() // or redisstore.New(client of that shard)
	}
	store, err := sharding.New(shards)
	if err != nil {
		panic(err)
	}
	limiter, err := reservoir.New(store, reservoir.PerMinute(100))
	fmt.Println(limiter != nil, err)
	// Output: true <nil>
}

func ExampleLimiter_Wait() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(1))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := limiter.Wait(ctx, "job")
	fmt.Println(r.Allowed, err)
	_, err = limiter.Wait(ctx, "job")
	fmt.Println(err) // at once: the next token is an hour away
	// Output:
	// true <nil>
	// reservoir: no tokens before the context deadline exceeded
}

// A request for several tokens gets all of them or none.
func ExampleLimiter_AllowN() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerMinute(100))
	ctx := context.Background()
	for _, n := range []int64{70, 70, 30, 101} {
		r, err := limiter.AllowN(ctx, "user:42", n)
		fmt.Println(r.Allowed, err)
	}
	// Output:
	// true <nil>
	// false <nil>
	// true <nil>
	// false reservoir: more tokens than the limit
}

// A worker waits for as many tokens as its work costs.
func ExampleLimiter_WaitN() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.Limit{Tokens: 10, Window: 50 * time.Millisecond})
	for range 3 { // as many resets as it takes
		r, err := limiter.WaitN(context.Background(), "upstream", 6)
		fmt.Println(r.Allowed, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// true <nil>
}

// Check charges nothing.
func ExampleLimiter_Check() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerMinute(10))
	for range 3 {
		r, err := limiter.Check(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Remaining, err)
	}
	// Output:
	// true 10 <nil>
	// true 10 <nil>
	// true 10 <nil>
}

// The tokens that a process holds are charged. Close returns them to the other processes.
func ExampleLimiter_Close() {
	store, ctx := memstore.New(), context.Background() // or redisstore.New(client)
	one, _ := reservoir.New(store, reservoir.PerHour(1000), reservoir.WithBatch(reservoir.Fixed(100)))
	two, _ := reservoir.New(store, reservoir.PerHour(1000))
	one.Allow(ctx, "user:42")
	r, _ := two.Check(ctx, "user:42")
	fmt.Println(r.Remaining)
	fmt.Println(one.Close(ctx)) // after the last request, and before the store's client is closed
	r, _ = two.Check(ctx, "user:42")
	fmt.Println(r.Remaining)
	_, err := one.Allow(ctx, "user:42")
	fmt.Println(err)
	// Output:
	// 900
	// <nil>
	// 999
	// reservoir: limiter closed
}

func ExampleLimiter_Refund() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerMinute(10))
	ctx := context.Background()
	r, _ := limiter.Allow(ctx, "user:42")
	notModified := true // the response cost nothing
	if notModified {
		_ = limiter.Refund(ctx, "user:42", r)
	}
	r, _ = limiter.Check(ctx, "user:42")
	fmt.Println(r.Remaining)
	// Output: 10
}

func ExampleLimiter_Key() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerSecond(1000))
	global := limiter.Key("global") // once
	r, err := global.Allow(context.Background())
	fmt.Println(r.Allowed, err)
	// Output: true <nil>
}

func ExampleLimiter_Stats() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerMinute(100_000))
	ctx := context.Background()
	for range 1000 {
		limiter.Allow(ctx, "user:42")
	}
	limiter.Close(ctx)
	s := limiter.Stats()
	fmt.Println(s.Taken+s.Refunded == s.Spent+s.Returned+s.Expired+s.Held, s.Spent, s.StoreCalls < 10)
	// Output: true 1000 true
}

func ExampleWithHooks() {
	calls := make(chan reservoir.StoreCall, 8)
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerMinute(1000),
		reservoir.WithBatch(reservoir.Fixed(50)),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) { calls <- c }}))
	limiter.Allow(context.Background(), "user:42")
	c := <-calls // a hook may come after the answer
	fmt.Println(c.Op, c.Reason, c.Want, c.Granted, c.Err)
	// Output: sync fixed 50 50 <nil>
}

// A Group charges a request to all its limits or to none.
func ExampleGroup() {
	store := memstore.New()
	users, _ := reservoir.New(store, reservoir.PerMinute(2))
	organisations, _ := reservoir.New(store, reservoir.PerMinute(1_000))
	defer users.Close(context.Background())
	defer organisations.Close(context.Background())

	names := []string{"user", "organisation"}
	group := reservoir.NewGroup(users, organisations)
	for range 3 {
		r, err := group.Allow(context.Background(), "user:42", "organisation:7")
		if err != nil {
			fmt.Println(err)
		}
		fmt.Println(r.Allowed, "by the limit of the", names[r.Limiter])
	}
	// Output:
	// true by the limit of the user
	// true by the limit of the user
	// false by the limit of the user
}

// Refund returns the charge of a group's request to every limit.
func ExampleGroup_Refund() {
	store, ctx := memstore.New(), context.Background()
	users, _ := reservoir.New(store, reservoir.PerMinute(2))
	organisations, _ := reservoir.New(store, reservoir.PerMinute(1_000))
	defer users.Close(ctx)
	defer organisations.Close(ctx)

	group := reservoir.NewGroup(users, organisations)
	r, _ := group.AllowN(ctx, 2, "user:42", "organisation:7")
	fmt.Println(r.Allowed, group.Refund(ctx, r, "user:42", "organisation:7"))
	r, _ = group.AllowN(ctx, 2, "user:42", "organisation:7")
	fmt.Println(r.Allowed)
	// Output:
	// true <nil>
	// true
}

// The cost of a request may be known only at its end. It is first charged an estimate, and
// then its real use. Neither needs a store call of its own.
func ExampleLimiter_Settle() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(10_000))
	ctx := context.Background()
	r, _ := limiter.AllowN(ctx, "user:42", 4000) // as many as it may use
	fmt.Println(r.Remaining)
	used := int64(1234) // it has run, and says so
	if err := limiter.Settle(ctx, "user:42", r, used); err != nil {
		panic(err)
	}
	r, _ = limiter.Check(ctx, "user:42")
	fmt.Println(r.Remaining)
	// Output:
	// 6000
	// 8766
}

// The limits of a Group may have different units.
func ExampleGroup_AllowEach() {
	ctx, store := context.Background(), memstore.New()
	requests, _ := reservoir.New(store, reservoir.PerMinute(60), reservoir.WithName("requests"))
	tokens, _ := reservoir.New(store, reservoir.PerMinute(10_000), reservoir.WithName("tokens"))
	group := reservoir.NewGroup(requests, tokens)

	r, err := group.AllowEach(ctx, []int64{1, 8000}, "user:42", "user:42")
	fmt.Println(r.Allowed, err)
	r2, _ := group.AllowEach(ctx, []int64{1, 8000}, "user:42", "user:42")
	fmt.Println(r2.Allowed, r2.Limiter)

	err = group.Settle(ctx, r, []int64{1, 700}, "user:42", "user:42")
	fmt.Println(err)
	_, err = group.WaitEach(ctx, []int64{1, 8000}, "user:42", "user:42")
	fmt.Println(err)
	// Output:
	// true <nil>
	// false 1
	// <nil>
	// <nil>
}

// Reset helps a user who was limited by mistake. Keys shows the keys of this process.
func ExampleLimiter_Reset() {
	ctx := context.Background()
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100), reservoir.WithBatch(reservoir.Fixed(1)))
	_, _ = limiter.AllowN(ctx, "user:42", 100)
	r, _ := limiter.Allow(ctx, "user:42")
	fmt.Println(r.Allowed)
	for key, s := range limiter.Keys() {
		fmt.Println(key, s.Spent, s.Denied, s.Exhausted)
	}
	fmt.Println(limiter.Reset(ctx, "user:42"))
	r, _ = limiter.Allow(ctx, "user:42")
	fmt.Println(r.Allowed, r.Remaining)
	// Output:
	// false
	// user:42 100 1 true
	// <nil>
	// true 99
}

// Figures helps to export Stats to any monitoring system.
func ExampleFigures() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	limiter.AllowN(context.Background(), "user:42", 7)
	stats := limiter.Stats()
	for _, f := range reservoir.Figures() {
		if f.Name == "tokens.spent" {
			fmt.Println(f.Name, f.Value(&stats), f.Gauge)
		}
	}
	// Output: tokens.spent 7 false
}

package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/backend/redisstore"
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
		DialTimeout:           2 * time.Second,
		ReadTimeout:           5 * time.Second, // the context of a call ends it sooner
		ConnMaxIdleTime:       time.Minute,
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

// A sender of a queue takes as many messages at a time as the limit allows.
func ExampleLimiter_AllowUpTo() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100))
	for range 3 {
		n, r, err := limiter.AllowUpTo(context.Background(), "mail", 60)
		fmt.Println(n, r.Allowed, err)
	}
	// Output:
	// 60 true <nil>
	// 40 true <nil>
	// 0 false <nil>
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
	one, _ := reservoir.New(store, reservoir.PerHour(1000), reservoir.WithFixedBatch(100))
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
		_ = limiter.Refund(ctx, r)
	}
	r, _ = limiter.Check(ctx, "user:42")
	fmt.Println(r.Remaining)
	// Output: 10
}

// The cost of a request may be known only at its end. It is first charged an estimate, and
// then its real use. Neither needs a store call of its own.
func ExampleLimiter_Settle() {
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(10_000))
	ctx := context.Background()
	r, _ := limiter.AllowN(ctx, "user:42", 4000) // as many as it may use
	fmt.Println(r.Remaining)
	used := int64(1234) // it has run, and says so
	if err := limiter.Settle(ctx, r, used); err != nil {
		panic(err)
	}
	r, _ = limiter.Check(ctx, "user:42")
	fmt.Println(r.Remaining)
	// Output:
	// 6000
	// 8766
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

// Reset gives a user who was limited by mistake a fresh window. Keys lists the keys in
// memory.
func ExampleLimiter_Reset() {
	ctx := context.Background()
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerHour(100), reservoir.WithFixedBatch(1))
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

	err = group.Settle(ctx, r, []int64{1, 700})
	fmt.Println(err)
	_, err = group.WaitEach(ctx, []int64{1, 8000}, "user:42", "user:42")
	fmt.Println(err)
	// Output:
	// true <nil>
	// false 1
	// <nil>
	// <nil>
}

// Each way chooses the first batch of a key differently.
func ExampleWithBatch() {
	fetched := make(chan string, 8)
	for _, batch := range []reservoir.Option{
		reservoir.WithFixedBatch(500), // demand is known and even
		reservoir.WithLadder(10, 500), // Rockset's rule
		reservoir.WithBatch(100, 0),   // as by default, but at least 100
	} {
		limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(60_000),
			batch,
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

// If a limit is small, each token matters. WithDirect holds none.
func ExampleWithDirect() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(2), reservoir.WithDirect())
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	for range 3 {
		r, _ := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Remaining, r.Source)
	}
	// Output:
	// true 1 direct
	// true 0 direct
	// false 0 local
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

// The limit holds in every interval of a minute.
func ExampleLimit_Rolling() {
	store := memstore.New()
	limiter, err := reservoir.New(store, reservoir.PerMinute(60_000).Rolling())
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())

	r, err := limiter.AllowN(context.Background(), "user:42", 60_000)
	fmt.Println(r.Allowed, err)
	r, err = limiter.Allow(context.Background(), "user:42") // until a minute after the slice in which these were spent
	fmt.Println(r.Allowed, r.RetryAfter > 59*time.Second, err)
	// Output:
	// true <nil>
	// false true <nil>
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

	limitOf := func(key string) reservoir.Limit {
		return plans[(*planOf.Load())[key]] // unknown: the zero Limit, so ErrLimit
	}
	limiter, err := reservoir.New(memstore.New(), plans["free"],
		reservoir.WithLimits(limitOf))
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
	// user:3 false reservoir: bad limit: no limit for this key (Block() refuses every request)
	// user:2 false reservoir: bad limit: no limit for this key (Block() refuses every request)
	// user:3 true <nil>
}

// awayStore is a store whose server cannot be reached.
type awayStore struct{ *memstore.Store }

func (awayStore) Sync(
	context.Context, backend.Statement,
) (backend.Reply, error) {
	return backend.Reply{}, &backend.Error{
		Op: "sync", Class: backend.Unavailable,
		Err: errors.New("connection refused"),
	}
}

// Callers without stock get these answers while the store is away.
func ExampleWithFailLocal() {
	for _, failure := range []reservoir.Option{
		reservoir.WithHooks(reservoir.Hooks{}), // no policy: no decision
		reservoir.WithFailOpen(),               // admit all
		reservoir.WithFailLocal(0.1),           // at most a tenth of the limit, in this process
	} {
		limiter, err := reservoir.New(awayStore{memstore.New()}, reservoir.PerHour(100),
			failure,
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

func ExampleWithHooks() {
	calls := make(chan reservoir.StoreCall, 8)
	limiter, _ := reservoir.New(memstore.New(), reservoir.PerMinute(1000),
		reservoir.WithFixedBatch(50),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) { calls <- c }}))
	limiter.Allow(context.Background(), "user:42")
	c := <-calls // a hook may come after the answer
	fmt.Println(c.Op, c.Reason, c.Want, c.Granted, c.Err)
	// Output: sync fixed 50 50 <nil>
}

// Limits of two lengths count a key apart.
func ExampleNewGroup() {
	store, ctx := memstore.New(), context.Background()
	minute, err := reservoir.New(store, reservoir.PerMinute(2))
	if err != nil {
		panic(err)
	}
	hour, err := reservoir.New(store, reservoir.PerHour(1000))
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

// Two limits of one length count the same key apart, because each has a name.
func ExampleWithName() {
	store, ctx := memstore.New(), context.Background()
	searches, err := reservoir.New(store,
		reservoir.PerMinute(100), reservoir.WithName("searches"))
	if err != nil {
		panic(err)
	}
	exports, err := reservoir.New(store,
		reservoir.PerMinute(1), reservoir.WithName("exports"))
	if err != nil {
		panic(err)
	}
	for _, limiter := range []*reservoir.Limiter{exports, exports, searches} {
		r, _ := limiter.Allow(ctx, "user:42")
		fmt.Println(r.Allowed, r.Limit)
	}
	// Output:
	// true 1
	// false 1
	// true 100
}

// Limiters of one name, one length and one store count together. So background jobs with a lower limit leave the rest of a
// provider's limit to users.
func Example_priority() {
	store, ctx := memstore.New(), context.Background()
	users, err := reservoir.New(store, reservoir.PerMinute(1000))
	if err != nil {
		panic(err)
	}
	jobs, err := reservoir.New(store, reservoir.PerMinute(600))
	if err != nil {
		panic(err)
	}
	for range 500 {
		_, _ = users.Allow(ctx, "provider")
	}
	admitted := map[*reservoir.Limiter]int{}
	for _, l := range []*reservoir.Limiter{jobs, users} {
		for {
			if r, err := l.Allow(ctx, "provider"); err != nil || !r.Allowed {
				break
			}
			admitted[l]++
		}
	}
	fmt.Println("jobs", admitted[jobs], "users", 500+admitted[users])
	// Output:
	// jobs 100 users 900
}

// A tree of agents has one budget: the parent reserves it, its children spend from it in memory, and what they leave goes back.
func Example_agents() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerDay(1_000_000, nil))
	if err != nil {
		panic(err)
	}
	ctx, budget := context.Background(), int64(50_000)
	r, err := limiter.AllowN(ctx, "user:42", budget)
	if err != nil || !r.Allowed {
		panic("no budget")
	}
	var left atomic.Int64
	left.Store(budget)
	spend := func(n int64) bool { // false: the child must stop
		if left.Add(-n) >= 0 {
			return true
		}
		left.Add(n)
		return false
	}
	var children sync.WaitGroup
	for range 4 {
		children.Go(func() {
			for range 3 {
				spend(3_000) // a call of a model
			}
		})
	}
	children.Wait()
	if err := limiter.Settle(ctx, r, budget-left.Load()); err != nil {
		panic(err)
	}
	s := limiter.Stats()
	fmt.Println(s.Spent-s.Refunded, "used")
	// Output:
	// 36000 used
}

// A limit in shadow shows what it would refuse before you enforce it.
func ExampleLimit_shadow() {
	limit := reservoir.PerHour(2)
	limit.Shadow = true
	limiter, _ := reservoir.New(memstore.New(), limit)
	for range 3 {
		r, err := limiter.Allow(context.Background(), "user:42")
		fmt.Println(r.Allowed, r.Shadowed, err)
	}
	// Output:
	// true false <nil>
	// true false <nil>
	// true true <nil>
}

// A decision comes from memory, from memory after a wait for a batch, or from the store.
func ExampleSource() {
	ctx := context.Background()
	for _, how := range []reservoir.Option{reservoir.WithFixedBatch(100), reservoir.WithDirect()} {
		limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(200), how)
		if err != nil {
			panic(err)
		}
		counts := map[reservoir.Source]int{}
		for range 50 {
			r, _ := limiter.Allow(ctx, "user:42")
			counts[r.Source]++
		}
		limiter.Close(ctx)
		fmt.Println(counts[reservoir.Local], counts[reservoir.Fetched], counts[reservoir.Direct])
	}
	// Output:
	// 49 1 0
	// 0 0 50
}

// An error means that no decision was made. A faulty argument is found before anything is
// sent to the store.
func Example_errors() {
	ctx := context.Background()
	store := memstore.New()
	limiter, err := reservoir.New(store, reservoir.PerHour(100), reservoir.WithDirect())
	if err != nil {
		panic(err)
	}
	_, empty := limiter.Allow(ctx, "")
	_, long := limiter.Allow(ctx, strings.Repeat("x", backend.MaxKeyLen+1))
	_, negative := limiter.AllowN(ctx, "user:42", -1)
	_, huge := limiter.AllowN(ctx, "user:42", 101)
	fmt.Println(errors.Is(empty, reservoir.ErrKey), errors.Is(long, reservoir.ErrKey))
	fmt.Println(errors.Is(negative, backend.ErrTokens), errors.Is(huge, reservoir.ErrExceedsLimit))

	limiter.AllowN(ctx, "user:42", 100)
	refused, _ := limiter.Allow(ctx, "user:42")
	fmt.Println(limiter.Refund(ctx, refused))

	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, late := limiter.Wait(soon, "user:42") // the window ends in an hour
	fmt.Println(errors.Is(late, reservoir.ErrDeadline), errors.Is(late, context.DeadlineExceeded))

	_, limit := reservoir.New(store, reservoir.Limit{Tokens: 10})
	_, option := reservoir.New(store, reservoir.PerHour(100), reservoir.WithFetchTimeout(0))
	fmt.Println(errors.Is(limit, reservoir.ErrLimit), errors.Is(option, reservoir.ErrOption))

	limiter.Close(ctx)
	_, closed := limiter.Allow(ctx, "user:42")
	fmt.Println(errors.Is(closed, reservoir.ErrClosed))
	// Output:
	// true true
	// true true
	// reservoir: a result of another limiter, or of no charge
	// true true
	// true true
	// true
}

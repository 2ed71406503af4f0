package reservoir_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
)

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
	fmt.Println(errors.Is(negative, reservoir.ErrTokens), errors.Is(huge, reservoir.ErrExceedsLimit))

	r, _ := limiter.AllowN(ctx, "user:42", 100)
	fmt.Println(errors.Is(limiter.Refund(ctx, "user:43", r), reservoir.ErrResult))

	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, late := limiter.Wait(soon, "user:42") // the window ends in an hour
	fmt.Println(errors.Is(late, reservoir.ErrDeadline), errors.Is(late, context.DeadlineExceeded))

	daily, _ := reservoir.New(store, reservoir.PerDay(1000, time.UTC), reservoir.WithDirect()) // without WithName
	_, shared := daily.Allow(ctx, "user:42")
	fmt.Println(errors.Is(shared, reservoir.ErrConflict))

	_, limit := reservoir.New(store, reservoir.Limit{Tokens: 10})
	_, option := reservoir.New(store, reservoir.PerHour(100), reservoir.WithFetchTimeout(0))
	fmt.Println(errors.Is(limit, reservoir.ErrLimit), errors.Is(option, reservoir.ErrOption))

	limiter.Close(ctx)
	_, closed := limiter.Allow(ctx, "user:42")
	fmt.Println(errors.Is(closed, reservoir.ErrClosed))
	// Output:
	// true true
	// true true
	// true
	// true true
	// true
	// true true
	// true
}

// A decision comes from memory, from memory after a wait for a batch, or from the store.
func ExampleSource() {
	ctx := context.Background()
	for _, how := range []reservoir.Option{reservoir.WithBatch(reservoir.Fixed(100)), reservoir.WithDirect()} {
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

// How a key stands in this process, for an operator's page.
func ExampleKeyStats() {
	ctx := context.Background()
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(2))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(ctx)
	for range 5 {
		limiter.Allow(ctx, "user:42")
	}
	exhausted := map[string]reservoir.KeyStats{}
	for key, s := range limiter.Keys() {
		if s.Exhausted {
			exhausted[key] = s
		}
	}
	s := exhausted["user:42"]
	fmt.Println(s.Spent, "of", s.Limit.Tokens, "spent,", s.Denied, "denied,", s.Held, "held")
	// Output: 2 of 2 spent, 3 denied, 0 held
}

// Figures that may go down are gauges; all others are counters.
func ExampleFigure() {
	stats := reservoir.Stats{Held: 7}
	for _, f := range reservoir.Figures() {
		if f.Gauge && f.Unit == "token" {
			fmt.Println(f.Name, f.Value(&stats))
		}
	}
	// Output:
	// tokens.held 7
	// tokens.stranded 0
	// tokens.owed 0
}

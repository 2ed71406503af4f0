package docs_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/httplimit"
)

// The code of the guides that is in no package's Example.

// check panics on errors that only a wrong example causes.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// A request reserves the most that it may use, and settles what it has used.
func Example_llmBudget() {
	ctx, store := context.Background(), memstore.New()
	requests, err := reservoir.New(store,
		reservoir.PerMinute(60), reservoir.WithName("requests"))
	check(err)
	tokens, err := reservoir.New(store,
		reservoir.PerMinute(100_000), reservoir.WithName("tokens"))
	check(err)
	spend, err := reservoir.New(store, // in millionths of a dollar
		reservoir.PerDay(20_000_000, time.UTC), reservoir.WithName("spend"))
	check(err)
	budget := reservoir.NewGroup(requests, tokens, spend) // once

	const price = 15 // millionths of a dollar for a token
	tooMany := func(r reservoir.GroupResult) error { return fmt.Errorf("refused by limit %d", r.Limiter) }
	complete := func(key string, promptTokens, maxTokens int64, stream func(context.Context) int64) error {
		estimate := promptTokens + maxTokens
		costs := []int64{1, estimate, estimate * price}
		r, err := budget.AllowEach(ctx, costs, key, key, key)
		if err != nil {
			return err // Redis is away, or the estimate is more than a limit
		}
		if !r.Allowed {
			return tooMany(r) // r.Limiter says which limit refused
		}
		used := stream(ctx) // as the model reports, also if the client has left
		return budget.Settle(ctx, r, []int64{1, used, used * price})
	}
	less, more := func(context.Context) int64 { return 1_500 }, func(context.Context) int64 { return 70_000 }
	fmt.Println(complete("key-1", 1_000, 59_000, less)) // 58,500 go back
	fmt.Println(complete("key-1", 1_000, 59_000, more)) // 10,000 more are charged
	fmt.Println(complete("key-1", 1_000, 59_000, less))
	fmt.Println(complete("key-1", 1_000, 100_000, less))
	check(tokens.Close(ctx)) // Redis hears of the 10,000
	tokens, err = reservoir.New(store, reservoir.PerMinute(100_000), reservoir.WithName("tokens"))
	check(err)
	r, err := tokens.Check(ctx, "key-1")
	fmt.Println(r.Remaining, err)
	// Output:
	// <nil>
	// <nil>
	// refused by limit 1
	// reservoir: more tokens than the limit
	// 28500 <nil>
}

// A client of somebody else's API.
func Example_provider() {
	store := memstore.New()
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer api.Close()
	limiter, err := reservoir.New(store, reservoir.PerMinute(500))
	check(err)
	client := &http.Client{Transport: &httplimit.Transport{
		Limiter: limiter,
		Key:     func(*http.Request) string { return "account" }, // at the provider
		Retries: 3,
	}}
	defer client.CloseIdleConnections()
	answer, err := client.Get(api.URL)
	check(err)
	check(answer.Body.Close())
	fmt.Println(answer.StatusCode, limiter.Stats().Spent)
	// Output: 200 1
}

// A service's test that does not wait for windows.
func TestWithoutWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := reservoir.New(memstore.New(), reservoir.PerHour(1))
		require.NoError(t, err)
		defer limiter.Close(t.Context()) // a bubble requires it

		r, err := limiter.Wait(t.Context(), "job")
		require.NoError(t, err)
		begin := time.Now()
		r, err = limiter.Wait(t.Context(), "job") // a token is an hour away
		require.NoError(t, err)
		require.True(t, r.Allowed)
		require.InDelta(t, time.Hour, time.Since(begin), float64(time.Second))
	})
}

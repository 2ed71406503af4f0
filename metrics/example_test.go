package metrics_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/metrics"
)

// An exporter to any monitoring system reads the limiter's Stats and asks each metric for its value.
func ExampleAll() {
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	limiter.AllowN(context.Background(), "user:42", 7)
	stats := limiter.Stats()
	for _, m := range metrics.All() {
		if m.Name == "tokens.spent" {
			fmt.Println(m.Name, m.Value(&stats), m.Gauge)
		}
	}
	// Output: tokens.spent 7 false
}

// awayStore is a store whose server refuses connections.
type awayStore struct{ *memstore.Store }

func (awayStore) Sync(context.Context, backend.Statement) (backend.Reply, error) {
	return backend.Reply{}, &backend.Error{Op: "sync", Class: backend.Unavailable, Err: errors.New("connection refused")}
}

// The outcome of a call is a label for its duration.
func ExampleOutcome() {
	outcomes := make(chan string, 1)
	limiter, err := reservoir.New(awayStore{memstore.New()}, reservoir.PerHour(100),
		reservoir.WithHooks(reservoir.Hooks{StoreCall: func(c reservoir.StoreCall) { outcomes <- c.Op + " " + metrics.Outcome(c) }}))
	if err != nil {
		panic(err)
	}
	limiter.Allow(context.Background(), "user:42")
	fmt.Println(<-outcomes) // a hook may come after the answer
	// Output: sync unavailable
}

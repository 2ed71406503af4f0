package promlimit_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/promlimit"
	"github.com/go-reservoir/reservoir/sloglimit"
)

func Example() {
	metrics := promlimit.New(prometheus.Labels{"limiter": "api"})
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000), reservoir.WithHooks(metrics.Hooks()))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	metrics.Watch(limiter)
	metrics.Shards("") // this store has no shards
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics) // and serve it by promhttp.HandlerFor

	for range 5 {
		limiter.Allow(context.Background(), "user:42")
	}
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		if f.GetName() == "reservoir_tokens_spent_total" {
			fmt.Println(f.GetName(), f.Metric[0].Label[0].GetValue(), f.Metric[0].Counter.GetValue())
		}
	}
	// Output: reservoir_tokens_spent_total api 5
}

// One limiter may have both metrics and a log.
func ExampleCollector_Hooks() {
	store := memstore.New()

	metrics := promlimit.New(prometheus.Labels{"limiter": "api"})
	prometheus.MustRegister(metrics)
	limiter, err := reservoir.New(store, reservoir.PerMinute(1000),
		reservoir.WithHooks(metrics.Hooks()),
		reservoir.WithHooks(sloglimit.Hooks(slog.Default())))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	metrics.Watch(limiter)

	fmt.Println(prometheus.Unregister(metrics))
	// Output: true
}

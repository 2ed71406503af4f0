package otellimit_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/otellimit"
)

func Example() {
	reader := metric.NewManualReader() // or a PeriodicReader with an exporter
	telemetry, err := otellimit.New(
		otellimit.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader))),
		otellimit.WithAttributes(attribute.String("limiter", "api")))
	if err != nil {
		panic(err)
	}
	defer telemetry.Close()
	limiter, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000), reservoir.WithHooks(telemetry.Hooks()))
	if err != nil {
		panic(err)
	}
	defer limiter.Close(context.Background())
	telemetry.Watch(limiter)

	for range 5 {
		limiter.Allow(context.Background(), "user:42")
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name == "reservoir.tokens.spent" {
			fmt.Println(m.Name, m.Data.(metricdata.Sum[int64]).DataPoints[0].Value, m.Unit)
		}
	}
	// Output: reservoir.tokens.spent 5 {token}
}

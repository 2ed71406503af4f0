package grafana_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/contrib/otellimit"
	"github.com/go-reservoir/reservoir/contrib/promlimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// series is all time series of one name, as a query sees them.
type series struct {
	family string // the metric's, without a histogram's _bucket, _sum or _count
	kind   string
	help   string
	labels map[string][]string // name → values
}

func names(s series) []string { return slices.Collect(maps.Keys(s.labels)) }

// nothing is a limiter that has done nothing.
type nothing struct{}

func (nothing) Stats() reservoir.Stats { return reservoir.Stats{} }

// live makes a series of every kind.
func live(h reservoir.Hooks) {
	h.StoreCall(reservoir.StoreCall{Op: "sync", Cause: "prefetch"})
	h.StoreCall(reservoir.StoreCall{Op: "take", Err: &reservoir.StoreError{Class: backend.Unavailable}})
	h.ShardState(reservoir.ShardState{Shard: "a", Away: true})
}

// prometheusExport is what promlimit exports, by the names that queries use.
func prometheusExport(t *testing.T) map[string]series {
	t.Helper()
	metrics := promlimit.New(prometheus.Labels{"limiter": "api"})
	metrics.Watch(nothing{})
	live(metrics.Hooks())
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))
	return gather(t, registry)
}

// otelExport is the same of otellimit through OpenTelemetry's own exporter.
func otelExport(t *testing.T) map[string]series {
	t.Helper()
	registry := prometheus.NewRegistry()
	exporter, err := otelprom.New(otelprom.WithRegisterer(registry), otelprom.WithoutTargetInfo())
	require.NoError(t, err)
	provider := metric.NewMeterProvider(metric.WithReader(exporter))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	telemetry, err := otellimit.New(otellimit.WithMeterProvider(provider), otellimit.WithAttributes(attribute.String("limiter", "api")))
	require.NoError(t, err)
	telemetry.Watch(nothing{})
	live(telemetry.Hooks())
	return gather(t, registry)
}

func gather(t *testing.T, registry *prometheus.Registry) map[string]series {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]series{}
	for _, f := range families {
		suffixes := []string{""}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			suffixes = []string{"_bucket", "_sum", "_count"}
		}
		for _, suffix := range suffixes {
			s := series{family: f.GetName(), kind: f.GetType().String(), help: f.GetHelp(), labels: labelsOf(f)}
			if suffix == "_bucket" {
				s.labels["le"] = nil
			}
			all[f.GetName()+suffix] = s
		}
	}
	return all
}

// labelsOf is all labels of a family, and those that Prometheus adds.
func labelsOf(f *dto.MetricFamily) map[string][]string {
	all := map[string][]string{"job": nil, "instance": nil}
	for _, m := range f.Metric {
		for _, l := range m.Label {
			all[l.GetName()] = append(all[l.GetName()], l.GetValue())
		}
	}
	return all
}

// Package otellimit exports the figures of a [reservoir.Limiter] to OpenTelemetry, as
// metrics.
//
//	telemetry, err := otellimit.New(otellimit.WithAttributes(attribute.String("limiter", "api")))
//	...
//	limiter, err := reservoir.New(store, limit, reservoir.WithHooks(telemetry.Hooks()))
//	...
//	telemetry.Watch(limiter)
//	defer telemetry.Close()
//
// It uses the global provider, unless WithMeterProvider sets another. It makes no spans: one
// for a store call would have no parent, because a fetch serves all callers that wait for
// it, and most fetches are made before any caller needs them.
//
// # Metrics
//
// From Stats, read once for each collection: all of [metrics.All], as counters or, if they may go
// down, as up-down counters. Three are for a dashboard: reservoir.requests.denied,
// reservoir.store.calls and reservoir.requests.failed. Package promlimit explains the others, under
// Prometheus' names.
//
// From the hooks:
//
//	reservoir.store.call.duration  histogram, s       by op, cause and outcome
//	reservoir.shard.away           gauge              1 while the shard's breaker is open, by shard
//	reservoir.shard.outages        counter, {outage}  times that its breaker has opened, by shard
//	reservoir.shard.rejecting      gauge              1 while the shard rejects every call, by shard
//
// The attributes have the values of promlimit's labels, and none holds a key.
// OpenTelemetry's Prometheus exporter gives the metrics the names and labels of promlimit,
// so both can use the same dashboard.
package otellimit

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/metrics"
)

// scope names the instrumentation. OpenTelemetry asks for the import path.
const scope = "github.com/go-reservoir/reservoir/contrib/otellimit"

// Option changes a default of New.
type Option func(*config)

type config struct {
	meters metric.MeterProvider
	attrs  []attribute.KeyValue
}

// WithMeterProvider sets the provider of metrics. The default is the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithAttributes adds attributes to every metric, such as a name that
// distinguishes several limiters of one process. By default there are none.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	return func(c *config) { c.attrs = append(c.attrs, attrs...) }
}

// Source is a *[reservoir.Limiter], or anything else with Stats.
type Source interface {
	Stats() reservoir.Stats
}

// Telemetry makes the metrics of one limiter. It is safe for concurrent use.
// Make it with [New], and Close it.
type Telemetry struct {
	attrs     []attribute.KeyValue
	calls     metric.Float64Histogram
	away      metric.Int64Gauge
	outages   metric.Int64Counter
	rejecting metric.Int64Gauge
	figures   []figure
	stop      metric.Registration

	mu     sync.Mutex
	source Source
}

// figure is a figure of Stats, and its instrument.
type figure struct {
	metrics.Metric
	instrument metric.Int64Observable
}

// New makes the instruments. It returns the errors of the meter provider.
func New(opts ...Option) (*Telemetry, error) {
	c := config{meters: otel.GetMeterProvider()}
	for _, o := range opts {
		o(&c)
	}
	t := &Telemetry{attrs: c.attrs}
	meter := c.meters.Meter(scope)
	if err := errors.Join(t.instruments(meter), t.observables(meter)); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// Hooks returns hooks that record the duration of store calls and the state of
// shards, for [reservoir.WithHooks].
func (t *Telemetry) Hooks() reservoir.Hooks {
	return reservoir.Hooks{StoreCall: t.call, ShardState: t.state}
}

// Watch sets the source of the Stats to observe from now on. Before the first Watch, and
// after Watch(nil), the metrics from Stats are absent. The Stats of a closed Limiter may
// still be observed.
func (t *Telemetry) Watch(s Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.source = s
}

// Close stops the observation of Stats. The hooks still record the limiter's calls.
func (t *Telemetry) Close() error {
	if t.stop == nil {
		return nil
	}
	return t.stop.Unregister()
}

// observables makes an instrument for each figure. One callback observes them all, so that
// they come from one reading of Stats.
func (t *Telemetry) observables(meter metric.Meter) (err error) {
	var all []metric.Observable
	for _, f := range metrics.All() {
		var made metric.Int64Observable
		name, unit, help := "reservoir."+f.Name, metric.WithUnit("{"+f.Unit+"}"), metric.WithDescription(f.Help)
		if f.Gauge { // an UpDownCounter, because the values of several processes add up
			made, err = meter.Int64ObservableUpDownCounter(name, unit, help)
		} else {
			made, err = meter.Int64ObservableCounter(name, unit, help)
		}
		if err != nil {
			return err
		}
		t.figures, all = append(t.figures, figure{f, made}), append(all, made)
	}
	t.stop, err = meter.RegisterCallback(t.observe, all...)
	return err
}

func (t *Telemetry) observe(_ context.Context, to metric.Observer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.source == nil {
		return nil
	}
	s := t.source.Stats()
	with := metric.WithAttributes(t.attrs...)
	for _, f := range t.figures {
		to.ObserveInt64(f.instrument, f.Value(&s), with)
	}
	return nil
}

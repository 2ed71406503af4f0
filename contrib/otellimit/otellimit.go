// Package otellimit exports what a reservoir.Limiter does to OpenTelemetry: its
// Stats as metrics, and a span for each call to the store.
//
//	telemetry, err := otellimit.New(otellimit.WithAttributes(attribute.String("limiter", "api")))
//	...
//	limiter, err := reservoir.New(store, limit, reservoir.WithHooks(telemetry.Hooks()))
//	...
//	telemetry.Watch(limiter)
//	defer telemetry.Close()
//
// The providers are the global ones unless WithMeterProvider or
// WithTracerProvider names others.
//
// # Metrics
//
// From Stats, read once for each collection:
//
//	reservoir.tokens.taken         counter, {token}   that the store charged to this process
//	reservoir.tokens.refunded      counter, {token}   that Settle and Refund took back from requests
//	reservoir.tokens.spent         counter, {token}   that admitted requests used
//	reservoir.tokens.returned      counter, {token}   given back to the store
//	reservoir.tokens.expired       counter, {token}   whose window ended before they were used
//	reservoir.tokens.overdrawn     counter, {token}   used above the limit: settled, or admitted without the store
//	reservoir.tokens.recovered     counter, {token}   whose grant was lost and handed over again
//	reservoir.tokens.reasserted    counter, {token}   that the store forgot and charged again
//	reservoir.tokens.unknown       counter, {token}   of failed direct calls, perhaps charged for nothing
//	reservoir.tokens.held          up-down, {token}   in memory, to be spent
//	reservoir.tokens.stranded      up-down, {token}   the part of those whose key is exhausted
//	reservoir.tokens.owed          up-down, {token}   used without the store, not charged yet
//	reservoir.keys                 up-down, {key}     held in memory
//	reservoir.requests.waited      counter, {request} that waited on the network
//	reservoir.requests.admitted    counter, {request} admitted
//	reservoir.requests.denied      counter, {request} refused
//	reservoir.requests.shadowed    counter, {request} of these, those that passed in shadow
//	reservoir.requests.failed      counter, {request} that ended in a StoreError
//	reservoir.requests.fallback    counter, {request} that the failure policy decided
//	reservoir.store.calls          counter, {call}    to the store, of any kind
//	reservoir.store.syncs          counter, {call}    of these, statements of account
//	reservoir.prefetches           counter, {call}    ahead of need
//	reservoir.probes               counter, {call}    looks whether an exhausted key has tokens again
//	reservoir.give_backs           counter, {call}    returns of an idle excess
//
// From the hooks:
//
//	reservoir.store.call.duration  histogram, s       by op, cause and outcome
//	reservoir.shard.away           gauge              1 while the shard's breaker is open, by shard
//	reservoir.shard.outages        counter, {outage}  times that it has opened, by shard
//	reservoir.shard.rejecting      gauge              1 while the shard rejects every call, by shard
//
// The attribute op is sync, take, check, refund or reset; cause is that of a sync, as in
// reservoir.StoreCall, and "" otherwise; outcome is ok, unavailable, rejected or
// unknown; shard is "" where the store has no shards. No attribute ever holds a
// key. A shard that rejects every call answers, and an operator must act: a password, a
// right or memory is missing. Through OpenTelemetry's Prometheus exporter names and labels come out as
// those of package promlimit, so that the same dashboard serves both.
//
// # Spans
//
// A span is made of each call to the store after it has ended, with its true
// start: "reservoir sync", of kind client, with the attributes reservoir.op,
// .cause, .reason (why a batch had its size), .want, .granted, and error.type of
// a failed call, which is the class of the error. Decisions made in memory, which
// are nearly all, have none.
//
// Spans have no parent: a fetch serves all callers that wait for it, and most
// fetches are ahead of any caller. So they are sampled by themselves, as root
// spans; one a store call may be more than you want to keep. WithTracerProvider of
// noop.NewTracerProvider() turns them off.
package otellimit

import (
	"errors"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/go-reservoir/reservoir"
)

// scope names the instrumentation, as OpenTelemetry wants it: the import path.
const scope = "github.com/go-reservoir/reservoir/contrib/otellimit"

// Option changes a default of New.
type Option func(*config)

type config struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	attrs   []attribute.KeyValue
}

// WithMeterProvider sets where metrics go; by default to the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(c *config) { c.meters = p } }

// WithTracerProvider sets where spans go; by default to the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(c *config) { c.tracers = p } }

// WithAttributes adds attributes to every metric and span, such as the limiter's
// name, by which several limiters of a process are told apart. By default there
// are none.
func WithAttributes(attrs ...attribute.KeyValue) Option {
	return func(c *config) { c.attrs = append(c.attrs, attrs...) }
}

// Source is what has Stats: a *reservoir.Limiter.
type Source interface {
	Stats() reservoir.Stats
}

// Telemetry is the metrics and spans of one limiter. It is safe for concurrent
// use. Make it with New, and Close it.
type Telemetry struct {
	attrs     []attribute.KeyValue
	tracer    trace.Tracer
	calls     metric.Float64Histogram
	away      metric.Int64Gauge
	outages   metric.Int64Counter
	rejecting metric.Int64Gauge
	figures   []figure
	stop      metric.Registration

	mu     sync.Mutex
	source Source
}

// New makes the instruments. Its error is the provider's.
func New(opts ...Option) (*Telemetry, error) {
	c := config{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, o := range opts {
		o(&c)
	}
	t := &Telemetry{attrs: c.attrs, tracer: c.tracers.Tracer(scope)}
	meter := c.meters.Meter(scope)
	if err := errors.Join(t.instruments(meter), t.observables(meter)); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

// Hooks returns what feeds spans, the duration of store calls and the state of
// shards, for reservoir.WithHooks. reservoir.JoinHooks adds others to it.
func (t *Telemetry) Hooks() reservoir.Hooks {
	return reservoir.Hooks{StoreCall: t.call, ShardState: t.state}
}

// Watch sets whose Stats are observed from now on. Until then, and after
// Watch(nil), there are no such metrics. Stats of a closed Limiter may still be
// read.
func (t *Telemetry) Watch(s Source) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.source = s
}

// Close ends the observation of Stats. The hooks go on as long as the limiter does.
func (t *Telemetry) Close() error {
	if t.stop == nil {
		return nil
	}
	return t.stop.Unregister()
}

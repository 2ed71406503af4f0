package otellimit

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/metrics"
)

// buckets are in seconds: from the latency of an in-memory store to a reply after the
// default fetch timeout of 0.1 s.
var buckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}

// instruments makes the instruments that the hooks record to.
func (t *Telemetry) instruments(meter metric.Meter) error {
	var errs [4]error
	t.calls, errs[0] = meter.Float64Histogram("reservoir.store.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from sending a call to the store to its reply."),
		metric.WithExplicitBucketBoundaries(buckets...))
	t.away, errs[1] = meter.Int64Gauge("reservoir.shard.away",
		metric.WithDescription("1 while the shard's breaker is open and callers without stock get the failure policy's answer."))
	t.outages, errs[2] = meter.Int64Counter("reservoir.shard.outages", metric.WithUnit("{outage}"),
		metric.WithDescription("Times that the shard's breaker has opened."))
	t.rejecting, errs[3] = meter.Int64Gauge("reservoir.shard.rejecting",
		metric.WithDescription("1 while the shard answers and rejects every call, until an operator acts."))
	return errors.Join(errs[:]...)
}

// call records a store call that has ended. The call had no context of a caller.
func (t *Telemetry) call(c reservoir.StoreCall) {
	t.calls.Record(context.Background(), c.Duration.Seconds(), t.with(
		attribute.String("op", c.Op), attribute.String("cause", c.Cause), attribute.String("outcome", metrics.Outcome(c))))
}

func (t *Telemetry) state(s reservoir.ShardState) {
	ctx, shard := context.Background(), t.with(attribute.String("shard", s.Shard))
	t.away.Record(ctx, oneIf(s.Away), shard)
	t.rejecting.Record(ctx, oneIf(s.Rejecting), shard)
	if s.Away {
		t.outages.Add(ctx, 1, shard)
	}
}

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// with adds attrs to the attributes of all metrics.
func (t *Telemetry) with(attrs ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributes(slices.Concat(t.attrs, attrs)...)
}

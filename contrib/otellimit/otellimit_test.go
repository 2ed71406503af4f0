package otellimit_test

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/otellimit"
	"github.com/go-reservoir/reservoir/metrics"
)

// fixed is a Source that the test sets.
type fixed reservoir.Stats

func (f *fixed) Stats() reservoir.Stats { return reservoir.Stats(*f) }

// rig is a Telemetry whose exports stay in memory.
type rig struct {
	*otellimit.Telemetry
	reader *metric.ManualReader
	meters *metric.MeterProvider
}

func newRig(t *testing.T, opts ...otellimit.Option) *rig {
	t.Helper()
	r := &rig{reader: metric.NewManualReader()}
	r.meters = metric.NewMeterProvider(metric.WithReader(r.reader))
	var err error
	r.Telemetry, err = otellimit.New(append([]otellimit.Option{otellimit.WithMeterProvider(r.meters)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// collect returns what an exporter would be given, by name.
func (r *rig) collect(t *testing.T) map[string]metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, r.reader.Collect(context.Background(), &all))
	byName := map[string]metricdata.Metrics{}
	for _, s := range all.ScopeMetrics {
		assert.Equal(t, "github.com/go-reservoir/reservoir/contrib/otellimit", s.Scope.Name)
		for _, m := range s.Metrics {
			byName[m.Name] = m
		}
	}
	return byName
}

// sum is the only data point of a sum.
func sum(t *testing.T, m metricdata.Metrics) int64 {
	t.Helper()
	data, ok := m.Data.(metricdata.Sum[int64])
	require.True(t, ok, "%s is %T", m.Name, m.Data)
	require.Len(t, data.DataPoints, 1)
	return data.DataPoints[0].Value
}

// use makes a limiter with telemetry and spends n tokens. It returns when the hooks were
// told, which is after the caller has its answer.
func use(t *testing.T, r *rig, n int64) *reservoir.Limiter {
	told := make(chan struct{}, 1)
	last := reservoir.Hooks{StoreCall: func(reservoir.StoreCall) {
		select {
		case told <- struct{}{}:
		default:
		}
	}}
	l, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000),
		reservoir.WithHooks(r.Hooks()), reservoir.WithHooks(last), reservoir.WithFixedBatch(50),
		reservoir.WithFetchTimeout(time.Minute)) // of a busy machine
	require.NoError(t, err)
	r.Watch(l)
	res, err := l.AllowN(t.Context(), "user:42", n)
	require.NoError(t, err)
	require.True(t, res.Allowed)
	<-told
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func TestMetrics(t *testing.T) {
	r := newRig(t)
	require.Empty(t, r.collect(t), "nothing is watched yet")
	s := use(t, r, 7).Stats()
	all := r.collect(t)
	assert.EqualValues(t, 7, sum(t, all["reservoir.tokens.spent"]))
	assert.EqualValues(t, s.Taken, sum(t, all["reservoir.tokens.taken"]))
	assert.EqualValues(t, s.Held, sum(t, all["reservoir.tokens.held"]))
	assert.EqualValues(t, s.StoreCalls, sum(t, all["reservoir.store.calls"]))

	calls := all["reservoir.store.call.duration"]
	assert.Equal(t, "s", calls.Unit)
	points := calls.Data.(metricdata.Histogram[float64]).DataPoints
	require.Len(t, points, 1)
	assert.EqualValues(t, s.StoreCalls, points[0].Count)
	metricdatatest.AssertHasAttributes(t, points[0],
		attribute.String("op", "sync"), attribute.String("cause", "wait"), attribute.String("outcome", "ok"))
	r.Watch(nil)
	assert.NotContains(t, r.collect(t), "reservoir.tokens.spent")
}

//go:embed otellimit.go
var manual string

// The manual names what is exported besides the figures, with its kind and unit, and nothing
// else.
func TestManual(t *testing.T) {
	text, _, _ := strings.Cut(manual, "\npackage ")
	var documented []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(reservoir\.[\w.]+) +([\w-]+)(?:, (\S+))? `).FindAllStringSubmatch(text, -1) {
		documented = append(documented, strings.Join(m[1:], " "))
	}
	for _, f := range metrics.All() {
		kind := "counter"
		if f.Gauge {
			kind = "up-down"
		}
		documented = append(documented, fmt.Sprintf("reservoir.%s %s {%s}", f.Name, kind, f.Unit))
	}
	r := newRig(t)
	r.Watch(new(fixed))
	r.Hooks().StoreCall(reservoir.StoreCall{Op: "take"})
	r.Hooks().ShardState(reservoir.ShardState{Away: true})
	var exported []string
	for name, m := range r.collect(t) {
		exported = append(exported, strings.Join([]string{name, kindOf(m), m.Unit}, " "))
	}
	assert.ElementsMatch(t, exported, documented)
}

func kindOf(m metricdata.Metrics) string {
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		if data.IsMonotonic {
			return "counter"
		}
		return "up-down"
	case metricdata.Gauge[int64]:
		return "gauge"
	case metricdata.Histogram[float64]:
		return "histogram"
	}
	return fmt.Sprintf("%T", m.Data)
}

func TestShards(t *testing.T) {
	r := newRig(t, otellimit.WithAttributes(attribute.String("limiter", "api")))
	for _, s := range []reservoir.ShardState{{Shard: "a", Away: true}, {Shard: "a"}, {Shard: "a", Away: true}, {Shard: "b", Away: true}, {Shard: "b"},
		{Shard: "c", Rejecting: true}, {Shard: "d", Rejecting: true}, {Shard: "d"}} {
		r.Hooks().ShardState(s)
	}
	all := r.collect(t)
	point := func(shard string, n int64) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Attributes: attribute.NewSet(attribute.String("limiter", "api"), attribute.String("shard", shard)), Value: n}
	}
	metricdatatest.AssertAggregationsEqual(t,
		metricdata.Gauge[int64]{DataPoints: []metricdata.DataPoint[int64]{point("a", 1), point("b", 0), point("c", 0), point("d", 0)}},
		all["reservoir.shard.away"].Data, metricdatatest.IgnoreTimestamp())
	metricdatatest.AssertAggregationsEqual(t,
		metricdata.Sum[int64]{Temporality: metricdata.CumulativeTemporality, IsMonotonic: true, DataPoints: []metricdata.DataPoint[int64]{point("a", 2), point("b", 1)}},
		all["reservoir.shard.outages"].Data, metricdatatest.IgnoreTimestamp())
	metricdatatest.AssertAggregationsEqual(t,
		metricdata.Gauge[int64]{DataPoints: []metricdata.DataPoint[int64]{point("a", 0), point("b", 0), point("c", 1), point("d", 0)}},
		all["reservoir.shard.rejecting"].Data, metricdatatest.IgnoreTimestamp())
}

func TestSeveralLimitersOnOneProvider(t *testing.T) {
	r := newRig(t, otellimit.WithAttributes(attribute.String("limiter", "api")))
	other, err := otellimit.New(otellimit.WithMeterProvider(r.meters), otellimit.WithAttributes(attribute.String("limiter", "jobs")))
	require.NoError(t, err)
	r.Watch(&fixed{Spent: 3})
	other.Watch(&fixed{Spent: 5})
	spent := map[string]int64{}
	for _, p := range r.collect(t)["reservoir.tokens.spent"].Data.(metricdata.Sum[int64]).DataPoints {
		name, _ := p.Attributes.Value("limiter")
		spent[name.AsString()] = p.Value
	}
	assert.Equal(t, map[string]int64{"api": 3, "jobs": 5}, spent)
	require.NoError(t, other.Close())
	assert.EqualValues(t, 3, sum(t, r.collect(t)["reservoir.tokens.spent"]), "a closed one is not observed")
}

// A failure is counted by its class: what the server said, and the key, stay out.
func TestFailures(t *testing.T) {
	for want, err := range map[string]error{
		"unavailable": &reservoir.StoreError{Class: backend.Unavailable, Err: errors.New("secret")},
		"rejected":    &reservoir.StoreError{Class: backend.Rejected, Err: errors.New("secret")},
		"unknown":     errors.New("secret"),
	} {
		r := newRig(t)
		r.Hooks().StoreCall(reservoir.StoreCall{Op: "take", Want: 2, Duration: 30 * time.Millisecond, Err: err})
		points := r.collect(t)["reservoir.store.call.duration"].Data.(metricdata.Histogram[float64]).DataPoints
		metricdatatest.AssertHasAttributes(t, points[0], attribute.String("outcome", want))
		assert.InDelta(t, 0.03, points[0].Sum, 1e-9)
		assert.NotContains(t, fmt.Sprintf("%+v", points), "secret")
	}
}

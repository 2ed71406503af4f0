package promlimit_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend/memstore"
	"github.com/go-reservoir/reservoir/contrib/promlimit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed is a Source that the test sets.
type fixed reservoir.Stats

func (f *fixed) Stats() reservoir.Stats { return reservoir.Stats(*f) }

// scrape reads registry over HTTP, as Prometheus does, with its own parser.
func scrape(t *testing.T, registry *prometheus.Registry) map[string]*dto.MetricFamily {
	t.Helper()
	reply := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).
		ServeHTTP(reply, httptest.NewRequest("GET", "/metrics", nil))
	body := reply.Body.Bytes()
	require.Equal(t, 200, reply.Code, string(body))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	require.NoError(t, err)
	return families
}

// value is that of the only series of a family.
func value(t *testing.T, families map[string]*dto.MetricFamily, name string) float64 {
	t.Helper()
	require.Contains(t, families, name)
	require.Len(t, families[name].Metric, 1)
	m := families[name].Metric[0]
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

// use makes a limiter with metrics and spends n tokens. It returns when the hooks were
// told, which is after the caller has its answer.
func use(t *testing.T, metrics *promlimit.Collector, n int64) *reservoir.Limiter {
	told := make(chan struct{}, 1)
	last := reservoir.Hooks{StoreCall: func(reservoir.StoreCall) {
		select {
		case told <- struct{}{}:
		default:
		}
	}}
	l, err := reservoir.New(memstore.New(), reservoir.PerMinute(1000), reservoir.WithHooks(metrics.Hooks()), reservoir.WithHooks(last),
		reservoir.WithFetchTimeout(time.Minute)) // of a busy machine
	require.NoError(t, err)
	metrics.Watch(l)
	r, err := l.AllowN(t.Context(), "user:42", n)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	<-told
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func TestScrape(t *testing.T) {
	metrics := promlimit.New(nil)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(metrics))
	require.NotContains(t, scrape(t, registry), "reservoir_keys", "nothing is watched yet")

	l := use(t, metrics, 7)
	families := scrape(t, registry)
	s := l.Stats()
	assert.EqualValues(t, 7, value(t, families, "reservoir_tokens_spent_total"))
	assert.EqualValues(t, s.Taken, value(t, families, "reservoir_tokens_taken_total"))
	assert.EqualValues(t, s.Held, value(t, families, "reservoir_tokens_held"))
	assert.EqualValues(t, 1, value(t, families, "reservoir_keys"))
	assert.EqualValues(t, s.StoreCalls, value(t, families, "reservoir_store_calls_total"))

	var calls uint64
	for _, m := range families["reservoir_store_call_duration_seconds"].Metric {
		calls += m.GetHistogram().GetSampleCount()
		assert.Contains(t, []string{"sync", "take"}, labels(m)["op"])
		assert.Equal(t, "ok", labels(m)["outcome"])
	}
	assert.EqualValues(t, s.StoreCalls, calls)
}

func labels(m *dto.Metric) map[string]string {
	all := map[string]string{}
	for _, l := range m.Label {
		all[l.GetName()] = l.GetValue()
	}
	return all
}

// with is a registry of its own for metrics.
func with(t *testing.T, metrics ...prometheus.Collector) *prometheus.Registry {
	registry := prometheus.NewPedanticRegistry()
	for _, m := range metrics {
		require.NoError(t, registry.Register(m))
	}
	return registry
}

// full is metrics with a series of every name.
func full(labels prometheus.Labels) *promlimit.Collector {
	metrics := promlimit.New(labels)
	metrics.Watch(new(fixed))
	metrics.Hooks().StoreCall(reservoir.StoreCall{Op: "sync", Cause: "give back"})
	metrics.Shards("")
	return metrics
}

func TestLint(t *testing.T) {
	problems, err := testutil.CollectAndLint(full(prometheus.Labels{"limiter": "api"}))
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// The manual names what is exported, with its labels, and nothing else.
func TestManual(t *testing.T) {
	text, err := source.ReadFile("promlimit.go")
	require.NoError(t, err)
	manual, _, _ := strings.Cut(string(text), "\npackage ")
	documented := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^//\t(reservoir_\w+)(?:\{(.*)\})? `).FindAllStringSubmatch(manual, -1) {
		documented[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
	}
	exported := map[string][]string{}
	for name, family := range scrape(t, with(t, full(nil))) {
		exported[name] = slices.AppendSeq([]string(nil), maps.Keys(labels(family.Metric[0])))
	}
	require.Len(t, documented, len(exported))
	for name, want := range exported {
		assert.ElementsMatch(t, want, documented[name], name)
	}
}

func TestSeveralLimitersInOneRegistry(t *testing.T) {
	api, jobs := promlimit.New(prometheus.Labels{"limiter": "api"}), promlimit.New(prometheus.Labels{"limiter": "jobs"})
	use(t, api, 3)
	use(t, jobs, 5)
	spent := map[string]float64{}
	for _, m := range scrape(t, with(t, api, jobs))["reservoir_tokens_spent_total"].Metric {
		spent[labels(m)["limiter"]] = m.GetCounter().GetValue()
	}
	assert.Equal(t, map[string]float64{"api": 3, "jobs": 5}, spent)
}

// A clash is an error of Register, and the limiter goes on.
func TestClashes(t *testing.T) {
	registry := with(t, promlimit.New(nil))
	require.Error(t, registry.Register(promlimit.New(nil)), "the same twice")
	require.Error(t, registry.Register(promlimit.New(prometheus.Labels{"limiter": "b"})), "other label names")
	for _, name := range []string{"op", "cause", "outcome", "shard", "not a name\xff"} {
		metrics := promlimit.New(prometheus.Labels{name: "x"})
		require.Error(t, prometheus.NewPedanticRegistry().Register(metrics), name)
		assert.NotPanics(t, func() {
			metrics.Hooks().StoreCall(reservoir.StoreCall{Op: "sync"})
			metrics.Hooks().ShardState(reservoir.ShardState{Away: true})
			metrics.Shards("a")
		}, name)
	}
}

func TestShards(t *testing.T) {
	metrics := promlimit.New(nil)
	metrics.Shards("a", "b")
	tell := metrics.Hooks().ShardState
	for _, s := range []reservoir.ShardState{{Shard: "a", Away: true}, {Shard: "a"}, {Shard: "a", Away: true}, {Shard: "c", Away: true}, {Shard: "c"},
		{Shard: "d", Rejecting: true}, {Shard: "e", Rejecting: true}, {Shard: "e"}, {Shard: "f\xff"}} {
		tell(s)
	}
	const want = `
# HELP reservoir_shard_away 1 while the shard's breaker is open and callers without stock get the failure policy's answer.
# TYPE reservoir_shard_away gauge
reservoir_shard_away{shard="a"} 1
reservoir_shard_away{shard="b"} 0
reservoir_shard_away{shard="c"} 0
reservoir_shard_away{shard="d"} 0
reservoir_shard_away{shard="e"} 0
reservoir_shard_away{shard="f�"} 0
# HELP reservoir_shard_outages_total Times that the shard's breaker has opened.
# TYPE reservoir_shard_outages_total counter
reservoir_shard_outages_total{shard="a"} 2
reservoir_shard_outages_total{shard="b"} 0
reservoir_shard_outages_total{shard="c"} 1
reservoir_shard_outages_total{shard="d"} 0
reservoir_shard_outages_total{shard="e"} 0
reservoir_shard_outages_total{shard="f�"} 0
# HELP reservoir_shard_rejecting 1 while the shard answers and rejects every call, until an operator acts.
# TYPE reservoir_shard_rejecting gauge
reservoir_shard_rejecting{shard="a"} 0
reservoir_shard_rejecting{shard="b"} 0
reservoir_shard_rejecting{shard="c"} 0
reservoir_shard_rejecting{shard="d"} 1
reservoir_shard_rejecting{shard="e"} 0
reservoir_shard_rejecting{shard="f�"} 0
`
	require.NoError(t, testutil.CollectAndCompare(metrics, strings.NewReader(want),
		"reservoir_shard_away", "reservoir_shard_outages_total", "reservoir_shard_rejecting"))
}

// Watch decides whose Stats are read. A gauge may go down.
func TestWatch(t *testing.T) {
	metrics := promlimit.New(nil)
	registry := with(t, metrics)
	s := &fixed{Spent: 100, Held: 10}
	metrics.Watch(s)
	scrape(t, registry)
	*s = fixed{Spent: 101, Held: 9}
	families := scrape(t, registry)
	assert.EqualValues(t, 101, value(t, families, "reservoir_tokens_spent_total"))
	assert.EqualValues(t, 9, value(t, families, "reservoir_tokens_held"))
	metrics.Watch(&fixed{Spent: 1}) // another limiter
	assert.EqualValues(t, 1, value(t, scrape(t, registry), "reservoir_tokens_spent_total"))
	metrics.Watch(nil)
	assert.NotContains(t, scrape(t, registry), "reservoir_tokens_spent_total")
}

// No label and no value of it comes from a key: any number of keys makes the
// same series.
func TestKeysMakeNoSeries(t *testing.T) {
	metrics := promlimit.New(nil)
	l := use(t, metrics, 1)
	registry := with(t, metrics)
	before, err := testutil.GatherAndCount(registry)
	require.NoError(t, err)
	for range 100 {
		_, err := l.Allow(t.Context(), "secret:"+rnd())
		require.NoError(t, err)
	}
	after, err := testutil.GatherAndCount(registry)
	require.NoError(t, err)
	assert.Equal(t, before, after)
	text := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(text, httptest.NewRequest("GET", "/", nil))
	body, _ := io.ReadAll(text.Result().Body)
	assert.NotContains(t, string(body), "secret")
	assert.NotContains(t, string(body), "user:42")
}

func TestStoreCallsAreCheapToRecord(t *testing.T) {
	tell := promlimit.New(nil).Hooks().StoreCall
	call := reservoir.StoreCall{Op: "sync", Cause: "prefetch", Duration: time.Millisecond}
	tell(call)
	assert.Zero(t, testing.AllocsPerRun(100, func() { tell(call) }))
}

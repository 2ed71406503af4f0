// Package promlimit exports the figures of a [reservoir.Limiter] to Prometheus.
//
//	metrics := promlimit.New(prometheus.Labels{"limiter": "api"})
//	limiter, err := reservoir.New(store, limit, reservoir.WithHooks(metrics.Hooks()))
//	...
//	metrics.Watch(limiter)
//	prometheus.MustRegister(metrics)
//
// The hooks record each store call as it ends; Watch lets a scrape read Limiter.Stats.
// You may use either without the other.
//
// # Metrics
//
// From Stats, one series for each metric, with only the constant labels. Three are for a dashboard:
//
//	reservoir_requests_denied_total     requests refused
//	reservoir_store_calls_total         calls to the store, of any kind
//	reservoir_requests_failed_total     requests that ended in a StoreError
//
// The others explain them:
//
//	reservoir_requests_admitted_total   requests admitted
//	reservoir_requests_waited_total     requests that waited on the network
//	reservoir_requests_shadowed_total   refused requests that passed in shadow
//	reservoir_requests_fallback_total   requests that the failure policy decided
//	reservoir_store_syncs_total         calls to the store that were statements of account
//	reservoir_tokens_taken_total        tokens that the store charged to this process
//	reservoir_tokens_refunded_total     tokens that requests had not used and Settle took back
//	reservoir_tokens_spent_total        tokens that admitted requests used
//	reservoir_tokens_returned_total     tokens given back to the store
//	reservoir_tokens_expired_total      tokens whose window ended before they were used
//	reservoir_tokens_overdrawn_total    tokens used above the limit: settled, or admitted without the store
//	reservoir_tokens_unknown_total      tokens of failed calls without an account, perhaps charged for nothing
//	reservoir_tokens_held               gauge: tokens in memory, to be spent
//	reservoir_tokens_idle               gauge: the held tokens whose key is exhausted
//	reservoir_tokens_debt               gauge: tokens settled above a charge, not charged yet
//	reservoir_holds_total               holds of keys, begun here or by another process: see Limiter.Hold
//	reservoir_keys                      gauge: keys held in memory
//	reservoir_shards_unsubscribed       gauge: shards whose messages do not come to this process
//	reservoir_prefetches_total          fetches ahead of need
//	reservoir_probes_total              checks whether an exhausted key has tokens again
//	reservoir_give_backs_total          returns of idle tokens
//
// From the hooks:
//
//	reservoir_store_call_duration_seconds{op, cause, outcome}   histogram
//	reservoir_shard_away{shard}                                 gauge: 1 while its breaker is open
//	reservoir_shard_outages_total{shard}                        times that its breaker has opened
//	reservoir_shard_rejecting{shard}                            gauge: 1 while it rejects every call
//
// The label op is sync, check, reset or publish. The label cause is a sync's, as in
// [reservoir.StoreCall], and "" for other calls. The label outcome is ok, unavailable,
// rejected or unknown. That makes some 50 series of the histogram at most, whatever the keys,
// because no label holds a key. The label shard is "" if the store has no shards. The series of a shard
// begin with its first event; [Collector.Shards] creates them before. A shard
// that rejects every call answers, but an operator must act, because a password, a right
// or memory is missing. Alert on it, above all under WithFailOpen, where no request fails.
//
// dashboard.json, beside this package, shows them in Grafana (Dashboards, New, Import). Without
// a constant label limiter it shows all limiters as one.
//
// # Several limiters
//
// Give each limiter a Collector of its own, with a constant label that distinguishes it.
// All Collectors need the same label names, which may not be op, cause, outcome, shard or
// le. Prometheus reports a clash of names or labels when the Collector is registered.
//
// # Cost
//
// A scrape calls Limiter.Stats once, which visits every key in memory. Recording a store
// call allocates nothing. Requests without a store call are not recorded.
package promlimit

import (
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/metrics"
)

// Source is a *[reservoir.Limiter], or anything else with Stats.
type Source interface {
	Stats() reservoir.Stats
}

// Collector is a [prometheus.Collector] of the metrics of one limiter. It is safe for
// concurrent use. Make it with [New].
type Collector struct {
	calls     *prometheus.HistogramVec
	away      *prometheus.GaugeVec
	outages   *prometheus.CounterVec
	rejecting *prometheus.GaugeVec
	hooked    []prometheus.Collector // the four above
	figures   []figure

	mu     sync.Mutex
	source Source
}

// figure is a figure of Stats, and its description as a metric.
type figure struct {
	metrics.Metric
	kind prometheus.ValueType
	desc *prometheus.Desc
}

// buckets are in seconds: from the latency of an in-memory store to a reply after the
// default fetch timeout of 0.1 s.
var buckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}

// New returns a Collector whose metrics all carry labels, such as limiter="api". Labels
// may be nil if the registry has only one limiter.
func New(labels prometheus.Labels) *Collector {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Name: "reservoir_" + name, Help: help, ConstLabels: labels}
	}
	shard := []string{"shard"}
	c := &Collector{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:        "reservoir_store_call_duration_seconds",
			Help:        "Time from sending a call to the store to its reply.",
			ConstLabels: labels,
			Buckets:     buckets,
		}, []string{"op", "cause", "outcome"}),
		away: prometheus.NewGaugeVec(prometheus.GaugeOpts(
			opts("shard_away", "1 while the shard's breaker is open and callers without stock get the failure policy's answer.")), shard),
		outages: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("shard_outages_total", "Times that the shard's breaker has opened.")), shard),
		rejecting: prometheus.NewGaugeVec(prometheus.GaugeOpts(
			opts("shard_rejecting", "1 while the shard answers and rejects every call, until an operator acts.")), shard),
		figures: figures(labels),
	}
	c.hooked = []prometheus.Collector{c.calls, c.away, c.outages, c.rejecting}
	return c
}

// Hooks returns hooks that record the duration of store calls and the state of shards,
// for [reservoir.WithHooks].
func (c *Collector) Hooks() reservoir.Hooks {
	return reservoir.Hooks{StoreCall: c.call, ShardState: c.state}
}

// Watch sets the source of the Stats to collect from now on. Before the first Watch, and
// after Watch(nil), the metrics from Stats are absent. The Stats of a closed Limiter may
// still be collected.
func (c *Collector) Watch(s Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = s
}

// Shards creates the series of shards before anything happens to them, so that a query
// sees the first outage as an increase. The names are those given to sharding.New or, for
// shards with parts of their own, the results of sharding.Store.Shard. A store without
// shards has the name "".
func (c *Collector) Shards(names ...string) {
	for _, name := range names {
		c.away.WithLabelValues(label(name))
		c.outages.WithLabelValues(label(name))
		c.rejecting.WithLabelValues(label(name))
	}
}

// label returns a shard's name as a label, which must be UTF-8.
func label(name string) string { return strings.ToValidUTF8(name, "\uFFFD") }

// Describe sends the descriptions of all metrics, including those without series, so that
// Prometheus finds a clash when the Collector is registered.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, f := range c.figures {
		to <- f.desc
	}
	for _, v := range c.hooked {
		v.Describe(to)
	}
}

// Collect sends all metrics. It reads Stats once.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, v := range c.hooked {
		v.Collect(to)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.source == nil {
		return
	}
	s := c.source.Stats()
	for _, f := range c.figures {
		to <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(f.Value(&s)))
	}
}

func (c *Collector) call(s reservoir.StoreCall) {
	// An error here means that labels clash, which Register has already reported.
	if h, err := c.calls.GetMetricWithLabelValues(s.Op, s.Cause, metrics.Outcome(s)); err == nil {
		h.Observe(s.Duration.Seconds())
	}
}

func (c *Collector) state(s reservoir.ShardState) {
	c.Shards(s.Shard)
	shard := label(s.Shard)
	c.away.WithLabelValues(shard).Set(oneIf(s.Away))
	c.rejecting.WithLabelValues(shard).Set(oneIf(s.Rejecting))
	if s.Away {
		c.outages.WithLabelValues(shard).Inc()
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// figures describes the fields of Stats as metrics.
func figures(labels prometheus.Labels) (all []figure) {
	for _, f := range metrics.All() {
		name, kind := "reservoir_"+strings.ReplaceAll(f.Name, ".", "_"), prometheus.GaugeValue
		if !f.Gauge {
			name, kind = name+"_total", prometheus.CounterValue
		}
		all = append(all, figure{f, kind, prometheus.NewDesc(name, f.Help, nil, labels)})
	}
	return all
}

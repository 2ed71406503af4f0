// Package promlimit exports what a reservoir.Limiter does to Prometheus.
//
//	metrics := promlimit.New(prometheus.Labels{"limiter": "api"})
//	limiter, err := reservoir.New(store, limit, reservoir.WithHooks(metrics.Hooks()))
//	...
//	metrics.Watch(limiter)
//	prometheus.MustRegister(metrics)
//
// The hooks feed what is known at the moment of a store call; Watch lets a scrape
// read Limiter.Stats. Each is of use without the other.
//
// # Metrics
//
// From Stats, one series each, with the constant labels and no others:
//
//	reservoir_tokens_taken_total        that the store charged to this process
//	reservoir_tokens_refunded_total     that Settle and Refund took back from requests
//	reservoir_tokens_spent_total        that admitted requests used
//	reservoir_tokens_returned_total     given back to the store
//	reservoir_tokens_expired_total      whose window ended before they were used
//	reservoir_tokens_overdrawn_total    used above the limit: settled, or admitted without the store
//	reservoir_tokens_recovered_total    whose grant was lost and handed over again
//	reservoir_tokens_reasserted_total   that the store forgot and charged again
//	reservoir_tokens_unknown_total      of failed direct calls, perhaps charged for nothing
//	reservoir_tokens_held               gauge: in memory, to be spent
//	reservoir_tokens_stranded           gauge: the part of those whose key is exhausted
//	reservoir_tokens_owed               gauge: used without the store, not charged yet
//	reservoir_keys                      gauge: held in memory
//	reservoir_requests_waited_total     requests that waited on the network
//	reservoir_requests_admitted_total   requests admitted
//	reservoir_requests_denied_total     requests refused
//	reservoir_requests_shadowed_total   of these, those that passed in shadow
//	reservoir_requests_failed_total     requests that ended in a StoreError
//	reservoir_requests_fallback_total   requests that the failure policy decided
//	reservoir_store_calls_total         calls to the store, of any kind
//	reservoir_store_syncs_total         of these, statements of account
//	reservoir_prefetches_total          fetches ahead of need
//	reservoir_probes_total              looks whether an exhausted key has tokens again
//	reservoir_give_backs_total          returns of an idle excess
//
// From the hooks:
//
//	reservoir_store_call_duration_seconds{op, cause, outcome}   histogram
//	reservoir_shard_away{shard}                                 gauge: 1 while its breaker is open
//	reservoir_shard_outages_total{shard}                        times that it has opened
//	reservoir_shard_rejecting{shard}                            gauge: 1 while it rejects every call
//
// op is sync, take, check, refund or reset; cause is that of a sync, as in
// reservoir.StoreCall, and "" otherwise; outcome is ok, unavailable, rejected or
// unknown. That makes 48 series of the histogram at most, whatever the keys: no
// label ever holds a key. shard is "" where the store has no shards. A shard that
// rejects every call answers, and an operator must act: a password, a right or memory is
// missing. Alert on it, above all under FailOpen, where no request fails.
//
// # Several limiters
//
// Each has a Collector of its own, told apart by a constant label; they must all
// have the same label names, which may not be op, cause, outcome, shard or le.
// Prometheus reports a name or label that clashes when the Collector is
// registered.
//
// # Cost
//
// A scrape calls Limiter.Stats once, which visits every key in memory. A store
// call is recorded without allocation; a request that needs none is not recorded.
package promlimit

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-reservoir/reservoir"
)

// Source is what has Stats: a *reservoir.Limiter.
type Source interface {
	Stats() reservoir.Stats
}

// Collector is the metrics of one limiter: a prometheus.Collector. It is safe for
// concurrent use. Make it with New.
type Collector struct {
	calls     *prometheus.HistogramVec
	away      *prometheus.GaugeVec
	outages   *prometheus.CounterVec
	rejecting *prometheus.GaugeVec
	hooked    []prometheus.Collector // all of these
	figures   []figure

	mu     sync.Mutex
	source Source
}

// buckets are in seconds: from an embedded store's to a reply that comes after
// the default fetch timeout of 0.1 s.
var buckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1}

// New returns a Collector whose metrics all carry labels, such as limiter="api".
// Nil is none, which serves a registry that has one limiter only.
func New(labels prometheus.Labels) *Collector {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Name: "reservoir_" + name, Help: help, ConstLabels: labels}
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts(opts(name, help)), []string{"shard"})
	}
	c := &Collector{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:        "reservoir_store_call_duration_seconds",
			Help:        "Time from sending a call to the store to its reply.",
			ConstLabels: labels,
			Buckets:     buckets,
		}, []string{"op", "cause", "outcome"}),
		away: gauge("shard_away", "1 while the shard's breaker is open and callers without stock get the failure policy's answer."),
		outages: prometheus.NewCounterVec(prometheus.CounterOpts(
			opts("shard_outages_total", "Times that the shard's breaker has opened.")), []string{"shard"}),
		rejecting: gauge("shard_rejecting", "1 while the shard answers and rejects every call, until an operator acts."),
		figures:   newFigures(labels),
	}
	c.hooked = []prometheus.Collector{c.calls, c.away, c.outages, c.rejecting}
	return c
}

// Hooks returns what feeds the duration of store calls and the state of shards,
// for reservoir.WithHooks. reservoir.JoinHooks adds others to it.
func (c *Collector) Hooks() reservoir.Hooks {
	return reservoir.Hooks{StoreCall: c.call, ShardState: c.state}
}

// Watch sets whose Stats are collected from now on. Until then, and after
// Watch(nil), there are no such metrics. Stats of a closed Limiter may still be
// read.
func (c *Collector) Watch(s Source) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.source = s
}

// Shards makes the series of shards exist before anything happens to them, so
// that a query sees the first outage as an increase. Their names are those that
// sharding.New was given, or, of shards which have parts themselves, what
// sharding.Store.Shard returns; of a store without shards it is "".
func (c *Collector) Shards(names ...string) {
	for _, name := range names {
		c.away.WithLabelValues(name)
		c.outages.WithLabelValues(name)
		c.rejecting.WithLabelValues(name)
	}
}

// Describe sends the descriptors of all metrics, also of those that have no
// series yet, so that a clash shows when the Collector is registered.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, f := range c.figures {
		to <- f.desc
	}
	for _, v := range c.hooked {
		v.Describe(to)
	}
}

// Collect sends all metrics.
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
		to <- f.metric(s)
	}
}

func (c *Collector) call(s reservoir.StoreCall) {
	// An error here means labels that clash, which Register has reported.
	if h, err := c.calls.GetMetricWithLabelValues(s.Op, s.Cause, s.Outcome()); err == nil {
		h.Observe(s.Duration.Seconds())
	}
}

func (c *Collector) state(s reservoir.ShardState) {
	c.Shards(s.Shard)
	c.away.WithLabelValues(s.Shard).Set(oneIf(s.Away))
	c.rejecting.WithLabelValues(s.Shard).Set(oneIf(s.Rejecting))
	if s.Away {
		c.outages.WithLabelValues(s.Shard).Inc()
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

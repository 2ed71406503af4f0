package promlimit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/go-reservoir/reservoir"
)

// figure is one field of Stats as a metric.
type figure struct {
	name string
	help string
	kind prometheus.ValueType
	of   func(s *reservoir.Stats) int64

	desc *prometheus.Desc
	last int64 // under Collector.mu
}

const (
	counter = prometheus.CounterValue
	gauge   = prometheus.GaugeValue
)

// newFigures lists every field of Stats.
func newFigures(labels prometheus.Labels) []*figure {
	type stats = *reservoir.Stats
	figures := []*figure{
		{name: "reservoir_keys", kind: gauge, help: "Keys held in memory.", of: func(s stats) int64 { return int64(s.Keys) }},

		{name: "reservoir_tokens_taken_total", kind: counter, help: "Tokens that the store charged to this process.", of: func(s stats) int64 { return s.Taken }},
		{name: "reservoir_tokens_refunded_total", kind: counter, help: "Tokens that Refund took back from requests.", of: func(s stats) int64 { return s.Refunded }},
		{name: "reservoir_tokens_spent_total", kind: counter, help: "Tokens that admitted requests used, refunded ones included.", of: func(s stats) int64 { return s.Spent }},
		{name: "reservoir_tokens_returned_total", kind: counter, help: "Tokens given back to the store.", of: func(s stats) int64 { return s.Returned }},
		{name: "reservoir_tokens_expired_total", kind: counter, help: "Tokens whose window ended before they were used.", of: func(s stats) int64 { return s.Expired }},
		{name: "reservoir_tokens_held", kind: gauge, help: "Tokens in memory, to be spent.", of: func(s stats) int64 { return s.Held }},

		{name: "reservoir_store_calls_total", kind: counter, help: "Calls to the store, of any kind.", of: func(s stats) int64 { return s.StoreCalls }},
		{name: "reservoir_store_syncs_total", kind: counter, help: "Calls to the store that were statements of account: fetches and give-backs.", of: func(s stats) int64 { return s.Syncs }},
		{name: "reservoir_requests_waited_total", kind: counter, help: "Requests that waited on the network.", of: func(s stats) int64 { return s.Waited }},
		{name: "reservoir_requests_denied_total", kind: counter, help: "Requests refused.", of: func(s stats) int64 { return s.Denied }},
		{name: "reservoir_requests_failed_total", kind: counter, help: "Requests that ended in a store error.", of: func(s stats) int64 { return s.Failed }},

		{name: "reservoir_prefetches_total", kind: counter, help: "Fetches ahead of need.", of: func(s stats) int64 { return s.Prefetches }},
		{name: "reservoir_probes_total", kind: counter, help: "Looks whether an exhausted key has tokens again.", of: func(s stats) int64 { return s.Probes }},
		{name: "reservoir_give_backs_total", kind: counter, help: "Returns of an idle excess to the store.", of: func(s stats) int64 { return s.GiveBacks }},
		{name: "reservoir_tokens_stranded", kind: gauge, help: "Tokens held whose key is exhausted in the store.", of: func(s stats) int64 { return s.Stranded }},

		{name: "reservoir_requests_fallback_total", kind: counter, help: "Requests that the failure policy admitted or refused, the store being away.", of: func(s stats) int64 { return s.Fallbacks }},
		{name: "reservoir_tokens_owed", kind: gauge, help: "Tokens that the failure policy admitted and that the store is still to charge.", of: func(s stats) int64 { return s.Owed }},

		{name: "reservoir_tokens_recovered_total", kind: counter, help: "Tokens whose grant was lost on the way and handed over again.", of: func(s stats) int64 { return s.Recovered }},
		{name: "reservoir_tokens_reasserted_total", kind: counter, help: "Tokens that the store had forgotten and has charged again.", of: func(s stats) int64 { return s.Reasserted }},
		{name: "reservoir_tokens_unknown_total", kind: counter, help: "Tokens of direct calls that failed and may have been charged for nothing.", of: func(s stats) int64 { return s.Unknown }},
	}
	for _, f := range figures {
		f.desc = prometheus.NewDesc(f.name, f.help, nil, labels)
	}
	return figures
}

// metric returns f's value in s. Stats reads its counts one after the other while
// the limiter works, so that a sum of several may come out a little less than the
// time before. Prometheus takes a counter that goes down for a restart, and adds
// all of it to the rate: ours never do.
func (f *figure) metric(s reservoir.Stats) prometheus.Metric {
	v := f.of(&s)
	if f.kind == counter {
		v = max(v, f.last)
		f.last = v
	}
	return prometheus.MustNewConstMetric(f.desc, f.kind, float64(v))
}

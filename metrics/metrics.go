// Package metrics is for exporters to a monitoring system: the fields of [reservoir.Stats] with a
// name, a unit and a sentence each. Packages promlimit and otellimit are made with it.
package metrics

import (
	"errors"

	"github.com/go-reservoir/reservoir"
	"github.com/go-reservoir/reservoir/backend"
)

// Metric is one field of [reservoir.Stats].
type Metric struct {
	Name  string // lower-case words joined by dots, such as "tokens.spent"
	Unit  string // what Value counts: "token", "call", "request", "hold", "key" or "shard"
	Help  string // one sentence
	Gauge bool   // Value may go down; otherwise it is a counter, which never does
	Value func(s *reservoir.Stats) int64
}

// All returns a Metric for each field of [reservoir.Stats], in their order: first the three for a dashboard.
func All() []Metric {
	const gauge, counter = true, false
	return []Metric{
		{"requests.denied", "request", "Requests refused.", counter, func(s *reservoir.Stats) int64 { return s.Denied }},
		{"store.calls", "call", "Calls to the store, of any kind.", counter, func(s *reservoir.Stats) int64 { return s.StoreCalls }},
		{"requests.failed", "request", "Requests that ended in a store error.", counter, func(s *reservoir.Stats) int64 { return s.Failed }},

		{"requests.admitted", "request", "Requests admitted.", counter, func(s *reservoir.Stats) int64 { return s.Admitted }},
		{"requests.waited", "request", "Requests that waited on the network.", counter, func(s *reservoir.Stats) int64 { return s.Waited }},
		{"requests.shadowed", "request", "Requests that a limit would have refused and that passed in shadow.", counter, func(s *reservoir.Stats) int64 { return s.Shadowed }},
		{"store.syncs", "call", "Calls to the store that were statements of account: fetches and give-backs.", counter, func(s *reservoir.Stats) int64 { return s.Syncs }},

		{"tokens.taken", "token", "Tokens that the store charged to this process.", counter, func(s *reservoir.Stats) int64 { return s.Taken }},
		{"tokens.refunded", "token", "Tokens that requests had not used and Settle took back.", counter, func(s *reservoir.Stats) int64 { return s.Refunded }},
		{"tokens.spent", "token", "Tokens that admitted requests used, refunded ones included.", counter, func(s *reservoir.Stats) int64 { return s.Spent }},
		{"tokens.returned", "token", "Tokens given back to the store.", counter, func(s *reservoir.Stats) int64 { return s.Returned }},
		{"tokens.expired", "token", "Tokens whose window ended before they were used.", counter, func(s *reservoir.Stats) int64 { return s.Expired }},
		{"tokens.held", "token", "Tokens in memory, to be spent.", gauge, func(s *reservoir.Stats) int64 { return s.Held }},
		{"tokens.overdrawn", "token", "Tokens that were used above the limit: settled above the charge, or admitted without the store.", counter, func(s *reservoir.Stats) int64 { return s.Overdrawn }},

		{"prefetches", "call", "Fetches ahead of need.", counter, func(s *reservoir.Stats) int64 { return s.Prefetches }},
		{"probes", "call", "Fetches that look whether an exhausted key has tokens again.", counter, func(s *reservoir.Stats) int64 { return s.Probes }},
		{"give_backs", "call", "Returns of idle tokens to the store.", counter, func(s *reservoir.Stats) int64 { return s.GiveBacks }},
		{"tokens.idle", "token", "Tokens held whose key is exhausted in the store.", gauge, func(s *reservoir.Stats) int64 { return s.Idle }},

		{"holds", "hold", "Holds of keys that were begun here, or that a reply has told of.", counter, func(s *reservoir.Stats) int64 { return s.Holds }},
		{"keys", "key", "Keys held in memory.", gauge, func(s *reservoir.Stats) int64 { return int64(s.Keys) }},
		{"shards.unsubscribed", "shard", "Shards whose messages do not come to this process.", gauge, func(s *reservoir.Stats) int64 { return s.Unsubscribed }},

		{"requests.fallback", "request", "Requests that the failure policy admitted or refused because the store was away.", counter, func(s *reservoir.Stats) int64 { return s.Fallbacks }},
		{"tokens.debt", "token", "Tokens that were settled above a charge, which the store must still charge.", gauge, func(s *reservoir.Stats) int64 { return s.Debt }},
		{"tokens.unknown", "token", "Tokens of calls without an account that failed and may have been charged for nothing.", counter, func(s *reservoir.Stats) int64 { return s.Unknown }},
	}
}

// Outcome says in a word how a call to the store ended: ok, unavailable, rejected or unknown. The
// last means that the store may have carried it out.
func Outcome(c reservoir.StoreCall) string {
	failure, ok := errors.AsType[*reservoir.StoreError](c.Err)
	switch {
	case c.Err == nil:
		return "ok"
	case ok && (failure.Class == backend.Unavailable || failure.Class == backend.Rejected):
		return failure.Class.String()
	}
	return "unknown"
}

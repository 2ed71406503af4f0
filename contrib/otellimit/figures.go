package otellimit

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/go-reservoir/reservoir"
)

// figure is one field of Stats as an instrument.
type figure struct {
	name string
	kind kind
	unit string
	help string
	of   func(s *reservoir.Stats) int64

	instrument metric.Int64Observable
	last       int64 // under Telemetry.mu
}

type kind uint8

const (
	counter kind = iota
	upDown       // not a gauge: over processes these add up
)

// newFigures lists every field of Stats.
func newFigures() []*figure {
	type stats = *reservoir.Stats
	return []*figure{
		{name: "reservoir.keys", kind: upDown, unit: "{key}", help: "Keys held in memory.", of: func(s stats) int64 { return int64(s.Keys) }},

		{name: "reservoir.tokens.taken", unit: "{token}", help: "Tokens that the store charged to this process.", of: func(s stats) int64 { return s.Taken }},
		{name: "reservoir.tokens.refunded", unit: "{token}", help: "Tokens that Refund took back from requests.", of: func(s stats) int64 { return s.Refunded }},
		{name: "reservoir.tokens.spent", unit: "{token}", help: "Tokens that admitted requests used, refunded ones included.", of: func(s stats) int64 { return s.Spent }},
		{name: "reservoir.tokens.returned", unit: "{token}", help: "Tokens given back to the store.", of: func(s stats) int64 { return s.Returned }},
		{name: "reservoir.tokens.expired", unit: "{token}", help: "Tokens whose window ended before they were used.", of: func(s stats) int64 { return s.Expired }},
		{name: "reservoir.tokens.held", kind: upDown, unit: "{token}", help: "Tokens in memory, to be spent.", of: func(s stats) int64 { return s.Held }},

		{name: "reservoir.store.calls", unit: "{call}", help: "Calls to the store, of any kind.", of: func(s stats) int64 { return s.StoreCalls }},
		{name: "reservoir.store.syncs", unit: "{call}", help: "Calls to the store that were statements of account: fetches and give-backs.", of: func(s stats) int64 { return s.Syncs }},
		{name: "reservoir.requests.waited", unit: "{request}", help: "Requests that waited on the network.", of: func(s stats) int64 { return s.Waited }},
		{name: "reservoir.requests.denied", unit: "{request}", help: "Requests refused.", of: func(s stats) int64 { return s.Denied }},
		{name: "reservoir.requests.failed", unit: "{request}", help: "Requests that ended in a store error.", of: func(s stats) int64 { return s.Failed }},

		{name: "reservoir.prefetches", unit: "{call}", help: "Fetches ahead of need.", of: func(s stats) int64 { return s.Prefetches }},
		{name: "reservoir.probes", unit: "{call}", help: "Looks whether an exhausted key has tokens again.", of: func(s stats) int64 { return s.Probes }},
		{name: "reservoir.give_backs", unit: "{call}", help: "Returns of an idle excess to the store.", of: func(s stats) int64 { return s.GiveBacks }},
		{name: "reservoir.tokens.stranded", kind: upDown, unit: "{token}", help: "Tokens held whose key is exhausted in the store.", of: func(s stats) int64 { return s.Stranded }},

		{name: "reservoir.requests.fallback", unit: "{request}", help: "Requests that the failure policy admitted or refused, the store being away.", of: func(s stats) int64 { return s.Fallbacks }},
		{name: "reservoir.tokens.owed", kind: upDown, unit: "{token}", help: "Tokens that the failure policy admitted and that the store is still to charge.", of: func(s stats) int64 { return s.Owed }},

		{name: "reservoir.tokens.recovered", unit: "{token}", help: "Tokens whose grant was lost on the way and handed over again.", of: func(s stats) int64 { return s.Recovered }},
		{name: "reservoir.tokens.reasserted", unit: "{token}", help: "Tokens that the store had forgotten and has charged again.", of: func(s stats) int64 { return s.Reasserted }},
		{name: "reservoir.tokens.unknown", unit: "{token}", help: "Tokens of direct calls that failed and may have been charged for nothing.", of: func(s stats) int64 { return s.Unknown }},
	}
}

// observables makes an instrument of each figure, and has them observed together
// so that they are of one reading of Stats.
func (t *Telemetry) observables(meter metric.Meter) (err error) {
	t.figures = newFigures()
	all := make([]metric.Observable, 0, len(t.figures))
	var errs []error
	for _, f := range t.figures {
		errs = append(errs, f.make(meter))
		all = append(all, f.instrument)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.stop, err = meter.RegisterCallback(t.observe, all...)
	return err
}

func (f *figure) make(meter metric.Meter) (err error) {
	if f.kind == upDown {
		f.instrument, err = meter.Int64ObservableUpDownCounter(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.help))
		return err
	}
	f.instrument, err = meter.Int64ObservableCounter(f.name, metric.WithUnit(f.unit), metric.WithDescription(f.help))
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
		to.ObserveInt64(f.instrument, f.value(s), with)
	}
	return nil
}

// value returns f's value in s. Stats reads its counts one after the other while
// the limiter works, so that a sum of several may come out a little less than the
// time before. A counter that goes down is taken for a restart: ours never do.
func (f *figure) value(s reservoir.Stats) int64 {
	v := f.of(&s)
	if f.kind == counter {
		v = max(v, f.last)
		f.last = v
	}
	return v
}

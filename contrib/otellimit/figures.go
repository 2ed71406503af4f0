package otellimit

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/metric"

	"github.com/go-reservoir/reservoir"
)

// figure is one of reservoir.Figures as an instrument.
type figure struct {
	instrument metric.Int64Observable
	value      func(s *reservoir.Stats) int64
}

// observables makes an instrument for each figure. One callback observes them all, so that
// they come from one reading of Stats.
func (t *Telemetry) observables(meter metric.Meter) (err error) {
	var all []metric.Observable
	var errs []error
	for _, f := range reservoir.Figures() {
		instrument, err := newInstrument(meter, f)
		errs = append(errs, err)
		t.figures = append(t.figures, figure{instrument, f.Value})
		all = append(all, instrument)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.stop, err = meter.RegisterCallback(t.observe, all...)
	return err
}

func newInstrument(meter metric.Meter, f reservoir.Figure) (metric.Int64Observable, error) {
	name, unit, help := "reservoir."+f.Name, metric.WithUnit("{"+f.Unit+"}"), metric.WithDescription(f.Help)
	if f.Gauge { // an UpDownCounter, because the values of several processes add up
		return meter.Int64ObservableUpDownCounter(name, unit, help)
	}
	return meter.Int64ObservableCounter(name, unit, help)
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
		to.ObserveInt64(f.instrument, f.value(&s), with)
	}
	return nil
}
